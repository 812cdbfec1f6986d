"""Many pods at once on a real cluster: a thousand that just fit, and storms of pods that come and go.

What happened is read back from the objects: their history by the API server's watch, and their last state
card by card, by a judge that imports nothing of ours (`history`).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.scheduler_ext.clusters import PODS, PROFILE, SCHEDULER, Callers, Json, World
from tests.scheduler_ext.history import History, complaints, watched
from tests.scheduler_ext.processes import Process
from tests.support.waiting import eventually, seconds_until

CARD_MIB = 16_000
PERCENT, MEMORY = "bursar.dev/gpu-percent", "bursar.dev/gpu-memory"


@dataclass(frozen=True)
class Batch:
    """Pods that are alike: what each container asks, and the rank in which they are placed."""

    count: int
    rank: int
    containers: tuple[dict[str, str], ...]


def shape(count: int, rank: int, *containers: dict[str, str]) -> Batch:
    """So many pods of these containers."""
    return Batch(count, rank, containers)


# Each size divides the greater ones, and the greater ones go first, by priority: so whatever node and card a
# policy picks, what is left of every card and node is a multiple of what comes next, and the last pod finds
# the last place. The memory of 472 cards is used up to the last MiB.
THOUSAND = (
    shape(4, 8, {PERCENT: "800"}),
    shape(8, 7, {PERCENT: "400"}),
    shape(24, 6, {PERCENT: "200"}),
    shape(72, 5, {PERCENT: "100"}),
    shape(160, 4, {PERCENT: "50"}),
    shape(100, 3, {PERCENT: "25"}, {PERCENT: "25"}),
    shape(272, 2, {PERCENT: "25"}),
    shape(360, 2, {MEMORY: str(CARD_MIB // 4)}),
)


def pod(name: str, batch: Batch, **fields: object) -> Json:
    """A waiting pod of the batch."""
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": PROFILE,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": f"c{at}", "image": "x", "resources": {"limits": limits}}
                for at, limits in enumerate(batch.containers)
            ],
            **fields,
        },
    }


@pytest.fixture(scope="module")
def ranks(plane: ControlPlane) -> None:
    """A priority class for each rank; none of them preempts."""
    for rank in {batch.rank for batch in THOUSAND}:
        body = {"metadata": {"name": f"rank-{rank}"}, "value": rank, "preemptionPolicy": "Never"}
        plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


def cards_of(batches: tuple[Batch, ...]) -> float:
    """How many cards they need in all, by memory."""
    return sum(
        batch.count * (int(limits.get(PERCENT, 0)) / 100 + int(limits.get(MEMORY, 0)) / CARD_MIB)
        for batch in batches
        for limits in batch.containers
    )


def nodes(world: World, count: int, cards: int) -> list[Json]:
    """So many nodes, once the extender knows them all."""
    raws = [kwok_node(f"n{at:03}", cards=cards, memory_mib=CARD_MIB) for at in range(count)]
    made = Callers(world.plane.api).each(("POST", "/api/v1/nodes", raw) for raw in raws)
    assert set(made) == {201}
    eventually(lambda: world.extender.metric("bursar_extender_cards") == count * cards)
    return raws


def unbound(world: World, history: History) -> str:
    """How far it got, and what the extender says of some that were left."""
    metrics = world.extender.get("/metrics")[1].splitlines()
    told = [line for line in metrics if "pods_waiting{" in line or "nodes_refused_total{" in line]
    return f"{history.bound} were bound {history.ended}, others wait: {told}"


MIXED = (
    shape(6, 0, {PERCENT: "50"}),
    shape(5, 0, {PERCENT: "30"}),
    shape(4, 0, {PERCENT: "100"}),
    shape(3, 0, {PERCENT: "200"}),
    shape(5, 0, {MEMORY: "6000"}),
    shape(4, 0, {PERCENT: "20", MEMORY: "3000"}, {PERCENT: "70"}),
    shape(3, 0, {PERCENT: "10"}),
)


def rounds(count: int, chance: random.Random) -> Iterator[list[Json]]:
    """In each round 30 pods of mixed shapes; in every third the names of the one before come again."""
    for at in range(count):
        prefix = f"r{at - (at % 3 == 2)}"
        batches = [batch for batch in MIXED for _ in range(batch.count)]
        chance.shuffle(batches)
        yield [pod(f"{prefix}-{number}", batch) for number, batch in enumerate(batches)]


class Storm:
    """Pods that come and go; ``forced``: how many were deleted with force while they held cards."""

    def __init__(self, world: World, history: History, chance: random.Random) -> None:
        self.world, self.history, self.chance = world, history, chance
        self.callers = Callers(world.plane.api)
        self.forced = 0

    def round(self, raws: list[Json]) -> None:
        """They come, some are bound, and half of those that hold cards are deleted, with a few that wait."""
        before, names = self.history.bound, {raw["metadata"]["name"] for raw in raws}
        self.delete([uid for uid, name in self.alive().items() if name in names])
        eventually(lambda: not names & {*self.alive().values()})
        made = self.callers.each(("POST", PODS, raw) for raw in raws)
        assert set(made) == {201}
        eventually(lambda: self.history.bound >= before + 8)
        held = sorted(self.history.held)
        waiting = sorted(self.history.alive.keys() - set(held))
        self.delete(self.chance.sample(held, len(held) // 2))
        self.delete(self.chance.sample(waiting, len(waiting) // 4))

    def alive(self) -> dict[str, str]:
        """The names of the pods that exist, by UID."""
        return {uid: raw["metadata"]["name"] for uid, raw in dict(self.history.alive).items()}

    def delete(self, uids: list[str]) -> None:
        """Each with its grace period, or by force."""
        names = self.alive()
        calls: list[tuple[str, str, Json | None]] = []
        for uid in uids:
            if uid in names:
                force = self.chance.random() < 0.25
                self.forced += force and uid in self.history.held
                options = {"gracePeriodSeconds": 0} if force else {}
                calls.append(("DELETE", f"{PODS}/{names[uid]}", {"preconditions": {"uid": uid}, **options}))
        assert {*self.callers.each(calls)} <= {200, 404, 409}


def rage(world: World, count: int, seed: int, kills: int = 0) -> None:
    """A storm of so many rounds, in which the extender is killed so many times; then every card is free, and
    each can be given out whole."""
    print(f"seed {seed}")
    raws = nodes(world, 4, cards=4)
    chance = random.Random(seed)
    with watched(world.plane.api, raws, PODS) as history:
        storm = Storm(world, history, chance)
        killed = set(chance.sample(range(count), kills))
        for at, batch in enumerate(rounds(count, chance)):
            if at in killed:
                world.extender.kill()
                world.extender.start()
            storm.round(batch)
        bound, freed = history.bound, history.freed
        storm.delete(sorted(history.alive))
        eventually(lambda: not history.alive)
        eventually(lambda: world.extender.metric("bursar_extender_cards_untouched") == 16)
        whole = [pod(f"whole-{at}", shape(1, 0, {PERCENT: "100"})) for at in range(16)]
        assert {*storm.callers.each(("POST", PODS, raw) for raw in whole)} == {201}
        eventually(lambda: len(history.held) == 16)

    print(f"{bound} bound, {freed} of them ended in the storm, {storm.forced} by force")
    assert bound >= 8 * count
    assert freed >= 4 * count
    assert storm.forced >= count // 2
    assert history.wrong == []
    assert complaints(raws, world.pods()) == []
    assert "Traceback" not in world.extender.said()


def test_in_a_storm_of_pods_no_card_holds_too_much_and_none_is_lost(world: World) -> None:
    rage(world, 3, seed=11)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_in_a_long_storm_with_kills_no_card_holds_too_much_and_none_is_lost(world: World, seed: int) -> None:
    rage(world, 40, seed=seed, kills=6)


@pytest.mark.soak
def test_a_thousand_pods_at_once_onto_a_cluster_that_just_fits_them_all(
    plane: ControlPlane, extender: Process, ranks: None
) -> None:
    """The last one of this module: nobody cleans up after it, for the cluster goes with it."""
    world = World(plane, extender)
    assert sum(batch.count for batch in THOUSAND) == 1000
    raws = nodes(world, int(cards_of(THOUSAND)) // 8, cards=8)
    assert cards_of(THOUSAND) == 8 * len(raws)
    waiting = [
        pod(f"p-{at}-{number}", batch, priorityClassName=f"rank-{batch.rank}")
        for at, batch in enumerate(THOUSAND)
        for number in range(batch.count)
    ]
    random.Random(7).shuffle(waiting)
    world.plane.stop_scheduler(SCHEDULER)
    with watched(world.plane.api, raws, PODS) as history:
        made = Callers(world.plane.api).each(("POST", PODS, raw) for raw in waiting)
        assert set(made) == {201}

        world.plane.start_scheduler(SCHEDULER, profiles=(PROFILE,), extender_url=world.extender.url)
        took = seconds_until(lambda: history.bound == 1000, lambda: unbound(world, history))

        print(f"1000 pods were bound in {took:.1f} s")
        assert history.wrong == []
        assert complaints(raws, world.pods()) == []
    for name in ("cards_untouched", "reserved_gpus", "fragmented_gpus"):
        assert world.extender.metric(f"bursar_extender_{name}") == 0, name
