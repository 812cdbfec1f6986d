"""gpu-manager chooses the card of a share itself, for each container that the kubelet starts, and refuses the
pod ("Nvidia node mismatch") if the Binding names another one. So the placement must be the one that it
chooses, under every policy."""

import json
import random

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN
from scheduler_ext.snapshot.node_info import NodeInfo
from tests.scheduler_ext.worlds import asking, bound, node, rebuilt, request_of
from tests.worlds import Json, card, limits_of
from timekeeper.core.request.cards import encode_placement

UNIT_MIB, CARD_MIB = 256, 16_384
POLICIES = (*BUILT.values(), fragmentation(FragmentationModel(BUILT_IN), 1000))
Shares = list[tuple[int, int]]  # for each container vcore, and units of memory
Cards = list[list[int]]  # for each card what is free of both


def gpu_manager(cards: Cards, shares: Shares) -> list[int] | None:
    """The card of each container by gpu-manager's mode `share`: of those that suffice the one with the least
    free vcore, then the least free memory, then the least index. It is taken from ``cards``. None if a
    container finds none."""
    chosen = []
    for core, memory in shares:
        for at in sorted(range(len(cards)), key=lambda at: (cards[at], at)):
            if cards[at][0] >= core and cards[at][1] >= memory:
                chosen.append(at)
                cards[at][0] -= core
                cards[at][1] -= memory
                break
        else:
            return None
    return chosen


def board(count: int, pods: list[Json]) -> NodeInfo:
    capacity = {"tencent.com/vcuda-core": str(100 * count), "tencent.com/vcuda-memory": str(64 * count)}
    there = node("n", *(card(at, CARD_MIB) for at in range(count)), capacity=capacity)
    return rebuilt([there], pods).node("n")


def pod(name: str, shares: Shares) -> Json:
    words = "tencent_com__vcuda_core", "tencent_com__vcuda_memory"
    limits = [dict(zip(words, map(str, share), strict=True)) for share in shares]
    return asking(*(limits_of(f"c{at}", **each) for at, each in enumerate(limits)), name=name)


def chosen(raw: Json, there: NodeInfo, policy: Policy) -> tuple[list[int] | None, str]:
    """The index of each container's card, and the annotation of the placement."""
    answer = fit(request_of(raw), there, policy)
    if isinstance(answer, Refusal):
        return None, ""
    return [slices[0].index for _, slices in answer.containers], encode_placement(answer)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("seed", range(10))
def test_each_share_gets_the_card_that_gpu_manager_chooses_and_none_where_it_finds_none(
    policy: Policy, seed: int
) -> None:
    rng = random.Random(seed)
    pods: dict[str, tuple[Json, list[int], Shares]] = {}
    refused = 0
    for number in range(40):
        if pods and rng.random() < 0.3:
            del pods[rng.choice([*pods])]
        shares = [(rng.randrange(5, 70, 5), rng.randint(1, 40)) for _ in range(rng.choice((1, 1, 2, 3)))]
        free = [[100, 64] for _ in range(3)]
        for _, taken, those in pods.values():
            for at, (core, memory) in zip(taken, those, strict=True):
                free[at][0] -= core
                free[at][1] -= memory
        raw = pod(f"p{number}", shares)

        found, placement = chosen(raw, board(3, [each for each, _, _ in pods.values()]), policy)

        assert found == gpu_manager(free, shares), f"seed {seed}, pod {number}"
        refused += found is None
        if found is not None:
            pods[f"p{number}"] = bound(raw, "n", placement), found, shares
    assert 0 < refused < 40


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_s18_a_share_of_50_is_on_card_0_and_one_of_60_then_on_card_1(policy: Policy) -> None:
    first, placement = chosen(pod("half", [(50, 1)]), board(6, []), policy)
    half = bound(pod("half", [(50, 1)]), "n", placement)

    assert first == [0]
    assert chosen(pod("p", [(60, 1)]), board(6, [half]), policy)[0] == [1]
    assert chosen(pod("p", [(40, 1)]), board(6, [half]), policy)[0] == [0]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_layout_that_gpu_manager_would_not_find_is_none(policy: Policy) -> None:
    """Of cards with 60 and 50 left 30, 30, 25 and 25: a fit exists (S42), but gpu-manager gives the first 30
    of the card with 50, and finds nothing for the last 25."""
    users: list[Json] = []
    for at, taken in enumerate((40, 50)):
        held = {"uuid": f"GPU-{at}", "index": at, "share_milli": 10 * taken, "memory_mib": UNIT_MIB}
        placement = json.dumps({"version": 1, "containers": {"c0": [held]}})
        users.append(bound(pod(f"user-{at}", [(taken, 1)]), "n", placement))

    assert chosen(pod("p", [(30, 1), (30, 1), (25, 1), (25, 1)]), board(2, users), policy)[0] is None
