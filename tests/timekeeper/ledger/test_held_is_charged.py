"""What is held is charged, what is charged is held: random histories of pods, told to the ledger and to the
extender's snapshot, and an oracle that imports nothing of ours.

Each history is one pod on a node of its own. Once all evidence is in, its postings are its rate through the
time from its binding to the end that the oracle computes; until then the extender never frees its cards.
"""

import json
import random
from dataclasses import dataclass, field

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    expire,
    node_updated,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests import worlds
from tests.support.profile import examples
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import GPU, HOUR, SECOND, Json, Town, gpu_pod, lease, node

HISTORIES = examples(300, soak=20_000)
MOST_GRACE = 600
UNKNOWN_END: Json = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@dataclass
class History:
    """One pod. ``end``: the oracle's, once it is known; ``evidence``: when its node was last heard."""

    town: Town
    rng: random.Random
    name: str
    raw: Json = field(default_factory=dict)
    snapshot: Snapshot = EMPTY
    bound: int = 0
    evidence: int = 0
    grace: int = 30
    end: int = 0

    @property
    def now(self) -> int:
        return self.town.clock()

    def told(self, deleted: bool = False) -> None:
        """Both hear the pod's present object; the ledger decides."""
        pod = read_pod(self.raw)
        assert pod is not None
        if deleted:
            self.snapshot = pod_deleted(self.snapshot, pod, self.now)
        else:
            self.snapshot = pod_updated(self.snapshot, pod, self.now)
        self.town.change("pods", json.loads(json.dumps(self.raw)), deleted)

    def node_says(self, lists: bool | None, ready: str = "True") -> None:
        """The node's object: its agent's report (None: there is no agent), and its condition Ready."""
        raw = node(f"n-{self.name}")
        if lists is not None:
            pods = {f"uid-{self.name}": ["GPU-0"]} if lists else {}
            report = {"version": 1, "boot": "b1", "known": True, "closed": "", "pods": pods}
            raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(report)
        raw["status"] = {"nodeInfo": {"bootID": "b1"}, "conditions": [{"type": "Ready", "status": ready}]}
        self.snapshot = node_updated(self.snapshot, read_node(raw), self.now)
        self.town.change("nodes", raw)

    def passes(self, seconds: int, is_heard: bool = True) -> None:
        """Time passes; the node is heard, or it is silent."""
        self.town.clock.turn(seconds * SECOND)
        if is_heard:
            self.town.hear("leases", lease(self.now, f"n-{self.name}"))
            self.town.quiet()
            self.evidence = self.now
        self.town.tick()
        self.snapshot = expire(self.snapshot, self.now)

    def is_held(self) -> bool:
        return self.snapshot.allocation(f"uid-{self.name}") is not None

    def begins(self) -> None:
        """A pod with an idle container beside its GPU container is bound; it may start, or not."""
        self.node_says(self.rng.choice([None, False]))
        self.town.hear("leases", lease(self.now, f"n-{self.name}"))
        self.grace = self.rng.choice([0, 30, 300, 3600])
        self.bound = self.now
        self.raw = gpu_pod(self.name, node=f"n-{self.name}", bound_ms=self.bound, grace_s=self.grace)
        self.raw["spec"]["containers"].append(worlds.container("idle"))
        self.snapshot = pods_listed(self.snapshot, [], self.now)
        self.told()
        for _ in range(self.rng.randint(0, 3)):
            self.passes(self.rng.randint(1, 40))
            if self.rng.random() < 0.2:
                self.town.resume()
        if self.rng.random() < 0.2:
            self.passes(self.rng.randint(100, 2000), is_heard=False)

    def status(self, phase: str, main: Json | None, idle: Json | None) -> None:
        states = {name: state for name, state in (("main", main), ("idle", idle)) if state is not None}
        self.raw["status"] |= worlds.status(phase, **states)
        self.told()

    def runs(self) -> tuple[Json, Json]:
        """The GPU container ends early; the idle one runs on."""
        start = self.now
        self.status("Running", worlds.running(iso(start)), worlds.running(iso(start)))
        self.passes(self.rng.randint(1, 30))
        main = worlds.terminated(iso(start), iso(self.now))
        self.status("Running", main, worlds.running(iso(start)))
        self.passes(self.rng.randint(1, 30))
        return main, worlds.terminated(iso(start), iso(self.now))

    def ends_by_proof(self) -> None:
        main, idle = self.runs()
        self.end = self.now
        self.passes(self.rng.randint(0, 50))
        assert self.is_held()
        self.status("Succeeded", main, idle)

    def ends_without_a_time(self) -> None:
        main, _ = self.runs()
        assert self.is_held()
        self.status("Failed", main, UNKNOWN_END)
        self.end = self.now

    def is_rejected(self) -> None:
        """Its containers never started."""
        self.status("Failed", None, None)
        self.end = self.now

    def vanishes(self) -> None:
        """Deleted, perhaps twice, perhaps kept by a finalizer, and then gone without terminal statuses."""
        if self.rng.random() < 0.7:
            self.runs()
        for grace in self.rng.choice([[], [0], [120, 0], [36_000, 0]]):
            self.grace = max(self.grace, grace)
            self.raw["metadata"]["deletionGracePeriodSeconds"] = grace
            self.raw["metadata"]["deletionTimestamp"] = iso(self.now + grace * SECOND)
            self.told()
        deadline = self.now if "deletionTimestamp" in self.raw["metadata"] else None
        self.passes(self.rng.choice([0, 0, 20]))
        if self.rng.random() < 0.2:
            self.town.resume()
        removed = self.now if deadline is None else min(self.now, max(deadline, self.evidence))
        lists = self.rng.random() < 0.5
        if lists:
            self.node_says(True)
        self.told(deleted=True)
        self.end = removed + min(self.grace, MOST_GRACE) * SECOND
        if lists:
            self.is_listed_a_while(removed)

    def is_listed_a_while(self, removed: int) -> None:
        listed = self.now
        for _ in range(self.rng.randint(0, 4)):
            self.passes(self.rng.randint(1, 400))
            assert self.is_held()
            listed = self.now
        if self.rng.random() < 0.3:  # silent: the report is not fresh any more
            self.passes(60, is_heard=False)
            self.node_says(True, ready="Unknown")
            self.end = max(self.end, listed)
        else:
            self.passes(self.rng.randint(1, 5))
            self.node_says(False)
            self.end = max(removed, self.now)
            assert not self.is_held()

    def is_held_until_its_end(self) -> None:
        while self.now < self.end:
            assert self.is_held()
            self.passes((self.end - self.now + SECOND - 1) // SECOND)


def test_each_pod_is_charged_for_exactly_the_time_that_its_cards_are_held(town: Town) -> None:
    town.begin()
    ends = (History.ends_by_proof, History.ends_without_a_time, History.is_rejected, History.vanishes)
    for number in range(HISTORIES):
        rng = random.Random(number)
        history = History(town, rng, f"p{number}")
        history.begins()
        rng.choice((*ends, History.vanishes))(history)
        history.is_held_until_its_end()
        town.clock.turn(2 * HOUR)
        town.tick()
        history.snapshot = expire(history.snapshot, town.clock())
        spans = [(start, end) for start, end, rate, _ in town.postings(f"uid-{history.name}") if rate == GPU]
        assert sum(end - start for start, end in spans) == history.end - history.bound, f"history {number}"
        if spans:
            assert (spans[0][0], spans[-1][1]) == (history.bound, history.end), f"history {number}"
        history.node_says(False)  # a silent node speaks again
        history.snapshot = expire(history.snapshot, town.clock())
        assert not history.is_held(), f"history {number}"
