"""Cards as close to each other as the free ones can be: by the strictest topology that a layout meets, within
the bounds of one search."""

from dataclasses import replace

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.worlds import asking, cards_of, rebuilt, request_of
from tests.scheduler_ext.worlds import node as node_with
from tests.worlds import card, container
from timekeeper.core.values import CLOSEST

CARDS = [card(0, numa=0, links=["GPU-1"]), card(1, numa=0), card(2, numa=0), card(3, numa=1)]


def chosen(devices: int) -> dict[str, list[int]]:
    """The cards of a container with so many."""
    request = replace(request_of(asking(container(gpu_count=str(devices)))), topology=CLOSEST)
    return cards_of(fit(request, rebuilt([node_with("n", *CARDS)], []).node("n")))


def test_linked_cards_go_before_those_of_one_numa_node_and_these_before_any() -> None:
    assert {devices: chosen(devices)["main"] for devices in (2, 3, 4)} == {
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
