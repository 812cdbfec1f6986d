"""Any interleaving of binds, faults, lost and late answers, broken watches, restarts, and replicas that take
over from each other: no card is ever overcommitted, and at rest none is lost.

After each step the objects alone are read back, card by card, by `readback`, which imports nothing of ours.
"""

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from scheduler_ext.leadership.takeover import MAX_LOOKS
from tests.scheduler_ext import machine, readback
from tests.scheduler_ext.machine import BUSY, FAULTS, FINE, HOME, LOST_UNDONE, Cluster, Replica
from tests.scheduler_ext.worlds import asking, mib, node, percent
from tests.support.profile import examples
from tests.worlds import Json, card, container

MEMORY = {f"{name}-GPU-{at}": 16_000 for name in "ab" for at in range(2)}
SHAPES = (
    percent(60),
    percent(100),
    mib(9000),
    percent(40),
    asking(container("main", gpu_percent="50"), container("second", gpu_count="1")),
)
PODS = st.integers(0, 5)
NODES = st.sampled_from("aaab")
REPLICAS = st.integers(0, 1)
KINDS = st.sampled_from(["pods", "nodes"])
DATA = st.data()
FATES = st.sampled_from([FINE] * 20 + list(FAULTS))
MEANWHILE = (
    *("nothing",) * 10,
    "hear",
    "hear",
    "take-over",
    "fail-over",
    "fail-over",
    "bind",
    "bind",
    "late",
    "remove",
    "end",
    "settle",
    "step",
    "expire",
)


class Faults(RuleBasedStateMachine):
    """Two replicas, two nodes, six names for pods."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.cluster.fate, self.cluster.before = self._fate, self._before
        self.cluster.obeyed = self._obeyed
        self.numbers, self.depth, self.last = 0, 0, FINE
        self.draw: Any = None
        for name in "ab":
            self.cluster.put("nodes", node(name, card(0)))
        for number, shape in enumerate(SHAPES[:4]):
            self._pod_comes(number, shape, 30)
        self.replicas = [self._process(f"extender-{at}") for at in range(2)]

    def _process(self, name: str) -> Replica:
        self.numbers += 1
        if f"{HOME}/{name}" not in self.cluster.objects["pods"]:
            metadata = {"name": name, "namespace": HOME, "uid": f"uid-{name}-{self.numbers}"}
            self.cluster.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})
        return Replica(self.cluster, name, f"{name}.{self.numbers}")

    # what the API server and the others do while a replica is about to call

    def _fate(self, _replica: str, verb: str) -> str:
        if self.draw is None:
            return FINE
        if verb == "get" and self.last not in (FINE, BUSY) and self.draw(st.booleans()):
            return LOST_UNDONE  # an API server that does not answer seldom does so only once
        self.last = str(self.draw(FATES))
        return self.last

    def _before(self, _replica: str, _verb: str) -> None:
        if self.draw is None or self.depth > 1:
            return
        self.depth += 1
        for _ in range(4):
            what = self.draw(st.sampled_from(MEANWHILE))
            if what == "nothing":
                break
            self._meanwhile(what)
        self.depth -= 1

    def _meanwhile(self, what: str) -> None:
        replica = self.replicas[self.draw(REPLICAS)]
        if what == "hear":
            replica.hear("pods")
        elif what == "take-over":
            replica.take_over()
        elif what == "fail-over":
            replica.take_over()
            where = self.draw(NODES)
            for number in range(6):
                replica.deliver()
                self._bind(replica, number, where)
        elif what == "bind":
            self._bind(replica, self.draw(PODS), self.draw(NODES))
        elif what == "late":
            self._late(0)
        elif what == "remove":
            self.pod(self.draw(PODS), "is-forced-away")
        elif what == "end":
            self.pod(self.draw(PODS), "ends")
        elif what == "settle":
            replica.settle()
        elif what == "step":
            replica.step()
        else:
            replica.cache.expire()

    def _obeyed(self, replica: str, uid: str) -> None:
        """A Binding was obeyed: on its cards what vanished and may still run counts, where the replica could
        know."""
        still = [
            each.raw
            for each in self.cluster.orphaned
            if each.until_ms > self.cluster.now_ms and replica not in each.unknown
        ]
        pods = [pod for pod in self.cluster.pods() if readback.holds(pod)]
        its = readback.taken([pod for pod in pods if pod["metadata"]["uid"] == uid])
        over = readback.overcommitted(readback.taken([*pods, *still]), MEMORY)
        assert its
        assert not over.keys() & its.keys()

    # pods

    @rule(number=PODS, shape=st.sampled_from(SHAPES), grace=st.sampled_from([1, 30]))
    def pod_comes(self, number: int, shape: Json, grace: int) -> None:
        """Under a name that another may have had."""
        self._pod_comes(number, shape, grace)

    def _pod_comes(self, number: int, shape: Json, grace: int) -> None:
        if self._pod(number) is None:
            self.numbers += 1
            metadata = {**shape["metadata"], "name": f"p{number}", "uid": f"uid-{number}-{self.numbers}"}
            spec = {**shape["spec"], "terminationGracePeriodSeconds": grace}
            self.cluster.put("pods", {**shape, "metadata": metadata, "spec": spec})

    @rule(number=PODS, what=st.sampled_from(["ends", "ends-and-goes", "is-forced-away", "is-being-deleted"]))
    def pod(self, number: int, what: str) -> None:
        """Only the end of its containers frees its cards, or its grace period where nothing tells of it."""
        raw = self._pod(number)
        if raw is None:
            return
        if what.startswith("ends") and raw["spec"].get("nodeName"):
            self.cluster.put("pods", {**raw, "status": {**raw["status"], "phase": "Succeeded"}})
        if what == "is-being-deleted":
            metadata = {**raw["metadata"], "deletionTimestamp": "2026-11-20T04:32:53Z"}
            self.cluster.put("pods", {**raw, "metadata": metadata})
        if what in ("ends-and-goes", "is-forced-away"):
            self.cluster.remove(f"p{number}")

    # nodes, time, watches

    @rule(name=NODES, what=st.sampled_from([1, 1, 2, 2, "unreadable", "gone"]))
    def node(self, name: str, what: int | str) -> None:
        """Cards come and go under those who use them, and so does the node."""
        if what != "gone":
            raw = node(name, *(card(at) for at in range(what if isinstance(what, int) else 2)))
            if what == "unreadable":
                raw["metadata"]["annotations"]["bursar.dev/inventory"] = "{"
            self.cluster.put("nodes", raw)
        elif f"/{name}" in self.cluster.objects["nodes"]:
            self.cluster.delete("nodes", name)

    @rule(ms=st.sampled_from([500, 5_000, 11_000, 40_000]))
    def time_passes(self, ms: int) -> None:
        """For all alike."""
        self.cluster.now_ms += ms
        for each in self.replicas:
            each.cache.expire()

    @rule(at=REPLICAS, kind=KINDS, count=st.integers(1, 8))
    def watch_delivers(self, at: int, kind: str, count: int) -> None:
        """Some of what there is."""
        for _ in range(count):
            self.replicas[at].hear(kind)

    @rule(at=REPLICAS, kind=KINDS, how=st.sampled_from(["expired", "reset", "500", "forgotten"]))
    def watch_breaks(self, at: int, kind: str, how: str) -> None:
        """It resumes, or lists anew."""
        if how == "forgotten":
            self.cluster.compact()
        else:
            self.replicas[at].api.broken[kind].append(machine.broken(how))

    # the replicas

    @rule(at=REPLICAS, wanted=st.sampled_from([True, False, None]), data=DATA)
    def believes(self, at: int, wanted: bool | None, data: Any) -> None:
        """The election says so, right or wrong, and the replica takes a step."""
        self.replicas[at].belief.wanted = wanted
        self._drawing(data, self.replicas[at].step)

    @rule(at=REPLICAS, data=DATA)
    def takes_over(self, at: int, data: Any) -> None:
        """As far as it gets."""
        self._drawing(data, self.replicas[at].take_over)

    @rule(at=REPLICAS, number=PODS, where=NODES, data=DATA)
    def binds(self, at: int, number: int, where: str, data: Any) -> None:
        """kube-scheduler's call, whether this replica leads or not."""
        self._drawing(data, lambda: self._bind(self.replicas[at], number, where))

    @rule(at=REPLICAS, data=DATA)
    def leads_and_binds_all(self, at: int, data: Any) -> None:
        """The way it is most of the time."""
        replica = self.replicas[at]

        def work() -> None:
            replica.take_over()
            for number in range(6):
                replica.deliver()
                self._bind(replica, number, data.draw(NODES))

        self._drawing(data, work)

    @rule(at=REPLICAS, data=DATA)
    def settles(self, at: int, data: Any) -> None:
        """It asks after those in doubt."""
        self._drawing(data, self.replicas[at].settle)

    @rule(which=st.integers(0, 3))
    def late_call_arrives(self, which: int) -> None:
        """One that its caller has given up."""
        self._late(which)

    @rule(at=REPLICAS, what=st.sampled_from(["killed", "killed", "cut-off"]))
    def process(self, at: int, what: str) -> None:
        """It is killed and starts again in the same pod; or its pod's object goes while it goes on, as on a
        node that is cut off."""
        name = self.replicas[at].name
        if what == "killed":
            self.replicas[at] = self._process(name)
        elif f"{HOME}/{name}" in self.cluster.objects["pods"]:
            self.cluster.delete("pods", name, HOME)

    # what must hold

    @invariant()
    def no_card_is_overcommitted(self) -> None:
        """By the objects alone."""
        pods = [pod for pod in self.cluster.pods() if readback.holds(pod)]
        assert not readback.overcommitted(readback.taken(pods), MEMORY)

    def teardown(self) -> None:
        """At rest: all that was late has come, one leads, and nobody has lost or invented a card."""
        while self.cluster.late:
            self._late(0)
        for each in self.replicas:
            while any(each.api.broken.values()):
                each.deliver()
        follower, survivor = self.replicas
        follower.belief.wanted = False
        follower.step()
        self._process(survivor.name)  # its pod is there, if it was not
        self._leads(survivor)
        # where a watch had a gap, a vanished pod may have had the longest grace period
        for _ in range(8):
            self.time_passes(machine.GRACE_MS // 8 + 40_000)
            for each in self.replicas:
                each.deliver()
                each.settle()
        for each in self.replicas:
            self._has_lost_nothing(each)
        self._goes_on(survivor)

    def _has_lost_nothing(self, replica: Replica) -> None:
        snapshot = replica.cache.snapshot
        assert not snapshot.unsure
        for raw in self.cluster.nodes():
            name, cards = raw["metadata"]["name"], readback.inventory(raw)
            here = [
                pod for pod in self.cluster.pods() if readback.holds(pod) and pod["spec"]["nodeName"] == name
            ]
            total = readback.taken(here)
            if not cards or not total.keys() <= cards.keys():
                assert snapshot.node(name).closed
                continue
            free = [
                (room.share_milli, room.memory_mib)
                for room in snapshot.node(name).free_by_card
                if room is not None
            ]
            left = [(1000 - s, 16_000 - m) for s, m in (total.get(uuid, (0, 0)) for uuid in cards)]
            assert (snapshot.node(name).closed, free) == ("", left)

    def _leads(self, replica: Replica) -> None:
        """Sooner or later: a late mark of its own may have covered its last, and where a list shows it a mark
        that it did not know, it begins anew."""
        for _ in range(0, 2 * MAX_LOOKS, machine.LOOKS):
            if not replica.leadership.leads():
                replica.take_over()
        assert replica.leadership.leads()

    def _goes_on(self, replica: Replica) -> None:
        name = next((raw["metadata"]["name"] for raw in self.cluster.nodes()), "")
        raw = self.cluster.put("pods", percent(1, "last"))
        replica.deliver()
        self._leads(replica)
        said = replica.bind(raw, name) if name else None
        snapshot = replica.cache.snapshot.node(name)
        if (
            snapshot.node_object is not None
            and not snapshot.closed
            and any(r and r.share_milli for r in snapshot.free_by_card)
        ):
            assert said == ""

    # the means

    def _pod(self, number: int) -> Json | None:
        return self.cluster.objects["pods"].get(f"team-a/p{number}")

    def _late(self, which: int) -> None:
        if self.cluster.late:
            self.cluster.late.pop(which % len(self.cluster.late))()

    def _bind(self, replica: Replica, number: int, where: str) -> None:
        raw = self._pod(number)
        if raw is None:
            return
        uid = raw["metadata"]["uid"]
        self.cluster.told.discard((replica.word, uid))
        said = replica.bind(raw, where)
        if said == "":
            assert self.cluster.bindings.get(uid) == where
        elif said is not None:
            assert (replica.word, uid) not in self.cluster.told, f"done, and said: {said}"

    def _drawing(self, data: Any, work: Any) -> None:
        self.draw, self.depth = data.draw, 0
        try:
            work()
        finally:
            self.draw = None


def histories(count: int, steps: int) -> settings:
    """A profile."""
    return settings(max_examples=count, stateful_step_count=steps, deadline=None)


def test_no_history_of_faults_overcommits_or_loses_a_card() -> None:
    run_state_machine_as_test(Faults, settings=histories(examples(40, soak=120), 30))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_no_longer_history_does_either() -> None:
    count = int(os.environ.get("BURSAR_HISTORIES", "3000"))
    run_state_machine_as_test(Faults, settings=histories(count, 60))
