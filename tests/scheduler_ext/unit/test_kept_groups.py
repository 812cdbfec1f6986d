"""Of equal cards those are given out whose group is broken already, so that groups stay whole for pods that
need several cards."""

from typing import Any

import pytest

from tests.scheduler_ext.worlds import Json, asking, node, percent, place, rebuilt
from tests.worlds import card, container
from timekeeper.core.request.cards import decode_placement

Cards = list[Json]


def linked(*pairs: tuple[int, ...], cards: int = 8) -> Cards:
    """Cards of which those of a tuple are linked with each other."""
    group = {at: [f"GPU-{other}" for other in pair if other != at] for pair in pairs for at in pair}
    return [card(at, links=group.get(at, [])) for at in range(cards)]


def on_numa(*numas: int) -> Cards:
    return [card(at, numa=numa) for at, numa in enumerate(numas)]


def on_paths(*paths: str) -> Cards:
    """By what the inventory says of each card's way to each other."""
    return [card(at, paths=path) for at, path in enumerate(paths)]


CROSSED = linked((0, 4), (1, 5), (2, 6), (3, 7))
SWITCHED = [
    card(at, numa=at % 2, links=[f"GPU-{other}" for other in range(8) if other != at]) for at in range(8)
]


def taken(cards: Cards, pods: list[Json], policy: str = "binpack") -> list[list[int]]:
    """The cards of each pod, one pod after the other on one node."""
    there: list[Json] = []
    for at, raw in enumerate(pods):
        named = {**raw, "metadata": {**raw["metadata"], "name": f"p{at}", "uid": f"uid-p{at}"}}
        placed = place(rebuilt([node("n", *cards)], there), named, "n", policy)
        assert placed is not None
        there.append(placed)
    placements = (decode_placement(each["metadata"]["annotations"]["bursar.dev/devices"]) for each in there)
    return [[part.index for _, parts in each.containers for part in parts] for each in placements]


def whole(count: int = 1, **fields: Any) -> Json:
    return asking(container(gpu_count=str(count)), **fields)


ONE, TWO = whole(), whole(2)
PAIR = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "pair"})


@pytest.mark.parametrize("policy", ["binpack", "spread", "random"])
@pytest.mark.parametrize(
    ("cards", "pods", "chosen"),
    [
        (CROSSED, [ONE] * 4, [[0], [4], [1], [5]]),
        (CROSSED, [ONE, ONE, PAIR, PAIR, PAIR], [[0], [4], [1, 5], [2, 6], [3, 7]]),
        (CROSSED, [TWO] * 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (CROSSED, [ONE, TWO, ONE], [[0], [4, 1], [5]]),
        (CROSSED, [asking(container("a", gpu_count="1"), container("b", gpu_count="1"))], [[0, 4]]),
        (linked((0, 4, 5), (1, 2, 3), cards=6), [ONE] * 3, [[0], [4], [5]]),
        (on_numa(0, 1, 0, 1), [ONE] * 3, [[0], [2], [1]]),
        (SWITCHED, [ONE] * 5, [[0], [2], [4], [6], [1]]),
        (on_paths("0505", "5050", "0505", "5050"), [ONE] * 3, [[0], [2], [1]]),
        ([card(at) for at in range(4)], [ONE] * 3, [[0], [1], [2]]),
        (linked((0, 1, 2, 3), (4, 5), cards=6), [ONE, PAIR, ONE], [[4], [0, 1], [5]]),
    ],
)
def test_single_cards_leave_groups_whole(
    cards: Cards, pods: list[Json], chosen: list[list[int]], policy: str
) -> None:
    assert taken(cards, pods, policy) == chosen


def test_a_share_begins_a_card_whose_group_is_broken() -> None:
    assert taken(CROSSED, [percent(60), percent(60), percent(30)]) == [[0], [4], [0]]


def test_a_card_that_may_not_be_given_out_breaks_its_group() -> None:
    cards = [{**each, "healthy": each["index"] != 6} for each in CROSSED]

    assert taken(cards, [ONE, ONE]) == [[2], [0]]


def test_a_choice_of_cards_is_kept_among_those_that_it_allows() -> None:
    raw = asking(container(gpu_count="1"), annotations={"bursar.dev/gpu-uuids": "GPU-3,GPU-5,GPU-1"})

    assert taken(CROSSED, [raw, raw]) == [[1], [5]]
