"""Gangs for which strangers leave, through random histories: the machine of `test_gang_histories` with the
extender's preemptor and pods of others, which are over budget now and then, or of a lower class. What must
hold is read from the objects alone."""

import copy
import json
import random
from typing import Any, cast

import pytest

from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.displacer import DisplacerWiring, GangDisplacer
from scheduler_ext.model.pdb import NONE
from scheduler_ext.model.pod import read_pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.gang_worlds import silent
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import percent
from tests.story.unit.test_gang_histories import (
    NAMESPACE,
    KilledError,
    World,
    filled,
    gang_of,
    step,
    waits,
)
from tests.worlds import Json
from timekeeper.core.request.cards import encode_placement
from timekeeper.runtime.api_server import Answered, Reply

OTHERS = "others"
GRACE_MS = 5_000


class DisplacingWorld(World):
    """``kills``: how often the extender was killed; ``evictions``: strangers that were asked to leave, each
    with its gang; ``over``: whether the strangers' namespace is over budget."""

    def __init__(self, chance: random.Random, nodes: dict[str, int]) -> None:
        self.kills, self.over, self.made = -1, True, 0
        self.evictions: list[str] = []
        super().__init__(chance, nodes)

    # strangers

    def settle(self, name: str) -> None:
        """A stranger gets a card that the extender would give it, and waits for none."""
        raw = percent(self.share, name, priority=self.chance.choice((0, -5)), terminationGracePeriodSeconds=5)
        raw["metadata"] |= {"namespace": OTHERS, "uid": f"uid-{name}", "annotations": {}}
        raw["metadata"]["creationTimestamp"] = stamp(self.now_ms)
        pod = read_pod(raw)
        assert pod is not None
        assert pod.request is not None
        if any(self.seen["extender"]):
            return
        for there in list(self.cache.snapshot.nodes.values()):
            placement = fit(pod.request, there, BINPACK)
            if not isinstance(placement, Refusal) and self.cache.assume(pod, there, placement) is True:
                raw["spec"]["nodeName"] = there.name
                raw["metadata"]["annotations"]["bursar.dev/devices"] = encode_placement(placement)
                raw["status"] = {"phase": "Running"}
                return self.write(raw)

    @property
    def tenants(self) -> list[Json]:
        return [raw for raw in self.pods.values() if not gang_of(raw)]

    def is_leaving(self, raw: Json) -> bool:
        return "deletionTimestamp" in raw["metadata"]

    def leave(self) -> None:
        """Those that were asked to leave are gone."""
        for raw in [raw for raw in self.tenants if self.is_leaving(raw)]:
            self.write(raw, deleted=True)

    # the API server

    def call(self, method: str, path: str, body: Any = None, **more: object) -> Reply:
        parts = path.split("/")
        found = (raw for raw in self.pods.values() if len(parts) > 6 and raw["metadata"]["name"] == parts[6])
        raw = next(found, None)
        is_eviction = parts[-1] == "eviction"
        if raw is None or not (parts[-1] == "status" or (is_eviction and not gang_of(raw))):
            return super().call(method, path, body, **more)
        if self.chance.random() < self.failing:
            raise KilledError
        if is_eviction:
            if not body["deleteOptions"].get("dryRun"):
                self.evict_stranger(raw)
            return Answered(201, {})
        only = body["metadata"]
        if only["uid"] != raw["metadata"]["uid"]:
            return Answered(409, {"message": "another pod"})
        if (
            only.get("resourceVersion", raw["metadata"]["resourceVersion"])
            != raw["metadata"]["resourceVersion"]
        ):
            return Answered(409, {"message": "it has changed"})
        after = copy.deepcopy(raw)
        new = body["status"].get("conditions", [])
        kinds = {condition["type"] for condition in new}
        old = [
            condition for condition in after["status"].get("conditions", []) if condition["type"] not in kinds
        ]
        after["status"] = {**after["status"], "conditions": [*old, *new]}
        self.write(after)
        if self.chance.random() < self.failing / 2:
            raise KilledError
        return Answered(200, after)

    def evict(self, raw: Json) -> None:
        """Its owner may have been made smaller since the extender has read it, a minute ago at most."""
        if self.need(gang_of(raw)) == self.seen_need(gang_of(raw)):
            return super().evict(raw)
        for mate in self.bound(gang_of(raw)):
            self.write(mate, deleted=True)
        return None

    def evict_stranger(self, raw: Json) -> None:
        name = raw["metadata"]["name"]
        if self.is_leaving(raw):
            return
        if not self.over and raw["spec"]["priority"] >= 0:
            self.wrong.append(f"{name} is in budget and of no lower class")
        if not self.seen["extender"]:  # else it acts by what was true
            self.wrong += self.wrongs(raw)
        self.evictions.append(name)
        after = copy.deepcopy(raw)
        after["metadata"]["deletionTimestamp"] = stamp(self.now_ms + GRACE_MS)
        self.write(after)

    def wrongs(self, raw: Json) -> list[str]:
        """What is wrong with the eviction of the stranger now."""
        name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
        gangs = [
            gang
            for gang in self.gangs
            if any(uid in self.told(member).get("victims", {}) for member in self.reserving(gang))
        ]
        if len(gangs) != 1:
            return [f"{name} is named by {gangs}"]
        held, bound, need = len(self.reserving(gangs[0])), len(self.bound(gangs[0])), self.need(gangs[0])
        late = gangs[0] in self.ran and bound > 0
        if not late and held + bound < need:
            return [f"{name} is evicted before all members of {gangs[0]} have their condition"]
        # ports of strangers may keep it off, and a node that took no member is avoided for a while
        is_elsewhere = bool(self.strangers) or any(self.starts.failures.values())
        if not is_elsewhere and self.takes(gangs[0]) >= held:
            return [f"{name} is one too many: {gangs[0]} fits once others have left"]
        return []

    def condition(self, raw: Json) -> Json:
        found = (one for one in raw["status"].get("conditions", ()) if one["type"] == "bursar.dev/CardsHeld")
        return next(found, {})

    def told(self, raw: Json) -> Json:
        text = self.condition(raw).get("message", "")
        found: Json = json.loads(text) if text.startswith("{") else {}
        return found

    def reserving(self, gang: str) -> list[Json]:
        """The waiting members for which cards are reserved."""
        waiting = [raw for raw in self.living(gang) if waits(raw)]
        return [raw for raw in waiting if self.condition(raw).get("status") == "True"]

    def takes(self, gang: str) -> int:
        """How many pods the cards take that no pod has, or that has been asked to leave, and that are not
        kept for another."""
        used: dict[str, int] = {}
        for raw in self.pods.values():
            if waits(raw) or raw["status"]["phase"] == "Succeeded" or self.is_leaving(raw):
                continue
            for containers in json.loads(raw["metadata"]["annotations"]["bursar.dev/devices"])[
                "containers"
            ].values():
                for taken in containers:
                    used[taken["uuid"]] = used.get(taken["uuid"], 0) + taken["share_milli"]
        for uid in self.kept():
            allocation = self.cache.snapshot.allocation(uid)
            if allocation is not None and gang_of(self.pods[uid]) != gang:
                for uuid, use in allocation.uses:
                    used[uuid] = used.get(uuid, 0) + use.share_milli
        cards = [card.uuid for _, card in self.cache.snapshot.cards()]
        return sum(max(0, 1_000 - used.get(uuid, 0)) // (10 * self.share) for uuid in cards)

    # the extender

    def start_extender(self) -> None:
        super().start_extender()
        self.kills += 1
        limits, api = PreemptionLimits(180_000, 600_000, 8, "", False), cast(Any, self)
        wiring = PreemptorWiring(
            cache=self.cache,
            waiting_pods=list,
            policy=lambda _: BINPACK,
            standings=self.standings,
            pdbs=lambda: NONE,
            leads=lambda: True,
            freed=silent,
            tell=silent,
            log=silent,
            now_ms=lambda: self.now_ms,
            seconds=lambda: self.now_ms / 1000,
            breathe=silent,
            displace=lambda *moment: self.displacer.step(*moment),
        )
        self.preemptor = Preemptor(api, wiring, limits)
        of_gangs = DisplacerWiring(
            due=self.starts.due,
            state=self.starts.state,
            given=self.starts.given,
            failed=self.starts.given_back,
            calls=GangCalls(api, lambda: self.now_ms, at_once=1),
            deadline_ms=60_000,
        )
        self.displacer = GangDisplacer(self.preemptor, of_gangs, limits)

    def standings(self) -> NamespaceStandings:
        return NamespaceStandings({NAMESPACE: IN_BUDGET, OTHERS: DEBTOR if self.over else IN_BUDGET})

    def step_extender(self) -> None:
        try:
            self.preemptor.step()
        except KilledError:
            self.start_extender()
        super().step_extender()

    def free(self) -> int:
        return self.takes("")


def event(world: DisplacingWorld, chance: random.Random) -> None:
    """One event."""
    what = chance.choices(("plain", "settle", "leave", "flip", "end"), (20, 2, 2, 0.3, 0.5))[0]
    if what == "plain":
        step(world, chance)
    elif what == "settle":
        world.made += 1
        world.settle(f"s{world.made}")
    elif what == "leave":
        world.leave()
    elif what == "flip":
        world.over = not world.over
    elif world.tenants:
        world.write(chance.choice(world.tenants), deleted=True)


def lived(seed: int, kills: int) -> DisplacingWorld:
    """A world after a random history with at least so many kills of the extender, then a quiet time without
    failures, in which no stranger comes."""
    world = filled(DisplacingWorld, seed)
    world.chance.shuffle(settlers := [f"first{at}" for at in range(9)])
    for name in settlers:
        world.settle(name)
        world.hear_all()
    least, events = world.chance.randint(100, 240), 0
    while events < least or world.kills < kills:
        event(world, world.chance)
        events += 1
        assert world.overcommitted() == [], seed
        assert world.wrong == [], seed
    world.failing, world.refused, world.over = 0.0, set(), True
    for raw in list(world.strangers.values()):  # of no GPUs, whose ports and labels keep gangs off
        world.hear_of(raw, deleted=True)
    world.hear_all()
    for turn in range(3_000):
        world.now_ms += 2_000
        world.leave()
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
        if turn > 30 and not (missing(world) or world.kept()):
            break
    return world


def missing(world: DisplacingWorld) -> list[str]:
    """The gangs that have not what they need although strangers hold enough cards."""
    found = []
    for gang, size in world.gangs.items():
        wanted = size - world.ended[gang] - len(world.bound(gang))
        least = max(1, world.need(gang)) if not world.bound(gang) else 1
        if wanted > 0 and least <= world.free() + len(world.tenants):
            found.append(gang)
    return found


SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(20, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_killed_gangs_displace_and_nobody_leaves_in_excess(seed: int) -> None:
    world = lived(seed, kills=0)

    assert missing(world) == [], seed
    assert world.kept() == [], seed


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 20))]
)
def test_with_thirty_kills_too(seed: int) -> None:
    world = lived(seed, kills=30)

    assert missing(world) == [], seed
