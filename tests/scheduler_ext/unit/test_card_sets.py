"""Cards of one container that differ in their least memory or are in groups: against a brute-force oracle
that shares no code with the search."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.search import lay_out
from scheduler_ext.scoring.policy import BINPACK, SPREAD, Policy
from scheduler_ext.snapshot.free import Free, FreeShape
from tests.support.profile import examples
from timekeeper.core.values import Ask, CardSet, ContainerAsk

Wanted = tuple[int, int, int, int]  # cards, least memory, pair, socket


@dataclass(frozen=True)
class World:
    """Cards as (memory, taken, pair, socket), and containers as (init, their sets)."""

    cards: tuple[tuple[int, bool, int, int], ...]
    containers: tuple[tuple[bool, tuple[Wanted, ...]], ...]


def one_ask(draw: st.DrawFn) -> tuple[Wanted, ...]:
    memory, group = st.sampled_from([0, 0, 16, 32]), st.sampled_from([0, 0, 1, 2])
    return draw(
        st.lists(st.tuples(st.integers(1, 2), memory, group, group), min_size=1, max_size=3).map(tuple)
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Small boards and one to three containers."""
    memory, taken = st.sampled_from([8, 16, 32]), st.sampled_from([False, False, False, True])
    card = st.tuples(memory, taken, st.integers(0, 2), st.integers(0, 1))
    cards = draw(st.lists(card, min_size=2, max_size=6))
    kinds = draw(st.lists(st.sampled_from([True, False, False, False]), min_size=1, max_size=3))
    return World(tuple(cards), tuple((init, one_ask(draw)) for init in sorted(kinds, reverse=True)))


def meets(world: World, sets: tuple[Wanted, ...], chosen: tuple[int, ...]) -> bool:
    """Whether cards in this order are those of the sets in their order."""
    slots = [each for each in sets for _ in range(each[0])]
    cards = [world.cards[at] for at in chosen]
    if any(taken or memory < slot[1] for (memory, taken, _, _), slot in zip(cards, slots, strict=True)):
        return False
    for place in (2, 3):  # pair, socket
        numbered = {slot[place] for slot in slots if slot[place]}
        for number in numbered:
            of_it = [card[place] for card, slot in zip(cards, slots, strict=True) if slot[place] == number]
            if len(set(of_it)) > 1:
                return False
    return True


def brute_force(world: World) -> bool:
    """Try every order of distinct cards for the containers that run together; an init container runs before
    them and may reuse their cards."""
    needed = [(init, sets, sum(each[0] for each in sets)) for init, sets in world.containers]
    cards = range(len(world.cards))

    def together(left: list[tuple[tuple[Wanted, ...], int]], free: frozenset[int]) -> bool:
        if not left:
            return True
        (sets, count), *rest = left
        return any(
            meets(world, sets, chosen) and together(rest, free - set(chosen))
            for chosen in itertools.permutations(sorted(free), count)
        )

    alone = [[(sets, count)] for init, sets, count in needed if init]
    mains = [(sets, count) for init, sets, count in needed if not init]
    return all(together(each, frozenset(cards)) for each in (*alone, mains))


@pytest.mark.untraced
@settings(max_examples=examples(600), deadline=None)
@given(worlds(), st.sampled_from([BINPACK, SPREAD]))
def test_a_layout_is_found_exactly_when_one_exists_and_each_set_has_its_cards(
    world: World, policy: Policy
) -> None:
    asks = [
        ContainerAsk(
            str(at), init, Ask(sum(each[0] for each in sets), 1000, 0, sets=tuple(CardSet(*s) for s in sets))
        )
        for at, (init, sets) in enumerate(world.containers)
    ]
    bits = [
        tuple(
            sum(1 << b for b, other in enumerate(world.cards) if other[at] == one[at]) for one in world.cards
        )
        for at in (2, 3)
    ]
    rooms = tuple(
        Free(0 if taken else 1000, 0 if taken else memory, memory) for memory, taken, _, _ in world.cards
    )

    layout = lay_out(asks, FreeShape(rooms, groups=(bits[0], bits[1])), policy, Steps(1_000_000))

    assert (layout is not None) == brute_force(world)
    if layout is not None:
        held = [
            at
            for (init, _), chosen in zip(world.containers, layout.chosen, strict=True)
            if not init
            for at in chosen
        ]
        assert len(held) == len(set(held))
        for (_, sets), chosen in zip(world.containers, layout.chosen, strict=True):
            assert len(set(chosen)) == len(chosen)
            assert meets(world, sets, chosen)


def test_cards_with_equal_free_amounts_in_different_groups_are_not_interchangeable() -> None:
    """A single card that comes first takes card 0, so the search begins anew with the pair: 0 and 2."""
    asks = [
        ContainerAsk("one", False, Ask(1, 1000, 0)),
        ContainerAsk("two", False, Ask(2, 1000, 0, sets=(CardSet(2, pair=1),))),
    ]
    linked = (0b101, 0b010, 0b101)

    layout = lay_out(asks, FreeShape((Free(1000, 16, 16),) * 3, groups=(linked, linked)), BINPACK, Steps())

    assert layout is not None
    assert layout.chosen == ((1,), (0, 2))
