"""Gangs through random histories: pods come, end, grow and go, beside strangers with ports, labels and
anti-affinity; watches lag, calls fail, and both roles are killed at any point. The releaser, the timekeeper's
gang table, the extender's cache, filter, marks and starts are the real ones; the API server and
kube-scheduler are a few lines. What must hold is read from the objects alone.
"""

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_any
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.gang_table import Gangs
from scheduler_ext.snapshot.reservations import as_found_by
from tests.scheduler_ext import neighbours
from tests.scheduler_ext.gang_worlds import named_node, starts_of
from tests.scheduler_ext.worlds import percent
from tests.worlds import Json
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.request.cards import encode_placement
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed
from timekeeper.runtime.api_server import Answered, Lost, Reply
from timekeeper.settler.cluster.cluster_state import ClusterState, WatchUpdate
from timekeeper.settler.releaser import QUIET_MS, Releaser
from timekeeper.settler.state.gangs import GangTable
from timekeeper.store.fencing import Epoch

NAMESPACE = "default"
BUDGET, CARDS = "bursar.dev/budget", "bursar.dev/gang"
STARTED = "bursar.dev/gang-started"
DEADLINE_MS, LOOK_MS = 60_000, 10_000
START_MS = 1_800_000_000_000


class Database:
    """Of one epoch, which is never over."""

    @contextlib.contextmanager
    def reading(self) -> Iterator["Database"]:
        yield self

    def execute(self, _statement: object) -> "Database":
        return self

    def one(self) -> tuple[int, str]:
        return 1, "settler"


class KilledError(Exception):
    """A role is killed between two calls."""


class World:
    """Objects, and those that act on them. ``chance``: what fails, and when; ``share``: of a card, what each
    pod asks for; ``gangs``: the sizes of each by its name, as its owner says them."""

    def __init__(self, chance: random.Random, nodes: dict[str, int]) -> None:
        self.chance, self.share, self.now_ms, self.version = chance, 100, START_MS, 10
        self.failing = 0.1
        self.pods: dict[str, Json] = {}
        self.gangs: dict[str, int] = {}
        self.said: dict[str, int] = {}  # the sizes that their templates say
        self.least: dict[str, int] = {}
        self.ended: dict[str, int] = {}  # gang -> members that ended well, whose owner makes no others
        self.refused: set[str] = set()  # names of pods that kube-scheduler gives no node
        self.partial_ms: dict[str, int] = {}  # gang -> since when it has some nodes, and too few
        self.ran: set[str] = set()  # gangs that have had all that they need
        self.wrong: list[str] = []
        self.unheard_ms: list[int] = []  # when the events were that the extender has not heard yet
        self.nodes = [named_node(name, count) for name, count in nodes.items()]
        self.strangers: dict[str, Json] = {}  # pods of no gang, without GPUs, that run
        self.rules: dict[str, Json] = {}  # gang -> fields of its pods' specs
        self.must_fit = False  # what strangers refuse is known to whoever plans
        self.seen: dict[str, list[tuple[Json, bool]]] = {"timekeeper": [], "extender": []}
        self.start_timekeeper()
        self.start_extender()

    # the API server

    def write(self, raw: Json, deleted: bool = False) -> None:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        if deleted:
            del self.pods[raw["metadata"]["uid"]]
        else:
            self.pods[raw["metadata"]["uid"]] = raw
        for queue in self.seen.values():
            queue.append((copy.deepcopy(raw), deleted))
        self.unheard_ms.append(self.now_ms)
        if gang_of(raw):
            self.look(gang_of(raw))

    def look(self, gang: str) -> None:
        """What must hold of the gang's objects at each moment."""
        there, need = self.bound(gang), self.need(gang)
        bound, is_marked = len(there), any(STARTED in each["metadata"]["annotations"] for each in there)
        if bound >= need and (is_marked or bound >= self.seen_need(gang)):
            self.ran.add(gang)
        if not self.living(gang):
            self.ran.discard(gang)
        is_partial = 0 < bound < need and gang not in self.ran
        if not is_partial:
            self.partial_ms.pop(gang, None)
        else:
            self.partial_ms.setdefault(gang, self.now_ms)

    def create(self, name: str, gang: str) -> None:
        size, least = self.said[gang], self.least[gang]
        named = {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size), "bursar.dev/held": "turn"}
        named |= {"bursar.dev/gang-minimum": str(least), "bursar.dev/gang-key": f"job/{gang}/uid-{gang}"}
        raw = percent(self.share, name=name, annotations=named)
        created = f"2027-01-15T08:00:{len(self.pods) % 60:02}Z"
        raw["metadata"] |= {"namespace": NAMESPACE, "creationTimestamp": created}
        raw["metadata"]["uid"] = f"uid-{name}-{self.version}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": gang, "uid": f"uid-{gang}"}
        raw["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        raw["spec"]["schedulingGates"] = [{"name": BUDGET}, {"name": CARDS}]
        raw["status"] = {"phase": "Pending"}
        raw["metadata"]["labels"]["app"] = "train"
        raw["spec"] |= self.rules[gang]
        number = (
            29500 + int(name.rpartition("-")[2]) + 10 * int(gang[1:])
        )  # each member has a port of its own
        raw["spec"]["containers"][0]["ports"] = [{"containerPort": number, "hostPort": number}]
        self.write(raw)

    def stranger(self) -> None:
        """One comes, is deleted, or goes."""
        if self.strangers and self.chance.random() < 0.5:
            raw = copy.deepcopy(self.chance.choice(list(self.strangers.values())))
            is_gone = "deletionTimestamp" in raw["metadata"]
            raw["metadata"]["deletionTimestamp"] = "2027-01-15T08:30:00Z"
            return self.hear_of(raw, is_gone)
        number = 29500 + self.chance.randrange(4) + 10 * self.chance.randrange(3)
        ports = [{"containerPort": number, "hostPort": number}] if self.chance.random() < 0.5 else []
        where = self.chance.choice(self.nodes)["metadata"]["name"]
        spec: Json = {"nodeName": where, "containers": [{"name": "main", "ports": ports}]}
        if self.chance.random() < 0.3:
            spec["affinity"] = {"podAntiAffinity": {neighbours.REQUIRED: [about("train")]}}
        metadata = {"namespace": NAMESPACE, "uid": f"uid-s-{self.version}", "labels": {"app": "other"}}
        metadata["name"] = f"s-{self.version}"
        return self.hear_of({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})

    def hear_of(self, raw: Json, deleted: bool = False) -> None:
        """The stranger is as given, or gone."""
        self.version += 1
        self.strangers[raw["metadata"]["uid"]] = raw
        if deleted:
            del self.strangers[raw["metadata"]["uid"]]
        self.seen["extender"].append((raw, deleted))
        self.unheard_ms.append(self.now_ms)

    def is_accepted(self, raw: Json, name: str) -> bool:
        """Whether the pods that are there let kube-scheduler bind this one to the node."""
        there = [pod for pod in self.pods.values() if not waits(pod)]
        where = next(node for node in self.nodes if node["metadata"]["name"] == name)
        return neighbours.accepts(raw, where, [*there, *self.strangers.values()], self.nodes, {})

    def control(self, gang: str) -> None:
        """Its owner makes one pod that is missing, unless its place is that of a pod that ended well, or
        deletes one too many."""
        names = {each["metadata"]["name"] for each in self.living(gang)}
        many = [
            each for each in self.living(gang) if each["metadata"]["name"] >= f"{gang}-{self.gangs[gang]}"
        ]
        if many:
            return self.write(many[0], deleted=True)
        kept = {each["metadata"]["name"] for each in self.pods.values()}
        wanted = [f"{gang}-{at}" for at in range(self.ended[gang], self.gangs[gang])]
        missing = [name for name in wanted if name not in names and name not in kept]
        if missing:
            self.create(missing[0], gang)
        return None

    def job(self, gang: str) -> Json:
        """The owner. Its template is fixed, its numbers are not."""
        count = self.gangs[gang]
        spec = {"parallelism": count, "completions": count}
        metadata, status = {"name": gang, "uid": f"uid-{gang}"}, {"succeeded": self.ended[gang]}
        return {"metadata": metadata, "spec": spec, "status": status}

    def call(self, method: str, path: str, body: Any = None, **_more: object) -> Reply:
        """A call of the extender, or of the timekeeper."""
        if self.chance.random() < self.failing / 3:
            raise KilledError
        if method == "GET":
            return Answered(200, self.job(path.rpartition("/")[2]))
        if self.chance.random() < self.failing:
            return Lost("no answer")
        parts = path.split("/")
        found = (each for each in self.pods.values() if each["metadata"]["name"] == parts[6])
        raw = next(found, None)
        if raw is None:
            return Answered(404, {"message": "not found"})
        changed, only = copy.deepcopy(raw), body.get("metadata", {}).get("uid", "")
        if parts[-1] == "eviction":
            only = body["deleteOptions"]["preconditions"]
            if only != {"uid": raw["metadata"]["uid"], "resourceVersion": raw["metadata"]["resourceVersion"]}:
                return Answered(409, {"message": "Precondition failed"})
            self.evict(raw)
            return Answered(201, {})
        if only and only != raw["metadata"]["uid"]:
            return Answered(409, {"message": "another pod"})
        version = raw["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            return Answered(409, {"message": "it has changed"})
        gone = [each["name"] for each in body.get("spec", {}).get("schedulingGates", ())]
        gates = [each for each in changed["spec"].get("schedulingGates", ()) if each["name"] not in gone]
        changed["spec"]["schedulingGates"] = gates
        changed["metadata"]["annotations"] |= body["metadata"].get("annotations", {})
        self.write(changed)
        return Lost("no answer") if self.chance.random() < self.failing else Answered(200, changed)

    def evict(self, raw: Json) -> None:
        """For a start that came to nothing: kubelet and grace period take no time here."""
        gang = gang_of(raw)
        if len(self.bound(gang)) >= self.need(gang):
            self.wrong.append(f"{raw['metadata']['name']} is evicted while its gang is whole")
        if gang in self.ran:
            self.wrong.append(f"{raw['metadata']['name']} of a gang that has started is evicted")
        for each in self.bound(gang):
            self.write(each, deleted=True)

    # the timekeeper

    def start_timekeeper(self) -> None:
        self.cluster, self.table, self.view = ClusterState(), GangTable(), HeldView()
        self.seen["timekeeper"].clear()
        found = (read_pod(raw) for raw in self.pods.values())
        self._apply(ObjectsListed(tuple(each for each in found if isinstance(each, LedgerPod))))
        database: Any = Database()
        self.releaser = Releaser(
            database,
            Epoch(1, "settler"),
            lambda path, body: self.call("PATCH", path, body),
            lambda *_: None,
            lambda: self.view,
            lambda: self.now_ms,
        )

    def _apply(self, change: Any) -> None:
        self.cluster.apply(WatchUpdate("pods", self.now_ms, change))

    def step_timekeeper(self) -> None:
        pods = self.cluster.pods.values()
        held = {each.uid: held_pod(each) for each in pods if each.is_gated and each.can_be_bound}
        self.table.update(self.cluster, held, "bursar-scheduler")
        self.view = HeldView(pods=held, gangs=self.table.waiting, at_ms=self.now_ms)
        try:
            self.releaser.step()
        except KilledError:
            self.start_timekeeper()

    # the extender, and kube-scheduler

    def start_extender(self) -> None:
        self.cache = ClusterCache(lambda: self.now_ms, lambda _: None)
        self.seen["extender"].clear()
        self.unheard_ms.clear()
        self.cache.nodes_listed(map(read_node, self.nodes))
        there = [*self.pods.values(), *self.strangers.values()]
        self.cache.pods_listed([read_any(raw) for raw in there])
        given = partial(PlanInput, standings=UNHEARD, policies=lambda _: BINPACK)
        self.starts = starts_of(self, self.cache, given, DrainTurns(120_000, 0), gangs=Gangs())

    def step_extender(self) -> None:
        self.cache.expire()
        try:
            self.starts.step()
        except KilledError:
            self.start_extender()

    def schedule(self) -> None:
        """kube-scheduler tries a pod without a gate; the extender binds it where cards are kept for it."""
        ready = [each for each in self.pods.values() if waits(each) and not gates_of(each)]
        if not ready:
            return
        raw = self.chance.choice(ready)
        known = self.cache.snapshot.pods.get(raw["metadata"]["uid"])
        if known is None or known.version != raw["metadata"]["resourceVersion"] or known.request is None:
            return
        if raw["metadata"]["name"] in self.refused:
            if self.chance.random() < 0.5:
                self.starts.tried(known.uid)
            return
        self.starts.tried(known.uid)
        where, allocation = (
            self.cache.snapshot.allocated_on.get(known.uid),
            self.cache.snapshot.allocation(known.uid),
        )
        if where is None or allocation is None or allocation.state != "planned":
            return
        if not self.is_accepted(raw, where):
            if self.must_fit:
                self.wrong.append(f"{known.name} is planned on {where}, where strangers refuse it")
            return
        there = self.cache.snapshot.node(where)
        placement = fit(known.request, as_found_by(known.uid, there), BINPACK)
        if isinstance(placement, Refusal) or self.cache.assume(known, there, placement) is not True:
            return
        mark = self.starts.mark_of(known)
        if self.chance.random() < self.failing:
            return self.cache.forget(known.uid)
        bound = copy.deepcopy(raw)
        bound["spec"]["nodeName"] = there.name
        bound["metadata"]["annotations"]["bursar.dev/devices"] = encode_placement(placement)
        if mark:
            bound["metadata"]["annotations"][STARTED] = mark
            if self.unheard_ms and self.now_ms > self.unheard_ms[0] + LOOK_MS:
                self.ran.add(gang_of(raw))  # it was whole by what the extender knew so long ago
        self.write(bound)
        if self.chance.random() < self.failing:
            return self.start_extender()
        return self.starts.bound(known)

    # watches and time

    def hear(self, who: str) -> None:
        """One event of the watch arrives."""
        if not self.seen[who]:
            return
        raw, deleted = self.seen[who].pop(0)
        if who == "extender":
            del self.unheard_ms[0]
        if who == "timekeeper":
            pod = read_pod(raw)
            assert isinstance(pod, LedgerPod)
            self._apply(ObjectChanged(pod, deleted))
        else:
            both = read_any(raw)
            (self.cache.pod_deleted if deleted else self.cache.pod_updated)(both)

    def hear_all(self) -> None:
        for who in self.seen:
            while self.seen[who]:
                self.hear(who)

    # what the objects say

    def living(self, gang: str) -> list[Json]:
        every = (each for each in self.pods.values() if gang_of(each) == gang)
        return [each for each in every if each["status"]["phase"] != "Succeeded"]

    def bound(self, gang: str) -> list[Json]:
        return [each for each in self.living(gang) if "nodeName" in each["spec"]]

    def need(self, gang: str) -> int:
        """Its minimum, less the members that ended well; where fewer live, less those whose objects are gone
        and as many as its owner still makes."""
        if len(self.living(gang)) >= self.seen_need(gang):
            return self.seen_need(gang)
        return max(0, min(self.least[gang], self.gangs[gang]) - self.ended[gang])

    def seen_need(self, gang: str) -> int:
        """The same by what its pods alone say."""
        every = [each for each in self.pods.values() if gang_of(each) == gang]
        return max(0, self.least[gang] - (len(every) - len(self.living(gang))))

    def too_long(self) -> list[str]:
        """Gangs that have had some nodes, and too few, for longer than a deadline."""
        return [
            gang for gang, at_ms in self.partial_ms.items() if self.now_ms > at_ms + DEADLINE_MS + LOOK_MS
        ]

    def overcommitted(self) -> list[str]:
        """Cards of which more is given out than there is."""
        used: dict[str, int] = {}
        for each in self.pods.values():
            if each["status"]["phase"] == "Succeeded":
                continue
            devices = each["metadata"]["annotations"].get("bursar.dev/devices")
            for containers in json.loads(devices)["containers"].values() if devices else ():
                for taken in containers:
                    used[taken["uuid"]] = used.get(taken["uuid"], 0) + taken["share_milli"]
        return [uuid for uuid, milli in used.items() if milli > 1_000]

    def kept(self) -> list[str]:
        """Pods for which cards are kept, as the extender knows."""
        states = ((uid, self.cache.snapshot.allocation(uid)) for uid in self.pods)
        return [uid for uid, each in states if each is not None and each.state != "bound"]

    def free(self) -> int:
        """How many more pods the cards would take."""
        rooms = sum(len(cards_of(each)) for each in self.nodes) * (100 // self.share)
        return rooms - sum(len(self.bound(gang)) for gang in self.gangs)


W = TypeVar("W", bound=World)


def gang_of(raw: Json) -> str:
    """The pod's gang; "" of a stranger."""
    return str(raw["metadata"]["annotations"].get("bursar.dev/gang", ""))


def gates_of(raw: Json) -> list[str]:
    return [each["name"] for each in raw["spec"].get("schedulingGates", ())]


def waits(raw: Json) -> bool:
    return "nodeName" not in raw["spec"]


def cards_of(raw: Json) -> list[Json]:
    found: list[Json] = json.loads(raw["metadata"]["annotations"]["bursar.dev/inventory"])["cards"]
    return found


def held_pod(pod: LedgerPod) -> HeldPod:
    return HeldPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=0,
        created_ms=pod.created_ms,
        rate_milli=1_000,
        needs_budget=False,
        gang=pod.gang.key if pod.gang is not None else "",
    )


EVENTS = {
    "control": 5,
    "hear": 14,
    "timekeeper": 6,
    "extender": 8,
    "schedule": 9,
    "lose": 1,
    "end": 0.7,
    "grow": 0.4,
    "shrink": 0.4,
    "clean": 0.7,
    "refuse": 0.7,
    "stranger": 1.5,
    "kill timekeeper": 0.4,
    "kill extender": 0.4,
    "time": 2,
}


def world_of(seed: int) -> World:
    return filled(World, seed)


def filled(kind: type[W], seed: int) -> W:
    """A world of this kind, with nodes and gangs."""
    chance = random.Random(seed)
    world = kind(chance, {f"n{at}": chance.randint(1, 3) for at in range(chance.randint(1, 3))})
    world.share = chance.choice([30, 50, 100])
    for at in range(chance.randint(1, 3)):
        size = chance.randint(1, 4)
        world.gangs[f"g{at}"], world.said[f"g{at}"], world.ended[f"g{at}"] = size, size, 0
        world.least[f"g{at}"] = chance.randint(1, size) if chance.random() < 0.3 else size
        apart = {"affinity": {"podAntiAffinity": {neighbours.REQUIRED: [about("other")]}}}
        even = {"topologySpreadConstraints": [{**about("other"), "maxSkew": 1}]}
        world.rules[f"g{at}"] = chance.choice([{}, apart, even])
    return world


def about(app: str) -> Json:
    """The pods of a label that are on one node."""
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}


def step(world: World, chance: random.Random) -> None:
    """One event."""
    what = chance.choices(list(EVENTS), list(EVENTS.values()))[0]
    gang = chance.choice(list(world.gangs))
    if what == "control":
        world.control(gang)
    elif what == "hear":
        world.hear(chance.choice(("timekeeper", "extender")))
    elif what == "timekeeper":
        world.now_ms += QUIET_MS
        world.step_timekeeper()
    elif what == "extender":
        world.now_ms += 500
        world.step_extender()
    elif what == "schedule":
        world.schedule()
    elif what == "lose" and world.living(gang):
        world.write(chance.choice(world.living(gang)), deleted=True)
    elif what == "end":
        end_well(world, chance, gang)
    elif what == "grow" and world.least[gang] == world.gangs[gang] < 4 and gang in world.ran:
        world.gangs[gang] += 1  # its owner is scaled: its pods keep the size that they were created with
        world.said[gang] = world.gangs[gang]
    elif what == "shrink" and gang not in world.ran and world.gangs[gang] > world.ended[gang] + 1:
        world.gangs[gang] -= 1
    elif what == "clean":  # the node of those that ended well is gone
        for raw in [each for each in world.pods.values() if each["status"]["phase"] == "Succeeded"]:
            world.write(raw, deleted=True)
    elif what == "stranger":
        world.stranger()
    elif what == "refuse" and world.pods:
        world.refused ^= {chance.choice(list(world.pods.values()))["metadata"]["name"]}
    elif what == "kill timekeeper":
        world.start_timekeeper()
    elif what == "kill extender":
        world.start_extender()
    else:
        world.now_ms += chance.choice((100, 1_000, 5_000))


def end_well(world: World, chance: random.Random, gang: str) -> None:
    """The member of the lowest index ends well, as that of an Indexed Job; its pod stays, or goes."""
    name = f"{gang}-{world.ended[gang]}"
    found = [each for each in world.bound(gang) if each["metadata"]["name"] == name]
    if gang in world.ran and found and len(world.living(gang)) > 1:
        done = copy.deepcopy(found[0])
        done["status"]["phase"] = "Succeeded"
        world.ended[gang] += 1
        world.write(done)


def lived(seed: int) -> World:
    """A world after a random history, then a quiet time without failures."""
    world = world_of(seed)
    for _ in range(world.chance.randint(60, 240)):
        step(world, world.chance)
        assert world.overcommitted() == []
        assert world.wrong == []
    world.failing, world.refused = 0.0, set()
    world.hear_all()
    for turn in range(450):
        world.now_ms += 2_000
        world.must_fit = turn > 40  # a start that began before is over
        for raw in list(world.strangers.values()) if turn == 75 else ():
            world.hear_of(raw, deleted=True)
        if turn % 4 == 0:
            world.step_timekeeper()
        world.hear_all()
        world.step_extender()
        world.hear_all()
        for _ in range(4):
            world.schedule()
            world.hear_all()
        for gang in world.gangs:
            world.control(gang)
        assert world.too_long() == [], seed
        assert world.wrong == [], seed
        assert world.overcommitted() == [], seed
    return world


SEEDS = [*range(30), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(30, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_end_each_gang_has_what_it_needs_or_holds_nothing(seed: int) -> None:
    world = lived(seed)

    for gang in world.gangs:
        bound = len(world.bound(gang))
        assert bound == 0 or bound >= world.need(gang) or gang in world.ran, (seed, gang)
    assert world.kept() == [], seed
    for gang, size in world.gangs.items():
        missing = size - world.ended[gang] - len(world.bound(gang))
        least = max(1, world.need(gang)) if not world.bound(gang) else 1
        assert missing <= 0 or least > world.free(), (seed, gang, world.free())
