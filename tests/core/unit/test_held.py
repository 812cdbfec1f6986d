"""What a pod holds of cards: exact once its cards are known, a bound before."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.rating.held import cards_text, depends_on_card, held_milli, least_milli, most_milli
from timekeeper.core.request.cards import amounts_by_card, need
from timekeeper.core.values import Ask, Card, ContainerAsk, GPURequest, Placement, Slice

SIZES = (16_000, 24_576, 81_920)
asks = st.one_of(
    st.builds(lambda milli: Ask(1, milli, 0), st.integers(10, 1000)),
    st.builds(lambda mib: Ask(1, 0, mib), st.integers(64, 16_000)),
    st.builds(lambda milli, mib: Ask(1, milli, mib), st.integers(10, 999), st.integers(64, 16_000)),
    st.builds(lambda milli, memory: Ask(1, milli, 0, (), memory), st.integers(10, 999), st.integers(10, 999)),
    st.builds(lambda count: Ask(count, 1000, 0), st.integers(1, 3)),
)


def card(index: int, memory_mib: int = 16_000) -> Card:
    return Card(f"GPU-{index}", index, "A100", memory_mib)


def asking(*each: Ask, init: tuple[bool, ...] = ()) -> GPURequest:
    firsts = init or (False,) * len(each)
    return GPURequest(
        dialect="native", asks=tuple(ContainerAsk(f"c{at}", firsts[at], ask) for at, ask in enumerate(each))
    )


def placed(request: GPURequest, cards: list[Card], first: list[int]) -> Placement:
    """Each container on as many of the cards as it needs, from its first one on."""
    containers = []
    for each, start in zip(request.asks, first, strict=True):
        mine = [cards[(start + at) % len(cards)] for at in range(each.ask.devices)]
        amounts = [(one, need(each.ask, one)) for one in mine]
        slices = tuple(Slice(one.uuid, one.index, use.share_milli, use.memory_mib) for one, use in amounts)
        containers.append((each.container, slices))
    return Placement(tuple(containers))


@given(
    st.lists(st.tuples(asks, st.booleans(), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.sampled_from(SIZES), min_size=3, max_size=4),
)
def test_what_is_held_is_never_outside_the_bounds(
    containers: list[tuple[Ask, bool, int]], sizes: list[int]
) -> None:
    """And it is the sum of the larger part of each card, by another computation."""
    request = asking(*(ask for ask, _, _ in containers), init=tuple(init for _, init, _ in containers))
    cards = [card(at, size) for at, size in enumerate(sizes)]
    uses = amounts_by_card(request, placed(request, cards, [first for _, _, first in containers]))

    held = held_milli(request, uses, 0, cards)

    by_uuid = {each.uuid: each for each in cards}
    parts = (
        max(Fraction(use.share_milli), Fraction(1000 * use.memory_mib, by_uuid[uuid].memory_mib))
        for uuid, use in uses.items()
    )
    assert held == sum(map(ceil, parts))
    assert least_milli(request) <= least_milli(request, cards) <= held
    if all(
        use.share_milli <= 1000 and use.memory_mib <= by_uuid[uuid].memory_mib for uuid, use in uses.items()
    ):
        assert held <= most_milli(request)


@pytest.mark.parametrize(
    ("request_", "least", "on_16000", "on_80000"),
    [
        (asking(Ask(1, 300, 0)), 300, 300, 300),
        (asking(Ask(2, 1000, 0)), 2_000, 2_000, 2_000),
        (asking(Ask(1, 0, 4_000)), 1, 250, 50),
        (asking(Ask(1, 100, 4_000)), 100, 250, 100),
        (asking(Ask(1, 300, 0), Ask(1, 300, 0)), 600, 600, 600),
        (asking(Ask(1, 300, 0), Ask(1, 500, 0), init=(True, False)), 500, 500, 500),
        (asking(Ask(1, 800, 0), Ask(1, 500, 0), init=(True, False)), 800, 800, 800),
    ],
)
def test_the_least_need_is_that_of_the_largest_card(
    request_: GPURequest, least: int, on_16000: int, on_80000: int
) -> None:
    assert least_milli(request_) == least
    assert least_milli(request_, [card(0)]) == on_16000
    assert least_milli(request_, [card(0), card(1, 80_000)]) == on_80000
    assert depends_on_card(request_) is (least != on_16000 or least != on_80000)


def test_without_known_cards_the_most_counts() -> None:
    assert held_milli(asking(Ask(1, 0, 4_000)), {}, 0, ()) == 1_000
    assert held_milli(asking(Ask(1, 300, 0)), {}, 0, ()) == 300
    assert held_milli(asking(Ask(2, 1000, 0)), {}, 2, (card(0),)) == 2_000
    assert held_milli(None, {}, 0, (card(0),)) == 0


def test_cards_are_written_as_in_an_entry() -> None:
    assert [cards_text(milli) for milli in (0, 4_000, 2_500, 125, 999_999_999)] == [
        "0",
        "4",
        "2.5",
        "0.125",
        "999999.999",
    ]
