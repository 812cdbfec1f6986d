"""Advice: which pods to move so that a node has whole cards free."""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.reports.advice import AdviceView, advise
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.worlds import Json, asking, bound, node, rebuilt
from tests.worlds import card, container

WHOLE = 100


class Held(NamedTuple):
    """A pod: the percents that it takes of each of these cards of its node; and whether it may move."""

    name: str
    share: int
    cards: tuple[int, ...]
    movable: bool = True


class Host(NamedTuple):
    """A node: how many cards, cores beyond what its pods request (each requests one), and its pods."""

    cards: int
    spare_cpu: int
    pods: tuple[Held, ...]


World = Sequence[Host]


def pod_json(held: Held, where: str) -> Json:
    whole = held.share == WHOLE
    asked = {"gpu_count": str(len(held.cards))} if whole else {"gpu_percent": str(held.share)}
    main = container(requests={"cpu": "1"}, **asked)
    raw = asking(main, name=held.name)
    if held.movable:
        raw["metadata"]["ownerReferences"] = [
            {"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        ]
    slices = [
        {"uuid": f"{where}-GPU-{at}", "index": at, "share_milli": 10 * held.share}
        | {"memory_mib": 160 * held.share}
        for at in held.cards
    ]
    return bound(raw, where, json.dumps({"version": 1, "containers": {"main": slices}}))


def node_json(at: int, host: Host) -> Json:
    raw = node(f"node-{at}", *(card(each) for each in range(host.cards)))
    cpu = {"cpu": str(len(host.pods) + host.spare_cpu), "bursar.dev/gpu-count": str(host.cards)}
    raw["status"] = {name: {**held, **cpu} for name, held in raw["status"].items()}
    return raw


def snapshot_of(world: World) -> Snapshot:
    pods = [pod_json(each, f"node-{at}") for at, host in enumerate(world) for each in host.pods]
    return rebuilt([node_json(at, host) for at, host in enumerate(world)], pods)


def advice_of(world: World, free: int, fits: int = 100_000) -> list[AdviceView]:
    snapshot = snapshot_of(world)
    assert not any(each.closed for each in snapshot.nodes.values())
    return advise(snapshot.nodes, snapshot.pods, snapshot.nodes.values(), free, fits)


# the oracle: percents and cores, every set of pods, every place


def free_of(host: Host, without: Sequence[Held] = ()) -> list[int]:
    staying = [each for each in host.pods if each not in without]
    return [WHOLE - sum(each.share for each in staying if at in each.cards) for at in range(host.cards)]


def placeable(pods: Sequence[Held], free: list[list[int]], cpu: list[int], to: Sequence[int | None]) -> bool:
    """True if every pod has a place; ``to``: only on this node, None: anywhere."""
    if not pods:
        return True
    first, wanted = pods[0], to[0]
    for at, cards in enumerate(free):
        if cpu[at] < 1 or wanted not in (None, at):
            continue
        fitting = [place for place, left in enumerate(cards) if left >= first.share]
        for chosen in combinations(fitting, len(first.cards)):
            less = [left - first.share * (place in chosen) for place, left in enumerate(cards)]
            there = [less if other == at else each for other, each in enumerate(free)]
            if placeable(pods[1:], there, [each - (x == at) for x, each in enumerate(cpu)], to[1:]):
                return True
    return False


def frees(world: World, at: int, pods: Sequence[Held], cards: int, to: Sequence[int | None]) -> bool:
    """True if the node has the cards free once these have moved, to these nodes."""
    free = [free_of(host, pods if place == at else ()) for place, host in enumerate(world)]
    cpu = [host.spare_cpu + len(pods) * (place == at) for place, host in enumerate(world)]
    empty = [place for place, left in enumerate(free[at]) if left == WHOLE]
    for kept in combinations(empty, cards):
        left = [0 if place in kept else each for place, each in enumerate(free[at])]
        if placeable(pods, [left if place == at else each for place, each in enumerate(free)], cpu, to):
            return True
    return False


def fewest(world: World, cards: int) -> int | None:
    """The number of pods that must move at least."""
    for size in range(max(len(host.pods) for host in world) + 1):
        for at, host in enumerate(world):
            movable = [each for each in host.pods if each.movable]
            if any(frees(world, at, chosen, cards, [None] * size) for chosen in combinations(movable, size)):
                return size
    return None


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """One to three nodes of one to three cards."""

    def hosts() -> Iterator[Host]:
        for at in range(draw(st.integers(1, 3))):
            free, pods = [WHOLE] * draw(st.integers(1, 3)), []
            for place in range(draw(st.integers(1, 5))):
                share = draw(st.sampled_from((20, 30, 40, 50, 70, WHOLE)))
                count = draw(st.integers(1, 2)) if share == WHOLE else 1
                fitting = [card for card, left in enumerate(free) if left >= share]
                if len(fitting) < count:
                    continue
                cards = tuple(draw(st.permutations(fitting))[:count])
                for card_ in cards:
                    free[card_] -= share
                pods.append(Held(f"p{at}{place}", share, cards, draw(st.booleans()) or draw(st.booleans())))
            yield Host(len(free), draw(st.integers(0, 3)), tuple(pods))

    return list(hosts())


@settings(max_examples=100)
@given(world=worlds())
def test_advice_frees_the_cards_with_the_fewest_moves_and_every_moved_pod_fits(world: World) -> None:
    for view in advice_of(world, 3):
        least = fewest(world, view["cards"])

        assert not view["given_up"]
        if view["node"] is None:
            assert least is None
            continue
        at = int(view["node"].removeprefix("node-"))
        by_name = {each.name: each for each in world[at].pods}
        moved = [by_name[move["name"]] for move in view["moves"]]
        assert all(each.movable for each in moved)
        to = [int(move["to"].removeprefix("node-")) for move in view["moves"]]
        assert frees(world, at, moved, view["cards"], to)
        assert len(moved) == least
        assert view["free_now"] == free_of(world[at]).count(WHOLE)


def test_a_call_ends_when_its_work_is_spent_and_says_so() -> None:
    world = [Host(1, 2, (Held("a", 60, (0,)),)), Host(1, 2, (Held("b", 30, (0,)),))]

    assert [view["given_up"] for view in advice_of(world, 1, fits=1)] == [True]
    (view,) = advice_of(world, 1, fits=3)
    assert (view["node"], [(move["name"], move["to"]) for move in view["moves"]]) == (
        "node-0",
        [("a", "node-1")],
    )
