"""What is held is charged, what is charged is held: random histories of pods, told to the ledger and to the
extender's snapshot, and an oracle that imports nothing of ours.

Each history is one pod on a node of its own, with a neighbour on one of its cards. Once all evidence is in,
its session has the parts of cards that the oracle computes, and its postings are the rate of these parts
through the time from its binding to its end; until then the extender holds exactly these parts.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

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
from tests.timekeeper.worlds import HOUR, SECOND, Json, Town, gpu_pod, lease, node
from timekeeper.store.queries import ledger as reading

pytestmark = pytest.mark.untraced


# The histories are the same on both; for what PostgreSQL does otherwise fewer of them suffice.
HISTORIES = {"sqlite": examples(300, soak=20_000), "postgresql": examples(100, soak=20_000)}
MOST_GRACE = 600
CARD_MIB = 16_000
NEIGHBOUR = 200  # thousandths of GPU-0
UNKNOWN_END: Json = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}

Amounts = dict[str, tuple[int, int]]  # by card: thousandths of its compute, MiB


@dataclass(frozen=True)
class Part:
    """What one container requests of one card; 0: it does not name the amount."""

    card: str
    percent: int
    requested_mib: int

    @property
    def amount(self) -> tuple[int, int]:
        return 10 * self.percent, self.requested_mib or CARD_MIB * self.percent // 100

    def container(self, name: str) -> Json:
        named = {"bursar_dev__gpu_percent": self.percent, "bursar_dev__gpu_memory": self.requested_mib}
        return worlds.limits_of(name, **{key: str(value) for key, value in named.items() if value})

    def placed(self) -> list[Json]:
        share, mib = self.amount
        return [{"uuid": self.card, "index": int(self.card[-1]), "share_milli": share, "memory_mib": mib}]


@dataclass
class Asks:
    """A pod's containers that request GPUs: an init container, ordinary ones, or both."""

    init: Part | None
    ordinary: dict[str, Part]

    @property
    def placed(self) -> Json:
        parts = self.ordinary | ({"setup": self.init} if self.init else {})
        return {name: part.placed() for name, part in parts.items()}

    def held(self) -> Amounts:
        """By card, the larger of the ordinary containers' sum and the init container's part."""
        found: Amounts = {}
        for part in self.ordinary.values():
            share, mib = found.get(part.card, (0, 0))
            found[part.card] = (share + part.amount[0], mib + part.amount[1])
        if self.init is not None:
            share, mib = found.get(self.init.card, (0, 0))
            found[self.init.card] = (max(share, self.init.amount[0]), max(mib, self.init.amount[1]))
        return found


def drawn(rng: random.Random) -> Asks:
    """In a third of the cases the init container alone requests cards."""

    def part() -> Part:
        percent = rng.choice([0, 10, 25, 40])
        return Part(
            rng.choice(["GPU-0", "GPU-1"]), percent, rng.choice([0, 500, 4000] if percent else [3000])
        )

    kind = rng.randrange(3)
    ordinary = {} if kind == 0 else {name: part() for name in rng.choice([["main"], ["main", "second"]])}
    return Asks(part() if kind in (0, 1) else None, ordinary)


def parts_milli(amounts: Amounts) -> int:
    """The pod's rate at weight 1: of each card the larger part, memory rounded up."""
    return sum(max(share, -(-1000 * mib // CARD_MIB)) for share, mib in amounts.values())


@dataclass
class History:
    """One pod. ``end``: the oracle's, once it is known; ``evidence``: when its node was last heard."""

    town: Town
    rng: random.Random
    name: str
    asks: Asks
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
        """Both hear the pod's present object; the ledger decides now or later."""
        pod = read_pod(self.raw)
        assert pod is not None
        if deleted:
            self.snapshot = pod_deleted(self.snapshot, pod, self.now)
        else:
            self.snapshot = pod_updated(self.snapshot, pod, self.now)
        self.town.hear("pods", json.loads(json.dumps(self.raw)), deleted)
        if self.rng.random() < 0.5:
            self.town.tick()

    def node_says(self, lists: bool | None, ready: str = "True") -> None:
        """The node's object: its agent's report (None: there is no agent), and its condition Ready."""
        raw = node(f"n-{self.name}")
        if lists is not None:
            pods = {f"uid-{self.name}": ["GPU-0"]} if lists else {}
            report = {"version": 1, "boot": "b1", "known": True, "closed": "", "pods": pods}
            raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(report)
        raw["status"] = {"nodeInfo": {"bootID": "b1"}, "conditions": [{"type": "Ready", "status": ready}]}
        self.snapshot = node_updated(self.snapshot, read_node(raw), self.now)
        self.town.hear("nodes", raw)

    def passes(self, seconds: int, is_heard: bool = True) -> None:
        """Time passes; the node is heard, or it is silent."""
        self.town.clock.turn(seconds * SECOND)
        if is_heard:
            self.town.hear("leases", lease(self.now, f"n-{self.name}"))
            self.town.quiet()
            self.evidence = self.now
        self.town.tick()
        self.snapshot = expire(self.snapshot, self.now)

    def resumes(self) -> None:
        """The timekeeper is killed after a tick, and started again."""
        self.town.tick()
        self.town.resume()

    def is_held(self) -> bool:
        """The extender holds the pod's parts of cards, or none; what it calls free is the rest."""
        allocation = self.snapshot.allocation(f"uid-{self.name}")
        held: Amounts = self.asks.held() if allocation is not None else {}
        uses = allocation.uses if allocation is not None else ()
        assert {uuid: (use.share_milli, use.memory_mib) for uuid, use in uses} == held
        free = self.snapshot.node(f"n-{self.name}").free_by_card
        for uuid, left, neighbour in (("GPU-0", free[0], NEIGHBOUR), ("GPU-1", free[1], 0)):
            share, mib = held.get(uuid, (0, 0))
            assert left is not None
            assert left.share_milli == 1000 - neighbour - share
            assert left.memory_mib == CARD_MIB - CARD_MIB * neighbour // 1000 - mib
        return allocation is not None

    def begins(self) -> None:
        """A pod with an idle container is bound; it may start, or not."""
        self.node_says(self.rng.choice([None, False]))
        self.town.hear("leases", lease(self.now, f"n-{self.name}"))
        self.grace = self.rng.choice([0, 30, 300, 3600])
        self.bound = self.now
        self.raw = gpu_pod(self.name, node=f"n-{self.name}", bound_ms=self.bound, grace_s=self.grace)
        ordinary = [part.container(name) for name, part in self.asks.ordinary.items()]
        self.raw["spec"]["containers"] = [*(ordinary or [worlds.container("main")]), worlds.container("idle")]
        if self.asks.init is not None:
            self.raw["spec"]["initContainers"] = [self.asks.init.container("setup")]
        devices = json.dumps({"version": 1, "containers": self.asks.placed})
        self.raw["metadata"]["annotations"]["bursar.dev/devices"] = devices
        neighbour = read_pod(gpu_pod("neighbour", node=f"n-{self.name}", percent=NEIGHBOUR // 10))
        assert neighbour is not None
        self.snapshot = pods_listed(self.snapshot, [neighbour], self.now)
        self.told()
        for _ in range(self.rng.randint(0, 3)):
            self.passes(self.rng.randint(1, 40))
            if self.rng.random() < 0.2:
                self.resumes()
        if self.rng.random() < 0.2:
            self.passes(self.rng.randint(100, 2000), is_heard=False)

    def status(self, phase: str, main: Json | None, idle: Json | None, setup: Json | None = None) -> None:
        """``main``: the state of each container that is neither idle nor an init container."""
        names = [each["name"] for each in self.raw["spec"]["containers"]]
        states = {name: idle if name == "idle" else main for name in names}
        self.raw["status"] |= worlds.status(
            phase, **{n: each for n, each in states.items() if each is not None}
        )
        if setup is not None and self.asks.init is not None:
            statuses = [{"name": "setup", "state": setup, "lastState": {}}]
            self.raw["status"]["initContainerStatuses"] = statuses
        self.told()

    def runs(self) -> tuple[Json, Json]:
        """The GPU containers end early; the idle one runs on. An init container ran before them."""
        if self.asks.init is not None:
            began = iso(self.now)
            self.status("Pending", None, None, worlds.running(began))
            self.passes(self.rng.randint(1, 30))
            self.status("Pending", None, None, worlds.terminated(began, iso(self.now)))
        start = iso(self.now)
        self.status("Running", worlds.running(start), worlds.running(start))
        self.passes(self.rng.randint(1, 30))
        main = worlds.terminated(start, iso(self.now))
        self.status("Running", main, worlds.running(start))
        self.passes(self.rng.randint(1, 30))
        return main, worlds.terminated(start, iso(self.now))

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
            self.resumes()
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

    def check_the_charge(self) -> None:
        """The session has the cards, compute and MiB that were held, and its postings together are the rate
        of these from the binding to the end."""
        uid, held = f"uid-{self.name}", self.asks.held()
        with self.town.store.reading() as connection:
            session = reading.sessions_of(connection, [uid]).sessions[uid]
        assert json.loads(session.devices)["containers"] == self.asks.placed
        shares = (share or -(-1000 * mib // CARD_MIB) for share, mib in held.values())
        assert session.requested_milli == sum(shares)
        assert session.requested_mib == sum(mib for _, mib in held.values())
        steps: Counter[int] = Counter()
        for start, end, rate, _ in self.town.postings(uid):
            steps[start] += rate
            steps[end] -= rate
        charged = {at: step for at, step in steps.items() if step}
        rate = parts_milli(held)
        assert charged == ({self.bound: rate, self.end: -rate} if self.end > self.bound else {})

    def is_gone(self) -> None:
        """A silent node speaks again and lists nobody; then pod and node are removed."""
        self.node_says(False)
        self.snapshot = expire(self.snapshot, self.now)
        assert not self.is_held()
        self.town.hear("pods", self.raw, deleted=True)
        for source, raw in (("leases", lease(self.now, f"n-{self.name}")), ("nodes", node(f"n-{self.name}"))):
            self.town.hear(source, raw, deleted=True)


def test_each_pod_is_charged_for_exactly_the_cards_and_the_time_that_it_holds(town: Town) -> None:
    town.begin()
    ends = (History.ends_by_proof, History.ends_without_a_time, History.is_rejected, History.vanishes)
    for number in range(HISTORIES[town.store.engine.dialect.name]):
        rng = random.Random(number)
        history = History(town, rng, f"p{number}", drawn(rng))
        try:
            history.begins()
            rng.choice((*ends, History.vanishes))(history)
            history.is_held_until_its_end()
            town.clock.turn(2 * HOUR)
            town.tick()
            history.snapshot = expire(history.snapshot, town.clock())
            history.check_the_charge()
            history.is_gone()
        except AssertionError as error:
            raise AssertionError(f"history {number}: {history.asks}") from error
