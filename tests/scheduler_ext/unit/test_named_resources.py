"""The exact search over cards with named resources, against a brute-force oracle that shares no code with
it."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.search import lay_out
from scheduler_ext.scoring.policy import BINPACK, SPREAD
from scheduler_ext.snapshot.free import FreeShape, Left, free_of, has_more
from tests.support.profile import examples
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.values import Amounts, Ask, Card, ContainerAsk

NAMES = ("cores", "tiles")
HUGE = 2**63 - 1


@dataclass(frozen=True)
class World:
    """Free amounts of both resources by card, and asks as (init, devices, cores, tiles)."""

    free: tuple[tuple[int, int], ...]
    asks: tuple[tuple[bool, int, int, int], ...]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    free = draw(
        st.lists(st.sampled_from([(4, 2), (3, 2), (2, 1), (0, 0), (4, HUGE)]), min_size=1, max_size=4)
    )
    amounts = st.sampled_from([(1, 1), (2, 0), (2, 1), (3, 1), (0, HUGE), (4, 2)])
    asks = draw(
        st.lists(st.tuples(st.booleans(), st.sampled_from([1, 1, 2]), amounts), min_size=1, max_size=5)
    )
    return World(tuple(free), tuple((init, devices, *both) for init, devices, both in asks))


def bears(world: World, chosen: tuple[tuple[int, ...], ...]) -> bool:
    moments = [[at for at, ask in enumerate(world.asks) if not ask[0]]]
    for at, ask in enumerate(world.asks):
        if ask[0]:
            moments.append([at, *(before for before in range(at) if not world.asks[before][0])])
    return all(
        sum(world.asks[at][2 + kind] for at in who if card in chosen[at]) <= world.free[card][kind]
        for who in moments
        for card in range(len(world.free))
        for kind in (0, 1)
    )


def brute_force(world: World) -> bool:
    ways = [itertools.combinations(range(len(world.free)), ask[1]) for ask in world.asks]
    return any(bears(world, chosen) for chosen in itertools.product(*map(list, ways)))


@settings(max_examples=examples(300), deadline=None)
@given(worlds(), st.sampled_from([BINPACK, SPREAD]))
def test_a_placement_is_found_if_and_only_if_one_exists(world: World, policy) -> None:  # type: ignore[no-untyped-def]
    cards = [Card(str(at), at, "", 1000, resources=(("cores", 4), ("tiles", HUGE))) for at in range(4)]
    free = [
        free_of(card, NamedAmount(0, 0, (("cores", 4 - cores), ("tiles", HUGE - tiles))))
        for card, (cores, tiles) in zip(cards, world.free, strict=False)
    ]
    asks = [
        ContainerAsk(str(at), init, Ask(devices, 0, 0, tuple(zip(NAMES, both, strict=True))))
        for at, (init, devices, *both) in enumerate(world.asks)
    ]

    layout = lay_out(asks, FreeShape(tuple(sorted(free)), ()), policy, Steps(100_000))

    ordered = World(tuple((each.resources[0][1], each.resources[1][1]) for each in sorted(free)), world.asks)
    assert (layout is not None) == brute_force(ordered)
    if layout is not None:
        assert bears(ordered, layout.chosen)
        assert all(left >= 0 for each in layout.free_by_card for _, left, _ in each.resources)


def test_nothing_of_such_a_card_is_given_to_a_request_that_names_none_of_its_resources() -> None:
    named = free_of(Card("c", 0, "", 1000, resources=(("cores", 4),)), CardAmount(0, 0))
    plain = free_of(Card("c", 0, "", 1000), CardAmount(0, 0))
    other, share = Ask(1, 0, 0, (("tiles", 1),)), Ask(1, 100, 0)

    for ask, free in ((share, named), (other, named), (other, plain)):
        assert lay_out([ContainerAsk("main", False, ask)], FreeShape((free,)), BINPACK, Steps()) is None


def test_a_resource_that_is_freed_makes_the_card_roomier_though_another_is_scarcer() -> None:
    card = Card("c", 0, "", 1000, resources=(("cores", 4), ("tiles", 4)))
    before = free_of(card, NamedAmount(0, 0, (("cores", 4), ("tiles", 2))))
    after = free_of(card, NamedAmount(0, 0, (("cores", 4), ("tiles", 1))))

    assert has_more(after, before)
    assert not has_more(before, after)
    assert (before.share_milli, after.share_milli) == (0, 0)


@pytest.mark.parametrize(
    ("has", "used", "left"),
    [
        pytest.param((("a", HUGE),), (("a", HUGE),), (("a", 0, HUGE),), id="all of 64 bits"),
        pytest.param((("a", 4),), (("a", 2 * HUGE),), (("a", 0, 4),), id="beyond 64 bits, and below zero"),
        pytest.param((("a", 4),), (("b", 3),), (("a", 4, 4),), id="a resource that the card no longer has"),
        pytest.param((("a", 4),), (), (("a", 4, 4),), id="nothing"),
    ],
)
def test_books_end_at_zero_and_at_64_bits(has: Amounts, used: Amounts, left: Left) -> None:
    """S32."""
    one = NamedAmount(0, 0, used)

    assert free_of(Card("c", 0, "", 1000, resources=has), one).resources == left
    assert (one + NamedAmount(0, 0, (("a", 1),))).most(one) == one + NamedAmount(0, 0, (("a", 1),))
