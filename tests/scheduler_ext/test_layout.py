"""The exact search against a brute-force oracle that shares no code with it."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.layout import Layout, Steps, TooManyStepsError, lay_out
from scheduler_ext.policy import BINPACK, SPREAD, Policy
from scheduler_ext.rooms import Room
from timekeeper.core.values import Ask, ContainerAsk


@dataclass(frozen=True)
class World:
    """Cards as (free share, free memory, memory, untouched) and asks as (init, devices, share, memory)."""

    cards: tuple[tuple[int, int, int, bool], ...]
    asks: tuple[tuple[bool, int, int, int], ...]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Small nodes and many containers: sizes from few values, so that cards are often just full."""
    cards = []
    for _ in range(draw(st.integers(1, 4))):
        memory = draw(st.sampled_from([8, 16]))
        share, free = draw(
            st.sampled_from([(1000, memory), (1000, memory - 2), (600, memory // 2), (300, 3), (0, 0)])
        )
        cards.append((share, free, memory, (share, free) == (1000, memory)))
    asks = []
    for _ in range(draw(st.integers(1, 5))):
        init = draw(st.integers(0, 4)) == 0
        devices = draw(st.sampled_from([1, 1, 1, 2]))
        asks.append(
            (
                init,
                devices,
                *draw(
                    st.sampled_from([(1000, 0), (1000, 3), (500, 0), (250, 0), (300, 4), (0, 3), (400, 2)])
                ),
            )
        )
    return World(tuple(cards), tuple(asks))


def amounts(ask: tuple[bool, int, int, int], card: tuple[int, int, int, bool]) -> tuple[int, int]:
    """What the ask takes of the card, by the rules in words."""
    _, _, share, memory = ask
    return share, memory if memory else card[2] * share // 1000


def bears(world: World, chosen: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the cards bear this choice at every moment: while each init container runs with the sidecars
    before it, and while all the others run."""
    moments = [[at for at, ask in enumerate(world.asks) if not ask[0]]]
    for at, ask in enumerate(world.asks):
        if ask[0]:
            moments.append([at, *(b for b in range(at) if not world.asks[b][0])])
    return all(bears_together(world, chosen, who) for who in moments)


def bears_together(world: World, chosen: tuple[tuple[int, ...], ...], who: list[int]) -> bool:
    for number, card in enumerate(world.cards):
        here = [at for at in who if number in chosen[at]]
        share = sum(amounts(world.asks[at], card)[0] for at in here)
        memory = sum(amounts(world.asks[at], card)[1] for at in here)
        if share > card[0] or memory > card[1]:
            return False
        if any(world.asks[at][2] == 1000 for at in here) and (len(here) > 1 or not card[3]):
            return False
    return True


def brute_force(world: World) -> bool:
    """Try every choice of distinct cards for every container."""
    ways = [itertools.combinations(range(len(world.cards)), ask[1]) for ask in world.asks]
    return any(bears(world, chosen) for chosen in itertools.product(*map(list, ways)))


def lay(world: World, policy: Policy = BINPACK, most_steps: int = 100_000) -> Layout | None:
    asks = [
        ContainerAsk(str(at), init, Ask(n, share, mem)) for at, (init, n, share, mem) in enumerate(world.asks)
    ]
    return lay_out(asks, [Room(*card[:3]) for card in world.cards], policy, Steps(most_steps))


@settings(max_examples=1500, deadline=None)
@given(worlds(), st.sampled_from([BINPACK, SPREAD]))
def test_a_layout_is_found_exactly_when_one_exists_and_no_card_is_too_full(
    world: World, policy: Policy
) -> None:
    layout = lay(world, policy)

    assert (layout is not None) == brute_force(world)
    if layout is not None:
        assert all(len(set(cards)) == ask[1] for cards, ask in zip(layout.chosen, world.asks, strict=True))
        assert bears(world, layout.chosen)


@settings(max_examples=300, deadline=None)
@given(worlds(), st.integers(0, 3), st.integers(0, 400), st.integers(0, 4))
def test_more_room_never_loses_a_fit(world: World, at: int, share: int, memory: int) -> None:
    at %= len(world.cards)
    was = world.cards[at]
    now = (min(1000, was[0] + share), min(was[2], was[1] + memory), was[2])
    cards = (*world.cards[:at], (*now, was[3] or now[:2] == (1000, was[2])), *world.cards[at + 1 :])

    assert lay(world) is None or lay(World(cards, world.asks)) is not None


def test_the_straight_pass_is_mended_by_the_search() -> None:
    cards = ((600, 16, 16, False), (500, 16, 16, False))
    asks = ((False, 1, 300, 1), (False, 1, 300, 1), (False, 1, 250, 1), (False, 1, 250, 1))

    layout = lay(World(cards, asks))

    assert layout is not None
    assert layout.chosen == ((0,), (0,), (1,), (1,))


def test_an_init_container_reuses_the_pods_own_cards() -> None:
    cards = ((1000, 16, 16, True), (1000, 16, 16, True))

    layout = lay(World(cards, ((True, 1, 400, 0), (False, 1, 500, 0))))

    assert layout is not None
    assert layout.chosen == ((0,), (0,))
    assert layout.rooms[1] == Room(1000, 16, 16)


def test_an_init_container_goes_where_it_costs_the_pod_nothing_more() -> None:
    half_used, untouched = (500, 8, 16, False), (1000, 16, 16, True)

    layout = lay(World((half_used, untouched), ((True, 1, 300, 0), (False, 1, 1000, 0))))

    assert layout is not None
    assert layout.chosen == ((1,), (1,))


def test_cards_that_look_alike_but_carry_other_sidecars_are_not_alike_to_an_init_container() -> None:
    cards = ((1000, 16, 16, True),) * 2
    sidecar, small_sidecar, init, main = (
        (False, 1, 600, 1),
        (False, 1, 200, 1),
        (True, 2, 300, 1),
        (False, 1, 600, 1),
    )

    layout = lay(World(cards, (sidecar, small_sidecar, init, main)))

    assert layout is not None
    assert [set(cards) for cards in layout.chosen] == [{0}, {1}, {0, 1}, {1}]


def test_an_init_container_may_not_share_a_moment_with_a_sidecar_that_fills_its_card() -> None:
    one = ((1000, 16, 16, True),)
    sidecar, init = (False, 1, 600, 0), (True, 1, 600, 0)

    assert lay(World(one, (init, sidecar))) is not None
    assert lay(World(one, (sidecar, init))) is None
    assert lay(World(one * 2, (sidecar, init))) is not None


def test_a_search_beyond_its_bound_is_given_up() -> None:
    cards = ((1000, 10**6, 10**6, True),) * 8
    asks = tuple((False, 1, 331 + 7 * at % 13, 1000 + 17 * at) for at in range(23))

    with pytest.raises(TooManyStepsError):
        lay(World(cards, asks), most_steps=500)


def test_many_equal_containers_on_many_equal_cards_are_decided_in_few_steps() -> None:
    cards = ((1000, 16000, 16000, True),) * 16

    assert lay(World(cards, ((False, 1, 340, 0),) * 32), most_steps=0) is not None
    assert lay(World(cards, ((False, 1, 340, 0),) * 33), most_steps=1000) is None


def test_a_pod_of_a_thousand_containers_is_answered() -> None:
    cards = ((1000, 16000, 16000, True),) * 8

    assert lay(World(cards, ((False, 1, 10, 1),) * 800)) is not None
    with pytest.raises(TooManyStepsError):
        lay(World(cards, ((False, 1, 11, 1),) * 725))
    assert lay(World(cards, ((False, 1, 10, 1),) * 1200)) is None
