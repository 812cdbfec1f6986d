"""Gangs through random histories: pods come and go, watches lag, calls fail, and both roles are killed at any
point. The releaser, the gang table, the extender's cache, planner and reservations are the real ones; the API
server and kube-scheduler are a few lines. What must hold is read from the objects alone."""

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.reserve import GangReservations, Written
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.late_cards import LatePlace
from scheduler_ext.snapshot.late_changes import places_for
from scheduler_ext.snapshot.node_info import NodeInfo, without_pod
from scheduler_ext.snapshot.reservations import as_found_by
from tests.scheduler_ext.worlds import node, percent
from tests.worlds import Json, card
from timekeeper.accounts.held.gangs import AskForCards, let_go
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.ledger.reservation import Reservation, condition_of, withdrawn
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement
from timekeeper.runtime.api_server import Answered, Lost, Reply
from timekeeper.settler.cluster.cluster_state import ClusterState, ItemChanged, ListReplaced, WatchUpdate
from timekeeper.settler.gang_starts import Call, GangAnswer, GangStarts, body_of
from timekeeper.settler.releaser import QUIET_MS, Releaser
from timekeeper.settler.state.gangs import GangTable
from timekeeper.store.fencing import Epoch

NAMESPACE = "default"
DEADLINE_MS, LATE_MS, SOON_MS = 60_000, 30_000, 20_000
START_MS = 1_800_000_000_000
HELD = "bursar.dev/CardsHeld"


class Database:
    """Of one epoch, which is never over."""

    @contextlib.contextmanager
    def reading(self) -> Iterator["Database"]:
        yield self

    def execute(self, _statement: object) -> "Database":
        return self

    def one(self) -> tuple[int, str]:
        return 1, "settler"


class World:
    """Objects, and those that act on them. ``chance``: what fails, and when."""

    def __init__(self, chance: random.Random, nodes: dict[str, int]) -> None:
        self.chance, self.share, self.now_ms, self.version = chance, 100, START_MS, 10
        self.failing = 0.1
        self.pods: dict[str, Json] = {}
        self.late: dict[str, int] = {}  # gang -> how many pods follow its members
        self.absent: set[str] = set()  # gangs whose controller creates none of these
        # those that came while cards were kept for them and nothing failed, and until when they have a node
        self.promised: dict[str, int] = {}
        self.ran: set[str] = set()  # gangs of which all members ran at one time
        self.refused: set[str] = set()  # pods that kube-scheduler gives no node
        self.whole: set[tuple[str, int]] = (
            set()
        )  # gangs and epochs in which all members had cards at one time
        self.nodes = [node(name, *(card(at) for at in range(count))) for name, count in nodes.items()]
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
        if is_follower(raw):
            return
        gang, epoch, size = gang_of(raw), epoch_of(raw), size_of(raw)
        mine = self.members(gang)
        if sum("nodeName" in each["spec"] for each in mine) >= size:
            self.ran.add(gang)
        having = sum("nodeName" in each["spec"] or epoch_of(each) == epoch for each in mine)
        if having >= size:
            self.whole.add((gang, epoch))

    def create(self, name: str, gang: str, size: int, share: int) -> None:
        named = {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size), "bursar.dev/held": "turn"}
        if self.late.get(gang):
            template = {"spec": percent(share)["spec"]}
            named["bursar.dev/gang-late"] = json.dumps([{"count": self.late[gang], "template": template}])
        self._create(percent(share, name=name, annotations=named), name, is_gated=True)

    def follow(self, gang: str) -> None:
        """The controller of a gang that runs creates one of those that follow, if one is missing."""
        size = max((size_of(each) for each in self.members(gang)), default=0)
        names = {each["metadata"]["name"] for each in self.pods.values()}
        missing = [at for at in range(self.late[gang]) if f"follower-{gang}-{at}" not in names]
        if missing and gang not in self.absent and len(self.bound(gang)) == size > 0:
            name = f"follower-{gang}-{missing[0]}"
            raw = percent(self.share, name=name, annotations={"bursar.dev/gang": gang})
            soon_ms = self.now_ms + SOON_MS
            late = [it for _, it in self.cache.snapshot.late.items() if it.until_ms > soon_ms]
            kept = [each.pod.name for it in late for each in it.free]
            if not self.failing and any(each.startswith(f"{gang}-") for each in kept):
                self.promised[name] = soon_ms
            self._create(raw, name, is_gated=False)

    def _create(self, raw: Json, name: str, is_gated: bool) -> None:
        created = f"2027-01-15T08:00:{len(self.pods) % 60:02}Z"
        raw["metadata"] |= {"namespace": NAMESPACE, "creationTimestamp": created}
        raw["metadata"]["uid"] = f"uid-{name}-{self.version}"
        if is_gated:
            raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/budget"}]
        raw["status"] = {"phase": "Pending"}
        self.write(raw)

    def remove_gate(self, path: str, _body: Any) -> Reply:
        if self.chance.random() < self.failing:
            return Lost("no answer")
        name = path.rpartition("/")[2]
        raw = next((each for each in self.pods.values() if each["metadata"]["name"] == name), None)
        if raw is None:
            return Answered(404, {"message": "not found"})
        assert (gang_of(raw), epoch_of(raw)) in self.whole, "a gate is removed of a gang that is not whole"
        changed = copy.deepcopy(raw)
        changed["spec"].pop("schedulingGates", None)
        self.write(changed)
        return Lost("no answer") if self.chance.random() < self.failing else Answered(200, {})

    def hold(self, pod: Pod, reservation: Reservation) -> Written:
        if self.chance.random() < self.failing / 3:
            raise KilledError
        raw = self.pods.get(pod.uid)
        if (
            raw is None
            or raw["metadata"]["resourceVersion"] != pod.version
            or self.chance.random() < self.failing
        ):
            return "refused"
        self._condition(raw, condition_of(reservation))
        return "unclear" if self.chance.random() < self.failing else "written"

    def withdraw(self, pod: Pod) -> None:
        if pod.uid in self.pods:
            self._condition(self.pods[pod.uid], withdrawn("NotWhole", "not all", self.now_ms))

    def _condition(self, raw: Json, condition: Json) -> None:
        changed = copy.deepcopy(raw)
        changed["status"]["conditions"] = [condition]
        self.write(changed)

    # the timekeeper

    def start_timekeeper(self) -> None:
        self.cluster, self.table, self.view = ClusterState(), GangTable(), HeldView()
        self.seen["timekeeper"].clear()
        ledger_pods = tuple(
            each for raw in self.pods.values() if isinstance(each := read_pod(raw), LedgerPod)
        )
        self._apply(ListReplaced(ledger_pods))
        database: Any = Database()

        def submit(call: Call) -> "Future[GangAnswer | None]":
            done: Future[GangAnswer | None] = Future()
            try:
                done.set_result(call())
            except KilledError:
                self.start_extender()
                done.set_result(GangAnswer(0, "killed"))
            return done

        starts = GangStarts(
            self.reserve,
            lambda *_: None,
            lambda: self.now_ms,
            submit=submit,
            deadline_ms=DEADLINE_MS,
            late_ms=LATE_MS,
        )
        self.releaser = Releaser(
            database,
            Epoch(1, "settler"),
            self.remove_gate,
            lambda *_: None,
            lambda: self.view,
            lambda: self.now_ms,
            gangs=starts,
        )
        self.began_ms = self.now_ms

    def _apply(self, change: Any) -> None:
        self.cluster.apply(WatchUpdate("pods", self.now_ms, change))

    def step_timekeeper(self) -> None:
        pods = self.cluster.pods.values()
        held = {each.uid: held_pod(each) for each in pods if each.is_gated and each.can_be_bound}
        self.table.update(self.cluster, held, self.now_ms, "bursar-scheduler")
        self.view = HeldView(pods=held, gangs=self.table.waiting, at_ms=self.now_ms)
        self.releaser.step()
        for it in self.table.waiting.values():
            for uid in let_go(it, self.now_ms):
                if uid in self.pods:
                    self.write(self.pods[uid], deleted=True)  # kubelet and grace period take no time here

    def reserve(self, asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        body = body_of(asked, epoch, until_ms)
        said = json.loads(self.reservations(json.dumps(body).encode()))
        return GangAnswer(said["reserved"], said["why"])

    # the extender, and kube-scheduler

    def start_extender(self) -> None:
        self.cache = ClusterCache(lambda: self.now_ms, lambda _: None)
        self.seen["extender"].clear()
        self.cache.nodes_listed(map(read_node, self.nodes))
        self.cache.pods_listed([read_any(raw) for raw in self.pods.values()])
        self.reservations = GangReservations(
            self.cache,
            lambda snapshot: PlanInput(snapshot, UNHEARD, lambda _: BINPACK),
            self.hold,
            self.withdraw,
            lambda: True,
            lambda: self.now_ms,
            lambda *_, **__: None,
        )

    def schedule(self) -> None:
        """kube-scheduler tries a pod without a gate, and the extender binds it where cards are reserved."""
        self.cache.expire()
        ready = [
            each for each in self.pods.values() if not each["spec"].keys() & {"nodeName", "schedulingGates"}
        ]
        ready = [each for each in ready if each["metadata"]["name"] not in self.refused]
        if not ready:
            return
        raw = self.chance.choice(ready)
        pod = read_any(raw)
        known = self.cache.snapshot.pods.get(raw["metadata"]["uid"])
        assert isinstance(pod, Pod)
        assert pod.request is not None
        if known is None or known.version != pod.version:
            return
        places = places_for(self.cache.snapshot, known)
        reserved = self.cache.snapshot.allocated_on.get(pod.uid)
        anywhere = [*places, *(each["metadata"]["name"] for each in self.nodes)] if known.group else []
        for where in anywhere if reserved is None else [reserved]:
            there, place = self.cache.snapshot.node(where), places.get(where)
            found = as_found_by(pod.uid, there)
            found = found if place is None else without_pod(found, place.pod.uid)
            placement = fit(pod.request, found, BINPACK)
            if not isinstance(placement, Refusal):
                self._bind(raw, known, there, placement, place)
                return

    def _bind(
        self, raw: Json, pod: Pod, there: NodeInfo, placement: Placement, place: LatePlace | None
    ) -> None:
        if self.cache.assume(pod, there, placement, place=place) is not True:
            return
        if self.chance.random() < self.failing:
            return self.cache.forget(pod.uid)
        bound = copy.deepcopy(raw)
        bound["spec"]["nodeName"] = there.name
        bound["metadata"]["annotations"]["bursar.dev/devices"] = encode_placement(placement)
        return self.write(bound)

    # watches and time

    def hear(self, who: str) -> None:
        """One event of the watch arrives."""
        if not self.seen[who]:
            return
        raw, deleted = self.seen[who].pop(0)
        if who == "timekeeper":
            pod = read_pod(raw)
            assert isinstance(pod, LedgerPod)
            self._apply(ItemChanged(pod, deleted))
        else:
            both = read_any(raw)
            (self.cache.pod_deleted if deleted else self.cache.pod_updated)(both)

    def hear_all(self) -> None:
        for who in self.seen:
            while self.seen[who]:
                self.hear(who)

    # what the objects say

    def members(self, gang: str) -> list[Json]:
        return [each for each in self.pods.values() if gang_of(each) == gang and not is_follower(each)]

    def bound(self, gang: str) -> list[Json]:
        return [each for each in self.members(gang) if "nodeName" in each["spec"]]

    def without_promised_cards(self) -> list[str]:
        """Those that follow and have no node in time, though cards were kept for them."""
        bound = {each["metadata"]["name"] for each in self.pods.values() if on_node(each)}
        return [name for name, by_ms in self.promised.items() if by_ms < self.now_ms and name not in bound]

    def followers(self, gang: str) -> list[Json]:
        return [each for each in self.pods.values() if gang_of(each) == gang and is_follower(each)]

    def overcommitted(self) -> list[str]:
        """Cards of which more is given out than there is."""
        used: dict[str, int] = {}
        for each in self.pods.values():
            devices = each["metadata"]["annotations"].get("bursar.dev/devices")
            for containers in json.loads(devices)["containers"].values() if devices else ():
                for taken in containers:
                    used[taken["uuid"]] = used.get(taken["uuid"], 0) + taken["share_milli"]
        return [uuid for uuid, milli in used.items() if milli > 1_000]

    def reserved(self) -> list[str]:
        """Pods without a node for which cards are held now, as the extender knows."""
        self.cache.expire()
        states = ((uid, self.cache.snapshot.allocation(uid)) for uid in self.pods)
        return [uid for uid, each in states if each is not None and each.state != "bound"]


def gang_of(raw: Json) -> str:
    return str(raw["metadata"]["annotations"]["bursar.dev/gang"])


def on_node(raw: Json) -> bool:
    return "nodeName" in raw["spec"]


def is_follower(raw: Json) -> bool:
    """Whether it is created only after the gang's members run."""
    return "bursar.dev/gang-size" not in raw["metadata"]["annotations"]


def size_of(raw: Json) -> int:
    return int(raw["metadata"]["annotations"]["bursar.dev/gang-size"])


def epoch_of(raw: Json) -> int:
    """Of the reservation on the object; 0: it has none."""
    for each in raw["status"].get("conditions", ()):
        if each["type"] == HELD and each["status"] == "True":
            return int(json.loads(each["message"])["epoch"])
    return 0


def cards_of(raw: Json) -> list[Json]:
    found: list[Json] = json.loads(raw["metadata"]["annotations"]["bursar.dev/inventory"])["cards"]
    return found


class KilledError(Exception):
    """The extender is killed between two calls."""


def held_pod(pod: LedgerPod) -> HeldPod:
    return HeldPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=0,
        created_ms=pod.created_ms,
        rate_milli=1_000,
        needs_budget=False,
    )


def lived(seed: int) -> tuple[World, dict[str, int]]:
    """A world after a random history, then a quiet time without failures."""
    chance = random.Random(seed)
    sizes = {f"g{at}": chance.randint(1, 4) for at in range(chance.randint(1, 3))}
    world = World(chance, {f"n{at}": chance.randint(1, 3) for at in range(chance.randint(1, 3))})
    share = world.share = chance.choice([30, 50, 100])
    world.late = {gang: chance.choice([0, 0, 1, 2]) for gang in sizes}
    world.absent = {gang for gang in sizes if chance.random() < 0.3}
    wanted = [(gang, at) for gang, size in sizes.items() for at in range(size)]
    chance.shuffle(wanted)
    for _ in range(chance.randint(40, 160)):
        step(world, chance, wanted, sizes, share)
        assert world.overcommitted() == []
    world.failing, world.refused = 0.0, set()
    for gang, at in wanted:
        world.create(f"{gang}-{at}", gang, sizes[gang], share)
    world.hear_all()
    for _ in range(400):
        world.now_ms += 500
        world.step_timekeeper()
        world.hear_all()
        for _ in range(4):
            world.schedule()
            world.hear_all()
        for gang, size in sizes.items():  # its controller makes new pods for those that were evicted
            names = {each["metadata"]["name"] for each in world.pods.values()}
            for at in range(size):
                if f"{gang}-{at}" not in names:
                    world.create(f"{gang}-{at}", gang, size, share)
            world.follow(gang)
        assert world.without_promised_cards() == []
        assert world.overcommitted() == []
    return world, sizes


EVENTS = {"create": 4, "hear": 12, "timekeeper": 6, "schedule": 8, "delete": 1, "time": 4} | {
    "kill timekeeper": 0.5,
    "kill extender": 0.5,
    "refuse": 1,
    "follow": 2,
}


def step(
    world: World, chance: random.Random, wanted: list[tuple[str, int]], sizes: dict[str, int], share: int
) -> None:
    """One event."""
    what = chance.choices(
        (
            "create",
            "hear",
            "timekeeper",
            "schedule",
            "delete",
            "kill timekeeper",
            "kill extender",
            "refuse",
            "time",
            "follow",
        ),
        (4, 12, 6, 8, 1, 0.5, 0.5, 1, 4, 2),
    )[0]
    if what == "create" and wanted:
        gang, at = wanted.pop()
        world.create(f"{gang}-{at}", gang, sizes[gang], share)
    elif what == "hear":
        world.hear(chance.choice(("timekeeper", "extender")))
    elif what == "timekeeper":
        world.now_ms += QUIET_MS
        world.step_timekeeper()
    elif what == "schedule":
        world.schedule()
    elif what == "delete" and world.pods:
        raw = chance.choice(list(world.pods.values()))
        world.write(raw, deleted=True)
        gang, _, at_text = raw["metadata"]["name"].partition("-")
        if not is_follower(raw):
            wanted.append((gang, int(at_text)))
    elif what == "follow":
        world.follow(chance.choice(list(sizes)))
    elif what == "refuse" and world.pods:
        world.refused ^= {chance.choice(list(world.pods.values()))["metadata"]["name"]}
    elif what == "kill timekeeper":
        world.start_timekeeper()
    elif what == "kill extender":
        world.start_extender()
    else:
        world.now_ms += chance.choice((100, 1_000, 20_000))


SEEDS = [*range(30), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(30, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_end_each_gang_is_whole_or_holds_nothing(seed: int) -> None:
    world, sizes = lived(seed)

    for gang, size in sizes.items():
        assert len(world.bound(gang)) in (0, size) or gang in world.ran, (seed, gang)
    assert world.reserved() == [], seed
    rooms = sum(len(cards_of(each)) for each in world.nodes)
    kept = sum(len(list(it.free)) for _, it in world.cache.snapshot.late.items())
    left = rooms * (100 // world.share) - sum(map(on_node, world.pods.values())) - kept
    missing = {gang: world.late[gang] - len(world.followers(gang)) for gang in sizes}
    waiting = [gang for gang in sizes if not world.bound(gang)]
    assert all(sizes[gang] + missing[gang] > left for gang in waiting), (seed, left)
    _nothing_is_kept_in_the_end(world)


def _nothing_is_kept_in_the_end(world: World) -> None:
    """No cards are kept for pods that do not come."""
    world.now_ms += DEADLINE_MS + LATE_MS
    world.cache.expire()
    assert len(world.cache.snapshot.late) == 0
    holding = {uid for uid, each in world.pods.items() if on_node(each)}
    assert {uid for uid, _ in world.cache.snapshot.allocated_on.items()} == holding
