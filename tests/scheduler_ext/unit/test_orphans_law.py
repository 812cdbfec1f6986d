"""The law of pods that vanish: while one is there that the extender could know of, nobody is given its card;
and once it is gone and its node has told so, somebody may be. Of one that it knows by its node alone it
knows for the longest grace period.

What is true, what the agent saw, what it has written, and what the extender has heard are four things here,
and each follows the one before it when the story says so.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import MAX_GRACE_MS
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    expire,
    node_updated,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.worlds import Json, holders, node, on, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import card

pytestmark = pytest.mark.untraced


GRACE_MS = 30_000
CARDS = 3


@dataclass
class Truth:
    """A pod: which card it was given, whether its containers are there, and what anybody knows of that.
    ``starts``: how often they have come up, the last time after look
    ``started_at_look``."""

    raw: Json
    card: int
    there: bool = False
    object: bool = True
    ended: bool = False
    starts: int = 0
    started_at_look: int = 0
    gone_ms: int | None = None  # when the extender heard that its object is gone, None before
    told_ms: int = 0  # when the extender heard first that the node lists it, after a while that it did not
    is_news: bool = True  # the node has not listed it for a while, as far as the extender heard
    kept: bool = False  # heard to be there by its node while the extender still held its cards by its name


@dataclass
class Look:
    """What the agent writes, and the number of its look."""

    number: int
    text: str
    listed: frozenset[str]
    known: bool


def may_start(pod: Truth) -> bool:
    """True of a pod that its kubelet is to run, and does not yet, or not again."""
    return pod.object and not pod.ended and not pod.there


def is_there(pod: Truth) -> bool:
    """True of a pod whose containers run."""
    return pod.there


def has_object(pod: Truth) -> bool:
    """True of a pod that the API server has."""
    return pod.object


numbers = st.integers(0, 3)
likely = st.sampled_from([True, True, True, False])


class Story(RuleBasedStateMachine):
    """Pods come, are forced away, and die when they like; the agent looks, writes late, and starts anew; the
    extender hears late, and starts anew; the node reboots."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Truth] = {}
        self.now_ms, self.boot, self.looks, self.known = 0, 0, 0, True
        self.unwritten: list[Look] = []
        self.written = self.heard = Look(0, holders(boot="b0"), frozenset(), True)
        self.unheard_nodes: list[tuple[Json, Look]] = []
        self.unheard_pods: list[tuple[str, Json, bool]] = []
        self.snapshot = rebuilt([self.node()], [])

    def node(self) -> Json:
        """The Node object now."""
        cards = [card(at) for at in range(CARDS)]
        raw = node("n", *cards, annotations={"bursar.dev/holders": self.written.text})
        raw["status"]["nodeInfo"] = {"bootID": f"b{self.boot}"}
        return raw

    def put_node(self) -> None:
        """The Node object changes."""
        self.unheard_nodes.append((self.node(), self.written))

    def pick(self, number: int, whose: Callable[[Truth], bool]) -> str:
        """One of the pods of which that is true."""
        uids = [uid for uid, pod in self.pods.items() if whose(pod)]
        return uids[number % len(uids)]

    def some(self, whose: Callable[[Truth], bool]) -> bool:
        """True where it is of a pod."""
        return any(map(whose, self.pods.values()))

    @precondition(lambda self: 1000 in self.free())
    @rule(starts=likely)
    def a_pod_is_bound(self, starts: bool) -> None:
        number, at = len(self.pods), self.free().index(1000)
        raw = on(percent(100, f"p{number}", terminationGracePeriodSeconds=30), "n", f"GPU-{at}")
        self.pods[f"uid-p{number}"] = Truth(raw, at)
        self.snapshot = pod_updated(self.snapshot, read(raw))
        if starts:
            self.start(self.pods[f"uid-p{number}"])

    def start(self, pod: Truth) -> None:
        """Its containers come up."""
        pod.there, pod.starts, pod.started_at_look = True, pod.starts + 1, self.looks

    @precondition(lambda self: self.some(may_start))
    @rule(number=numbers)
    def its_containers_start(self, number: int) -> None:
        self.start(self.pods[self.pick(number, may_start)])

    @precondition(lambda self: self.some(is_there))
    @rule(number=numbers, at_once=likely)
    def its_containers_end(self, number: int, at_once: bool) -> None:
        uid = self.pick(number, is_there)
        pod = self.pods[uid]
        pod.there, pod.ended = False, True
        if pod.object:
            pod.raw = {**pod.raw, "status": {"phase": "Succeeded"}}
            self.unheard_pods.append((uid, pod.raw, False))
            self.hear(at_once)

    @precondition(lambda self: self.some(has_object))
    @rule(number=numbers, at_once=likely)
    def its_object_is_removed(self, number: int, at_once: bool) -> None:
        uid = self.pick(number, has_object)
        self.pods[uid].object = False
        self.unheard_pods.append((uid, self.pods[uid].raw, True))
        self.hear(at_once)

    @rule(at_once=likely)
    def the_agent_looks(self, at_once: bool) -> None:
        self.look()
        if at_once:
            while self.unwritten:
                self.write()
            self.hear_of_the_nodes()

    def look(self) -> None:
        """What it sees now is to be written."""
        self.looks += 1
        there = frozenset(uid for uid, pod in self.pods.items() if pod.there) if self.known else frozenset()
        text = holders(dict.fromkeys(there, ()), boot=f"b{self.boot}", known=self.known)
        self.unwritten.append(Look(self.looks, text, there, self.known))
        self.known = True

    @precondition(lambda self: self.unwritten)
    @rule()
    def the_agent_writes(self) -> None:
        self.write()

    def write(self) -> None:
        """What it has seen earliest stands in the Node now."""
        self.written = self.unwritten.pop(0)
        self.put_node()

    @rule()
    def the_agent_starts_anew(self) -> None:
        self.known = False
        self.unwritten.clear()

    @rule()
    def the_node_reboots(self) -> None:
        self.boot, self.known = self.boot + 1, False
        self.unwritten.clear()
        for pod in self.pods.values():
            pod.there = False
        self.put_node()

    @precondition(lambda self: self.unheard_nodes)
    @rule()
    def the_extender_hears_of_the_node(self) -> None:
        self.hear_of_the_nodes()

    def hear_of_the_nodes(self) -> None:
        """The node's stream brings all that it has."""
        while self.unheard_nodes:
            self.hear_of_the_node()

    def hear_of_the_node(self) -> None:
        """The node's stream brings one version of it."""
        before = self.heard.listed
        raw, self.heard = self.unheard_nodes.pop(0)
        self.tells(self.heard.listed - before)
        self.snapshot = node_updated(self.snapshot, read_node(raw), self.now_ms)
        for uid in self.heard.listed:
            self.keep(self.pods[uid])

    def keep(self, pod: Truth) -> None:
        """Its node lists it: the extender knows it by its name from now on, unless it has let go of it."""
        if pod.gone_ms is not None:
            pod.kept = pod.kept or self.now_ms < pod.gone_ms + GRACE_MS

    def tells(self, uids: frozenset[str]) -> None:
        """The extender hears of these by their node."""
        for pod in (self.pods[uid] for uid in uids):
            if pod.is_news:
                pod.told_ms, pod.is_news = self.now_ms, False

    @precondition(lambda self: self.unheard_pods)
    @rule()
    def the_extender_hears_of_the_pods(self) -> None:
        self.hear()

    def hear(self, at_once: bool = True) -> None:
        """The pods' stream brings all that it has."""
        while self.unheard_pods and at_once:
            self.hear_of_a_pod()

    def hear_of_a_pod(self) -> None:
        """The pods' stream brings one event."""
        uid, raw, gone = self.unheard_pods.pop(0)
        if gone:
            self.pods[uid].gone_ms = self.now_ms
            if uid in self.heard.listed:
                self.keep(self.pods[uid])
        self.snapshot = (
            pod_deleted(self.snapshot, read(raw), self.now_ms)
            if gone
            else pod_updated(self.snapshot, read(raw))
        )

    @rule(nodes_first=st.booleans())
    def the_extender_starts_anew(self, nodes_first: bool) -> None:
        self.unheard_nodes.clear()
        self.unheard_pods.clear()
        self.heard = self.written
        for pod in self.pods.values():
            pod.is_news = True
        self.tells(self.heard.listed)
        objects = [pod.raw for pod in self.pods.values() if pod.object]
        for pod in self.pods.values():
            if not pod.object:
                pod.gone_ms, pod.kept = -GRACE_MS, False  # it never knew of this one
        self.snapshot = rebuilt([self.node()], objects, self.now_ms)
        if nodes_first:
            early: Snapshot = node_updated(EMPTY, read_node(self.node()), self.now_ms)
            assert pods_listed(early, map(read, objects), self.now_ms) == self.snapshot

    @rule(ms=st.sampled_from([1_000, GRACE_MS, 10 * GRACE_MS, MAX_GRACE_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.snapshot = expire(self.snapshot, self.now_ms)
        for uid, pod in self.pods.items():
            pod.is_news = pod.is_news or uid not in self.heard.listed

    @rule()
    def everything_is_told_and_heard(self) -> None:
        self.look()
        self.look()
        while self.unwritten:
            self.write()
        self.hear()
        self.hear_of_the_nodes()
        self.time_passes(GRACE_MS)

        there = {uid for uid, pod in self.pods.items() if pod.there or (pod.object and not pod.ended)}
        known = {uid for uid in there if self.could_be_known(uid, self.pods[uid])}
        assert known <= {uid for uid, _ in self.snapshot.allocated_on.items()} <= there
        unknown_orphan = [uid for uid in self.snapshot.unsure if not self.snapshot.allocation(uid).request]  # type: ignore[union-attr]
        assert self.snapshot.node("n").closed == ("lingering" if unknown_orphan else "")

    def free(self) -> list[int]:
        """What may be given out of each card."""
        there = self.snapshot.node("n")
        return [0 if there.closed or room is None else room.share_milli for room in there.free_by_card]

    def could_be_known(self, uid: str, pod: Truth) -> bool:
        """By its object; by what the node said of it since it started, for ever where it was said in time,
        else for the longest grace period; and while its own lasts, unless it started a second time: then a
        look between the two may have come late."""
        if pod.object or pod.gone_ms is None:
            return True
        if uid in self.heard.listed and self.heard.number > pod.started_at_look:
            return (pod.starts == 1 and pod.kept) or self.now_ms < pod.told_ms + MAX_GRACE_MS
        return pod.starts == 1 and self.now_ms < pod.gone_ms + GRACE_MS

    @invariant()
    def nobody_is_given_the_card_of_one_who_is_there(self) -> None:
        free = self.free()
        for uid, pod in self.pods.items():
            if pod.there and self.could_be_known(uid, pod):
                assert free[pod.card] == 0, uid


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
