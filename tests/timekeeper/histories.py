"""Histories of pods on nodes of their own, side by side in one town, and an oracle that imports nothing of
ours.

A history is an iterator: it does something, and yields what it waits for. The histories of a `Batch` share
clock, ticks, restarts and the extender's two replicas, so that a tick decides about many pods that are at
different points of their lives. Sometimes no settler runs, or one replica is away; what the other saw is then
reported, at some time.
"""

import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.binding_reports import BindingReports
from scheduler_ext.clients.end_reports import EndReports
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from tests import worlds
from tests.support.post_client import PostClient
from tests.timekeeper.card_parts import CARD_MIB, Amounts, Asks, Json, drawn, parts_milli
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import HOUR, SECOND, Town, gpu_pod, lease, node
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.store import ledger as reading

MAX_GRACE = 600
LEAST_GRACE = 2  # of the kubelet
NEIGHBOUR = 200  # thousandths of GPU-0
UNKNOWN_END: Json = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@dataclass(frozen=True)
class Wait:
    """A history goes on at this time; ``is_heard``: its node is heard then, and is not silent."""

    at_ms: int
    is_heard: bool = True


Life = Iterator[Wait]


class Replica:
    """An extender: its cache, and what it reports."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.ends_client, self.bindings_client = PostClient(), PostClient()
        self.ends = EndReports(self.ends_client, town.clock, lambda *_, **__: None)
        self.bindings = BindingReports(self.bindings_client, town.clock, lambda *_, **__: None)
        self.cache = ClusterCache(
            town.clock, lambda _nodes: None, removed=self.ends.removed, left=self.ends.left
        )

    def lists(self, pods: Iterable[Pod] = ()) -> None:
        """It has all objects, and ``pods`` that are only the extender's."""
        there = [pod for raw in self.town.objects["pods"].values() if (pod := read_pod(raw)) is not None]
        self.cache.nodes_listed(map(read_node, self.town.objects["nodes"].values()))
        self.cache.pods_listed([*there, *pods])

    def binds(self, raw: Json) -> None:
        """It has bound this pod."""
        pod = read_pod(raw)
        assert pod is not None
        assert pod.placement is not None
        self.bindings.bound(pod, pod.node, pod.placement)

    def posts(self) -> None:
        """All that waits goes to the timekeeper."""
        for path, client, spool in (
            ("/v1/bindings", self.bindings_client, self.bindings),
            ("/v1/ends", self.ends_client, self.ends),
        ):
            while spool.send():
                pass
            for body in client.posts:
                assert self.town.post(path, body).status_code == 200
            client.posts.clear()


@dataclass
class Batch:
    """One clock, ledger and extender for many histories."""

    town: Town
    rng: random.Random
    grid_ms: int = 0  # most waits end at a multiple of it, so that one tick serves many histories
    ticks: int = 0
    is_away: bool = False  # no settler runs
    away_ms: int = 0  # when none ran last
    neighbours: list[Pod] = field(default_factory=list)
    histories: list["History"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grid_ms = self.rng.randint(10, 40) * SECOND
        self.replicas = [Replica(self.town)]

    @property
    def snapshot(self) -> Snapshot:
        """Of the replica that stays."""
        return self.replicas[0].cache.snapshot

    def caches(self) -> list[ClusterCache]:
        """Of the replicas that are there."""
        return [each.cache for each in self.replicas]

    @property
    def now(self) -> int:
        return self.town.clock()

    def in_seconds(self, low: int, high: int, rng: random.Random) -> int:
        """A time that is at least these seconds ahead."""
        return -(-(self.now + rng.randint(low, high) * SECOND) // self.grid_ms) * self.grid_ms

    def live(self, histories: list["History"]) -> None:
        """All of them, from the first binding until the last end."""
        self.histories = histories
        self.neighbours = [history.neighbour() for history in histories]
        for replica in self.replicas:
            replica.lists(self.neighbours)
        order = itertools.count()
        due = [(self.now, next(order), Wait(self.now), each, each.life()) for each in histories]
        while due:
            at_ms = due[0][0]
            acting = [heapq.heappop(due) for _ in range(sum(each[0] == at_ms for each in due))]
            self._reach(at_ms, [(wait, history) for _, _, wait, history, _ in acting])
            for _, _, _, history, life in acting:
                if wait := history.next_of(life):
                    heapq.heappush(due, (wait.at_ms, next(order), wait, history, life))

    def settle(self, histories: list["History"]) -> None:
        """All evidence is in, and old enough to be posted: check each charge."""
        self._comes_back()
        for _ in range(13):  # a binding without a pod is looked at after ten seconds
            self.town.clock.turn(SECOND)
            self._tick()
        self.town.clock.turn(2 * HOUR)
        self._tick()
        with self.town.store.reading() as connection:
            known = reading.sessions_of(connection, [history.uid for history in histories])
        for history in histories:
            history.check_the_charge(known.sessions[history.uid], known.posted.get(history.uid, ()))
            history.is_gone()

    def _reach(self, at_ms: int, waits: list[tuple[Wait, "History"]]) -> None:
        """Time passes and a tick follows, sometimes a restart of the timekeeper or a new list of nodes; or
        more happens at the same time, before a tick or after it."""
        if at_ms == self.now:
            if self.rng.random() < 0.5:
                self._tick()
            return
        self.town.clock.turn(at_ms - self.now)
        for wait, history in waits:
            if wait.is_heard:
                history.is_heard()
        self._tick()
        chance = self.rng.random()
        if self.is_away:
            self.away_ms = self.now
            if chance < 0.3:
                self._comes_back()
        elif chance < 0.04:
            self.town.resume()
        elif chance < 0.08:
            self.town.hear_all("nodes")
        elif chance < 0.14:
            self.is_away, self.away_ms = True, self.now
        self._a_replica_comes_or_posts()

    def _a_replica_comes_or_posts(self) -> None:
        """The second replica comes and goes: it knows less than the first, and may report sooner."""
        chance = self.rng.random()
        if chance < 0.1 and len(self.replicas) == 2:
            self.replicas.pop()
        elif chance < 0.3 and len(self.replicas) == 1:
            self.replicas.append(Replica(self.town))
            self.replicas[1].lists(self.neighbours)
        elif chance < 0.5:
            self.rng.choice(self.replicas).posts()

    def _post(self) -> None:
        for each in self.rng.sample(self.replicas, len(self.replicas)):
            each.posts()

    def _comes_back(self) -> None:
        """A settler starts, and reads lists; reports are posted before that or after it."""
        if self.rng.random() < 0.5:
            self._post()
        if self.is_away:
            self.is_away = False
            self.town.resume()
            for history in self.histories:
                history.evidence = history.spoke
        self._post()

    def _tick(self) -> None:
        self.ticks += 1
        if not self.is_away:
            assert self.town.tick()
        for cache in self.caches():
            cache.expire()


@dataclass
class History:
    """One pod on a node of its own, with a neighbour on one of its cards. ``end``: the oracle's, once it is
    known; ``spoke``: when its node was last heard, ``evidence``: as far as a settler knows."""

    batch: Batch
    number: int
    raw: Json = field(default_factory=dict)
    bound: int = 0
    evidence: int = 0
    spoke: int = 0
    grace: int = 30
    end: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.number)
        self.name = f"p{self.number}"
        self.uid = f"uid-{self.name}"
        self.asks: Asks = drawn(self.rng)

    @property
    def town(self) -> Town:
        return self.batch.town

    @property
    def now(self) -> int:
        return self.town.clock()

    def neighbour(self) -> Pod:
        read = read_pod(gpu_pod(f"beside-{self.name}", node=f"n-{self.name}", percent=NEIGHBOUR // 10))
        assert read is not None
        return read

    @property
    def is_serving(self) -> bool:
        """Every third pod has the label of those that the budget protects."""
        return self.number % 3 == 0

    @property
    def amount(self) -> int:
        """What it is charged in all, once it has ended."""
        return parts_milli(self.asks.held()) * max(0, self.end - self.bound)

    def life(self) -> Life:
        """From its binding until nothing holds its cards."""
        yield Wait(self.batch.in_seconds(0, 120, self.rng))
        yield from self.begins()
        ends = (self.ends_by_proof, self.ends_without_a_time, self.is_rejected, self.vanishes, self.vanishes)
        yield from self.rng.choice(ends)()
        while self.now < self.end:
            assert self.is_held()
            yield Wait(self.end)
        if self.raw["status"].get("phase") in ("Succeeded", "Failed") and self.rng.random() < 0.5:
            yield self.passes(0, 60)
            self.raw["metadata"]["deletionTimestamp"] = iso(self.now)
            yield self.told(deleted=True)

    def next_of(self, life: Life) -> Wait | None:
        try:
            return next(life, None)
        except AssertionError as error:
            raise AssertionError(f"{self.name}, {self.asks}") from error

    def told(self, deleted: bool = False) -> Wait:
        """Both receive the pod's present object; more may happen before the ledger decides."""
        pod = read_pod(self.raw)
        assert pod is not None
        for cache in self.batch.caches():
            (cache.pod_deleted if deleted else cache.pod_updated)(pod)
        self.town.hear("pods", json.loads(json.dumps(self.raw)), deleted, unheard=self.batch.is_away)
        return Wait(self.now)

    def node_says(self, lists: bool | None, ready: str = "True") -> None:
        """The node's object: its agent's report (None: there is no agent), and its condition Ready."""
        raw = node(f"n-{self.name}")
        if lists is not None:
            pods = {self.uid: ["GPU-0"]} if lists else {}
            report = {"version": 1, "boot": "b1", "known": True, "closed": "", "pods": pods}
            raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(report)
        raw["status"] = {"nodeInfo": {"bootID": "b1"}, "conditions": [{"type": "Ready", "status": ready}]}
        for cache in self.batch.caches():
            cache.node_updated(read_node(raw))
        self.town.hear("nodes", raw, unheard=self.batch.is_away)

    def passes(self, low_s: int, high_s: int, is_heard: bool = True) -> Wait:
        """Time passes; the node is heard at its end, or it is silent."""
        return Wait(self.batch.in_seconds(low_s, high_s, self.rng), is_heard)

    def is_heard(self) -> None:
        self.town.hear("leases", lease(self.now, f"n-{self.name}"), unheard=self.batch.is_away)
        self.spoke = self.now
        if not self.batch.is_away:
            self.town.quiet()
            self.evidence = self.now

    def is_held(self) -> bool:
        """The extender holds the pod's parts of cards, or none; what it calls free is the rest."""
        allocation = self.batch.snapshot.allocation(self.uid)
        held: Amounts = self.asks.held() if allocation is not None else {}
        uses = allocation.uses if allocation is not None else ()
        assert {uuid: (use.share_milli, use.memory_mib) for uuid, use in uses} == held
        free = self.batch.snapshot.node(f"n-{self.name}").free_by_card
        for uuid, left, neighbour in (("GPU-0", free[0], NEIGHBOUR), ("GPU-1", free[1], 0)):
            share, mib = held.get(uuid, (0, 0))
            assert left is not None
            assert left.share_milli == 1000 - neighbour - share
            assert left.memory_mib == CARD_MIB - CARD_MIB * neighbour // 1000 - mib
        return allocation is not None

    def begins(self) -> Life:
        """A pod with an idle container is bound; it may start, or not."""
        self.node_says(self.rng.choice([None, False]))
        self.town.hear("leases", lease(self.now, f"n-{self.name}"), unheard=self.batch.is_away)
        self.grace = self.rng.choice([0, 30, 300, 3600])
        self.bound = self.now
        self.raw = gpu_pod(self.name, node=f"n-{self.name}", bound_ms=self.bound, grace_s=self.grace)
        ordinary = [part.container(name) for name, part in self.asks.ordinary.items()]
        self.raw["spec"]["containers"] = [*(ordinary or [worlds.container("main")]), worlds.container("idle")]
        if self.asks.init is not None:
            self.raw["spec"]["initContainers"] = [self.asks.init.container("setup")]
        if self.is_serving:
            self.raw["metadata"].setdefault("labels", {})["tier"] = "serving"
        devices = json.dumps({"version": 1, "containers": self.asks.placed})
        self.raw["metadata"]["annotations"]["bursar.dev/devices"] = devices
        yield self.told()
        self.batch.replicas[0].binds(self.raw)
        for _ in range(self.rng.randint(0, 3)):
            yield self.passes(1, 40)
        if self.rng.random() < 0.2:
            yield self.passes(100, 2000, is_heard=False)

    def status(self, phase: str, main: Json | None, idle: Json | None, setup: Json | None = None) -> Wait:
        """``main``: the state of each container that is neither idle nor an init container."""
        names = [each["name"] for each in self.raw["spec"]["containers"]]
        states = {name: idle if name == "idle" else main for name in names}
        self.raw["status"] |= worlds.status(
            phase, **{n: each for n, each in states.items() if each is not None}
        )
        if setup is not None and self.asks.init is not None:
            statuses = [{"name": "setup", "state": setup, "lastState": {}}]
            self.raw["status"]["initContainerStatuses"] = statuses
        written = {"time": iso(self.now), "fieldsV1": {"f:status": {"f:phase": {}}}}
        self.raw["metadata"]["managedFields"] = [written]
        return self.told()

    def runs(self) -> Generator[Wait, None, tuple[Json, Json]]:
        """The GPU containers end early; the idle one runs on. An init container ran before them."""
        if self.asks.init is not None:
            began = iso(self.now)
            yield self.status("Pending", None, None, worlds.running(began))
            yield self.passes(1, 30)
            yield self.status("Pending", None, None, worlds.terminated(began, iso(self.now)))
        start = iso(self.now)
        yield self.status("Running", worlds.running(start), worlds.running(start))
        yield self.passes(1, 30)
        main = worlds.terminated(start, iso(self.now))
        yield self.status("Running", main, worlds.running(start))
        yield self.passes(1, 30)
        return main, worlds.terminated(start, iso(self.now))

    def ends_by_proof(self) -> Life:
        main, idle = yield from self.runs()
        self.end = self.now
        yield self.passes(0, 50)
        assert self.is_held()
        yield self.status("Succeeded", main, idle)

    def ends_without_a_time(self) -> Life:
        main, _ = yield from self.runs()
        assert self.is_held()
        self.end = self.now
        yield self.status("Failed", main, UNKNOWN_END)

    def is_rejected(self) -> Life:
        """Its containers never started."""
        self.end = self.now
        yield self.status("Failed", None, None)

    def vanishes(self) -> Life:
        """Deleted, perhaps twice, perhaps kept by a finalizer, and then gone without terminal statuses."""
        if self.rng.random() < 0.7:
            yield from self.runs()
        for grace in self.rng.choice([[], [0], [120, 0], [36_000, 0]]):
            self.grace = max(self.grace, grace)
            self.raw["metadata"]["deletionGracePeriodSeconds"] = grace
            self.raw["metadata"]["deletionTimestamp"] = iso(self.now + grace * SECOND)
            yield self.told()
        deadline = self.now if "deletionTimestamp" in self.raw["metadata"] else None
        if self.rng.random() < 0.3:
            yield self.passes(20, 20)
        removed = self.now if deadline is None else min(self.now, max(deadline, self.evidence))
        lists = self.rng.random() < 0.5
        if lists:
            self.node_says(True)
        self.end = removed + min(max(self.grace, LEAST_GRACE), MAX_GRACE) * SECOND
        yield self.told(deleted=True)
        if lists:
            yield from self.is_listed_a_while(removed)

    def is_listed_a_while(self, removed: int) -> Life:
        listed = since = self.now
        for _ in range(self.rng.randint(0, 4)):
            yield self.passes(1, 400)
            assert self.is_held()
            listed = self.now
        is_followed = not self.batch.is_away and self.batch.away_ms < since
        if is_followed and self.rng.random() < 0.3:  # silent: the report is not fresh any more
            yield self.passes(60, 60, is_heard=False)
            self.node_says(True, ready="Unknown")
            self.end = max(self.end, listed)
        else:
            yield self.passes(1, 5)
            self.node_says(False)
            self.end = max(removed, self.now)
            assert not self.is_held()

    def check_the_charge(self, session: Session, posted: Iterable[Posting]) -> None:
        """The session has the cards, compute and MiB that were held, and its postings together are the rate
        of these from the binding to the end."""
        held = self.asks.held()
        assert json.loads(session.devices)["containers"] == self.asks.placed
        shares = (share or -(-1000 * mib // CARD_MIB) for share, mib in held.values())
        assert session.requested_milli == sum(shares)
        assert session.requested_mib == sum(mib for _, mib in held.values())
        steps: Counter[int] = Counter()
        for each in posted:
            steps[each.from_ms] += each.rate_milli
            steps[each.to_ms] -= each.rate_milli
        charged = {at: step for at, step in steps.items() if step}
        rate = parts_milli(held)
        expected = {self.bound: rate, self.end: -rate} if self.end > self.bound else {}
        assert charged == expected, f"{self.name}, {self.asks}"

    def is_gone(self) -> None:
        """A silent node speaks again and lists no pod; then pod and node are removed."""
        self.node_says(False)
        self.batch.replicas[0].cache.expire()
        assert not self.is_held()
        self.town.hear("pods", self.raw, deleted=True)
        for source, raw in (("leases", lease(self.now, f"n-{self.name}")), ("nodes", node(f"n-{self.name}"))):
            self.town.hear(source, raw, deleted=True)
