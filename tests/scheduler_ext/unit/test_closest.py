"""Cards as close to each other as the free ones can be: by the strictest topology that a layout meets, within
the bounds of one search."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import CLOSER, PREFERRED, fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.scoring.policy import BINPACK, NO_FIT
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from tests.scheduler_ext.worlds import Json, asking, cards_of, on, percent, rebuilt, request_of
from tests.scheduler_ext.worlds import node as node_with
from tests.worlds import card, container
from timekeeper.core.values import CLOSEST

CARDS = [card(0, numa=0, links=["GPU-1"]), card(1, numa=0), card(2, numa=0), card(3, numa=1)]


def chosen(devices: int) -> dict[str, list[int]]:
    """The cards of a container with so many."""
    request = replace(request_of(asking(container(gpu_count=str(devices)))), topology=CLOSEST)
    return cards_of(fit(request, rebuilt([node_with("n", *CARDS)], []).node("n")))


def test_linked_cards_go_before_those_of_one_numa_node_and_these_before_any() -> None:
    assert {devices: sorted(chosen(devices)["main"]) for devices in (2, 3, 4)} == {
        2: [0, 1],
        3: [0, 1, 2],
        4: [0, 1, 2, 3],
    }


def test_the_search_has_the_bounds_of_any_other() -> None:
    many = [card(at, numa=at % 2, links=[f"GPU-{at ^ 1}"]) for at in range(16)]
    pod = asking(*(container(f"c{at}", gpu_count="3") for at in range(5)))
    request = replace(request_of(pod), topology=CLOSEST)
    node = rebuilt([node_with("n", *many)], []).node("n")
    steps = Steps(300)

    assert not isinstance(fit(request, node, BINPACK, steps), Refusal)
    assert 0 <= steps.left < 300


TREE = "012345"  # NVLink, one PCIe switch, several, a host bridge, a NUMA node, across


def tree(order: str) -> list[Json]:
    """Two cards for each path, which have that path to each other and the farthest to all others."""
    paths = [
        "-" * (at // 2 * 2) + (f"-{step}" if at % 2 == 0 else f"{step}-") for at, step in enumerate(order)
    ]
    paths = [path.replace("-", "5", len(path) - 2) for path in paths]
    return [card(at, numa=None, links=[], paths=path) for at, path in enumerate(paths)]


def pair_of(cards: list[Json], topology: str, *taken: int) -> dict[str, list[int]]:
    """The two cards of a container; these cards are taken."""
    asked = replace(request_of(asking(container(gpu_count="2"))), topology=topology)
    users = [on(percent(100, f"user-{at}"), "n", f"GPU-{at}") for at in taken]
    return cards_of(fit(asked, rebuilt([node_with("n", *cards)], users).node("n")))


def test_a_pair_is_joined_by_nvlink_else_by_one_pcie_switch_else_by_several_and_never_through_a_cpu() -> None:
    cards = tree("554433221100")
    taken: list[int] = []
    found = []
    while pair := pair_of(cards, "pair", *taken).get("main"):
        found.append(TREE[5 - pair[0] // 2])
        taken += pair

    assert "".join(found) == "012"


def test_the_closest_cards_are_those_lowest_in_the_pcie_tree() -> None:
    cards = tree("554433221100")
    taken: list[int] = []
    found = []
    while pair := pair_of(cards, CLOSEST, *taken).get("main"):
        found.append(TREE[5 - pair[0] // 2])
        taken += pair

    assert "".join(found) == TREE


def test_a_node_whose_pair_is_closer_scores_higher() -> None:
    nodes = [
        node_with(f"n{step}", *(card(at, links=[], paths=f"{step}{step}") for at in range(2)))
        for step in TREE
    ]
    asked = replace(request_of(asking(container(gpu_count="2"))), topology="pair")
    names = [f"n{step}" for step in TREE]

    scores = FitCache().scored(fit_key(asked, BINPACK, ()), rebuilt(nodes, []).nodes, names)[0].tolist()

    assert scores[0] > scores[1] > scores[2] > scores[3] == scores[4] == scores[5] == NO_FIT


def test_no_sum_of_closeness_preference_and_score_leaves_64_bits() -> None:
    assert 5 * CLOSER + PREFERRED + (PREFERRED - 1) < 2**63


@pytest.mark.parametrize("seed", range(40))
def test_the_nodes_whose_free_cards_are_closest_score_highest_of_the_cluster(seed: int) -> None:
    """Compared with every choice of free cards on every node."""
    random = Random(seed)
    wanted, nodes, taken, expected = random.randint(2, 3), [], [], {}
    for name in ("a", "b", "c", "d"):
        numas, pairs = ([random.randrange(kinds) for _ in range(6)] for kinds in (2, 3))
        links = [[f"{name}-GPU-{y}" for y in range(6) if pairs[x] == pairs[y]] for x in range(6)]
        nodes.append(node_with(name, *(card(x, numa=numas[x], links=links[x]) for x in range(6))))
        busy = [x for x in range(6) if random.random() < 0.4]
        taken += [on(percent(100, f"{name}-{x}"), name, f"{name}-GPU-{x}") for x in busy]
        choices = list(combinations([x for x in range(6) if x not in busy], wanted))
        for closeness, groups in ((0, [0] * 6), (1, numas), (3, pairs)):
            if any(len({groups[x] for x in chosen}) == 1 for chosen in choices):
                expected[name] = closeness
    request = replace(request_of(asking(container(gpu_count=str(wanted)))), topology=CLOSEST)

    names, snapshot = ["a", "b", "c", "d"], rebuilt(nodes, taken)
    scores = FitCache().scored(fit_key(request, BINPACK, ()), snapshot.nodes, names)[0].tolist()

    found = {
        name: round(score / CLOSER) for name, score in zip(names, scores, strict=True) if score != NO_FIT
    }
    assert found == expected
