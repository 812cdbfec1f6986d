"""The order of those who wait, and how many of them one pod's question has looked at."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_ext.controllers.requeuer import MAX_AHEAD, MAX_LOOKS, MAX_NODES, Requeuer
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import WaitingPod, WaitingQueue, queue_key
from tests.scheduler_ext.worlds import Json, node, percent, read, rebuilt, waiting


def waits(name: str, priority: int = 0, namespace: str = "team-a", share: int = 60) -> WaitingPod:
    """Somebody who waits, offered any node."""
    return WaitingPod(read(waiting(name, share, namespace, priority=priority)), BINPACK, None)


def world(waiting: list[WaitingPod], names: list[str], raws: list[Json]) -> tuple[Requeuer, Snapshot]:
    """A waker over free nodes that have all just freed, with these pods and of them these waiters."""
    snapshot = rebuilt([node(name) for name in names], raws)
    cache: Any = SimpleNamespace(snapshot=snapshot)
    api: Any = None
    made = Requeuer(api, cache, "bursar-scheduler", lambda event, **fields: None)
    made.seed(waiting)
    made.freed(names)
    return made, snapshot


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_the_turns_whichever_pods_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    over = NamespaceStandings({"debtor": NamespaceStanding("OVER_BUDGET")})
    turns, there = WaitingQueue(), dict[str, WaitingPod]()

    for _ in range(80):
        each = waits(f"p{rng.randint(0, 30)}", rng.randint(0, 3), rng.choice(["debtor", "payer"]))
        uid = each.pod.uid
        if rng.random() < 0.3:
            turns.discard([uid])
            there.pop(uid, None)
        else:
            turns.put(each)
            there[uid] = each
        said = rng.choice([UNHEARD, over])
        by = sorted((queue_key(each.pod, "", said), each) for each in there.values())
        assert turns.some(said, 100) == [each for _, each in by]
        low, high = queue_key(waits("p7", 1).pod, "", said), queue_key(waits("p7", 2, "debtor").pod, "", said)
        between = [each for its, each in by if low < its < high]
        assert turns.some(said, 3, low, high) == between[:3]


def elsewhere(name: str) -> WaitingPod:
    """One who goes before others and waits for another node."""
    return replace(waits(name, 9), offered=frozenset({"elsewhere"}))


def kept_for_others(ahead: int, nodes: int) -> set[str]:
    """What is kept from a pod after so many who wait for something else, and one who fits each node."""
    raws = [percent(60, f"e{at}", priority=9, schedulerName="bursar-scheduler") for at in range(ahead)]
    raws.append(percent(60, "next", priority=5, schedulerName="bursar-scheduler"))
    names = [f"n{at}" for at in range(nodes)]
    asking, _ = world([], names, raws)
    asking.seed([*(elsewhere(f"e{at}") for at in range(ahead)), waits("next", 5)])
    mine = waits("mine")
    return asking.held_back(lambda: mine, names, asking._cache.snapshot)


def test_of_many_freed_nodes_only_some_are_kept() -> None:
    assert len(kept_for_others(0, MAX_NODES)) == MAX_NODES
    assert len(kept_for_others(0, MAX_NODES + 40)) == MAX_NODES


def test_behind_the_bound_of_waiting_pods_nothing_is_held_back() -> None:
    assert kept_for_others(MAX_AHEAD - 1, 1) == {"n0"}
    assert kept_for_others(MAX_AHEAD, 1) == set()
    assert kept_for_others(MAX_LOOKS // 2, 9) == {"n0"}


def test_pods_that_are_gone_do_not_count_among_those_ahead() -> None:
    raw = percent(60, "next", priority=5, schedulerName="bursar-scheduler")
    gone = [waits(f"gone{at}", 9) for at in range(MAX_AHEAD)]
    asking, _ = world([*gone, waits("next", 5)], ["n1"], [raw])
    mine = waits("mine")

    first, second = (asking.held_back(lambda: mine, ["n1"], asking._cache.snapshot) for _ in range(2))

    assert (first, second) == (set(), {"n1"})
    assert [each.pod.uid for each in asking.waiting()] == ["uid-next"]
