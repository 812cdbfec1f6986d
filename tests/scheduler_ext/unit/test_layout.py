"""The exact search against a brute-force oracle that shares no code with it."""

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.card_sets import Steps, TooManyStepsError
from scheduler_ext.fit.problem import Layout
from scheduler_ext.fit.search import lay_out
from scheduler_ext.scoring.policy import BINPACK, SPREAD, Policy
from scheduler_ext.snapshot.free import Free, FreeShape
from tests.support.profile import examples
from timekeeper.core.values import Ask, ContainerAsk


@dataclass(frozen=True)
class World:
    """Cards as (free share, free memory, memory, untouched) and asks as (init, devices, share, memory).

    ``links``: which two cards are near each other, None where that does not matter; ``same``: the asks that
    must lie on one card."""

    cards: tuple[tuple[int, int, int, bool], ...]
    asks: tuple[tuple[bool, int, int, int], ...]
    links: frozenset[tuple[int, int]] | None = None
    same: frozenset[int] = frozenset()


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
    pairs = list(itertools.combinations(range(len(cards)), 2))
    links = draw(st.none() | st.sets(st.sampled_from(pairs)).map(frozenset)) if pairs else None
    single = [at for at, ask in enumerate(asks) if ask[1] == 1]
    none = st.just(frozenset[int]())
    sharing = st.sets(st.sampled_from(single), min_size=2).map(frozenset) if single[1:] else none
    return World(tuple(cards), tuple(asks), links, draw(none | sharing))


def amounts(ask: tuple[bool, int, int, int], card: tuple[int, int, int, bool]) -> tuple[int, int]:
    """What the ask takes of the card, by the rules in words."""
    _, _, share, memory = ask
    return share, memory if memory else card[2] * share // 1000


def bears(world: World, chosen: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the choice keeps the constraints, and the cards bear it at every moment: while each init
    container runs with the sidecars before it, and while all the others run."""
    if len({chosen[at] for at in world.same}) > 1:
        return False
    if world.links is not None:
        apart = itertools.chain.from_iterable(itertools.combinations(sorted(cards), 2) for cards in chosen)
        if any(two not in world.links for two in apart):
            return False
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
    near = () if world.links is None else tuple(near_to(at, world) for at in range(len(world.cards)))
    rooms = tuple(Free(*card[:3]) for card in world.cards)
    return lay_out(asks, FreeShape(rooms, near), policy, Steps(most_steps), world.same)


def near_to(at: int, world: World) -> int:
    """The bits of the cards near this one, itself among them."""
    links = world.links or ()
    return sum(1 << other for other in range(4) if other == at or tuple(sorted((at, other))) in links)


@pytest.mark.untraced
@settings(max_examples=examples(200), deadline=None)
@given(worlds(), st.sampled_from([BINPACK, SPREAD]))
def test_a_layout_is_found_exactly_when_one_exists_and_no_card_is_too_full(
    world: World, policy: Policy
) -> None:
    layout = lay(world, policy)

    assert (layout is not None) == brute_force(world)
    if layout is not None:
        assert all(len(set(cards)) == ask[1] for cards, ask in zip(layout.chosen, world.asks, strict=True))
        assert bears(world, layout.chosen)


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), st.integers(0, 3), st.integers(0, 400), st.integers(0, 4))
def test_more_free_never_loses_a_fit(world: World, at: int, share: int, memory: int) -> None:
    at %= len(world.cards)
    was = world.cards[at]
    now = (min(1000, was[0] + share), min(was[2], was[1] + memory), was[2])
    cards = (*world.cards[:at], (*now, was[3] or now[:2] == (1000, was[2])), *world.cards[at + 1 :])

    assert lay(world) is None or lay(replace(world, cards=cards)) is not None


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
    assert layout.free_by_card == (Free(500, 8, 16), Free(1000, 16, 16))


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


def test_the_same_rooms_left_by_other_containers_are_not_the_same_to_an_init_container() -> None:
    cards = ((1000, 16, 16, True), (500, 16, 16, False))
    sidecar, init, main, small = (False, 1, 300, 1), (True, 1, 750, 1), (False, 1, 300, 1), (False, 1, 10, 1)

    layout = lay(World(cards, (sidecar, init, main, small)), SPREAD)

    assert layout is not None
    assert layout.chosen[:3] == ((1,), (0,), (0,))


def test_an_init_container_may_not_share_a_moment_with_a_sidecar_that_fills_its_card() -> None:
    one = ((1000, 16, 16, True),)
    sidecar, init = (False, 1, 600, 0), (True, 1, 600, 0)

    assert lay(World(one, (init, sidecar))) is not None
    assert lay(World(one, (sidecar, init))) is None
    assert lay(World(one * 2, (sidecar, init))) is not None


def test_cards_that_look_alike_in_other_groups_are_not_alike_to_a_container_of_several() -> None:
    cards = ((1000, 16, 16, True), (600, 10, 16, False), (1000, 16, 16, True), (500, 8, 16, False))
    alone, two_linked = (False, 1, 650, 1), (False, 2, 600, 1)

    layout = lay(World(cards, (alone, two_linked), links=frozenset({(0, 1), (2, 3)})))

    assert layout is not None
    assert [set(cards) for cards in layout.chosen] == [{2}, {0, 1}]


def test_a_group_avoids_the_card_on_which_its_init_container_does_not_fit() -> None:
    cards = ((400, 16, 16, False), (1000, 16, 16, True))
    init, one, other, beside = (True, 1, 900, 1), (False, 1, 200, 1), (False, 1, 200, 1), (False, 1, 650, 1)

    assert lay(World(cards, (init, one, other), same=frozenset({0, 1, 2}))) is not None
    assert lay(World(cards, (init, one, other, beside), same=frozenset({0, 1, 2}))) is None
    apart = lay(World(cards, (init, one, other, beside), same=frozenset({1, 2})))
    assert apart is not None
    assert apart.chosen == ((1,), (0,), (0,), (1,))


def test_a_group_is_never_tried_where_its_init_container_does_not_fit() -> None:
    cards = ((1000, 16, 16, True), (800, 16, 16, False))
    init, grouped, other, small = (True, 1, 900, 1), (False, 1, 300, 9), (False, 1, 300, 9), (False, 1, 10, 1)

    layout = lay(World(cards, (init, grouped, other, small), same=frozenset({0, 1})))

    assert layout is not None
    assert layout.chosen[:3] == ((0,), (0,), (1,))


def test_cards_that_look_alike_are_not_where_only_one_bears_the_groups_init_container() -> None:
    cards = ((1000, 16, 16, True), (450, 12, 16, False))
    init, grouped = (True, 1, 900, 1), (False, 1, 100, 1)
    others = ((False, 1, 550, 4), (False, 1, 400, 1), (False, 1, 300, 1))

    layout = lay(World(cards, (init, *others, grouped), same=frozenset({0, 4})))

    assert layout is not None
    assert layout.chosen == ((0,), (0,), (1,), (0,), (0,))


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
