"""Ways to choose several cards of a node, and the limit on trials."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from scheduler_ext.model.topology import Near
from scheduler_ext.snapshot.free import Free, FreeShape
from timekeeper.core.values import Ask, CardSet

MAX_STEPS = 10_000

Chosen = tuple[int, ...]  # positions of cards


class TooManyStepsError(Exception):
    """The search was given up: within its limit it found neither a layout nor the proof that none exists."""


@dataclass(slots=True)
class Steps:
    """How many more trials a search may make."""

    left: int = MAX_STEPS

    @property
    def are_few(self) -> bool:
        """Whether they do not suffice for the largest search."""
        return self.left < MAX_STEPS

    def spend(self) -> None:
        """Counts one trial. Raises TooManyStepsError if none is left."""
        if self.left == 0:
            raise TooManyStepsError
        self.left -= 1


def card_sets(
    groups: Sequence[Sequence[int]], wanted: int, near: Sequence[int], steps: Steps
) -> Iterator[Chosen]:
    """Every way to take ``wanted`` cards from the groups, best first, leaving out ways that differ only by
    interchangeable cards. The members of a group are interchangeable.

    ``near``: for each card the bits of the cards near it, itself included. Then all chosen cards are near
    each other, and each trial costs a step. Empty where nearness does not matter.
    """
    if near:
        steps.spend()
    if wanted == 0:
        yield ()
        return
    if sum(map(len, groups)) < wanted:
        return
    first, rest = groups[0], groups[1:]
    for count in range(min(len(first), wanted), -1, -1):
        left = [group for group in rest if near[first[0]] >> group[0] & 1] if near and count else rest
        for others in card_sets(left, wanted - count, near, steps):
            yield (*first[:count], *others)


def ways(ask: Ask, groups: Sequence[Sequence[int]], shape: FreeShape, steps: Steps) -> Iterator[Chosen]:
    """Every way to take the ask's cards from the groups, as `card_sets`, in the order of its sets."""
    near = near_of(ask, shape)
    if not ask.sets:
        return card_sets(groups, ask.devices, near, steps)
    return _by_set(ask.sets, groups, () if ask.grouped else near, shape, steps)


def best_way(ask: Ask, best: Sequence[int], shape: FreeShape, steps: Steps) -> Chosen | None:
    """The first of `ways` for cards, best first; None if there is none."""
    if not ask.sets and not near_of(ask, shape):
        return tuple(best[: ask.devices]) if len(best) >= ask.devices else None
    return next(ways(ask, [[at] for at in best], shape, steps), None)


def near_of(ask: Ask, shape: FreeShape) -> Near:
    """For each card the bits of the cards near it, in the sense that matters most to the ask; empty where
    none does."""
    if ask.devices == 1:
        return ()
    if not ask.grouped:
        return shape.near
    linked, one_node = shape.groups
    return linked if any(each.pair for each in ask.sets) else one_node


def _by_set(
    sets: Sequence[CardSet],
    groups: Sequence[Sequence[int]],
    near: Near,
    shape: FreeShape,
    steps: Steps,
    held: Sequence[tuple[CardSet, int]] = (),
) -> Iterator[Chosen]:
    """``near``: for all cards of the ask. ``held``: the cards chosen so far, each with its set."""
    if not sets:
        yield ()
        return
    mine = sets[0]
    fitting = [[at for at in group if _joins(at, mine, held, near, shape)] for group in groups]
    maps = _maps(mine, mine, near, shape)
    both = tuple(reduce(int.__and__, bits) for bits in zip(*maps, strict=True))
    for chosen in card_sets([each for each in fitting if each], mine.devices, both, steps):
        steps.spend()
        now = (*held, *((mine, at) for at in chosen))
        for others in _by_set(sets[1:], groups, near, shape, steps, now):
            yield (*chosen, *others)


def _joins(at: int, mine: CardSet, held: Sequence[tuple[CardSet, int]], near: Near, shape: FreeShape) -> bool:
    free: Free = shape.free_by_card[at]
    if free.card_mib < mine.min_memory_mib:
        return False
    return all(
        at != other and all(bits[other] >> at & 1 for bits in _maps(mine, its, near, shape))
        for its, other in held
    )


def _maps(one: CardSet, other: CardSet, near: Near, shape: FreeShape) -> list[Near]:
    """Each sense in which cards of these two sets must be near each other."""
    linked, one_node = shape.groups or ((), ())
    maps = [near] if near else []
    maps += [linked] if one.pair and one.pair == other.pair else []
    return maps + ([one_node] if one.socket and one.socket == other.socket else [])


def near_first(found: Sequence[tuple[tuple[int, ...], int]], near: Sequence[int]) -> list[int]:
    """The cards in the policy's order; among equals, those with the fewest fitting cards near them come
    first, so that larger groups stay whole."""
    fitting = sum(1 << at for _, at in found)
    return [at for *_, at in sorted((order, (near[at] & fitting).bit_count(), at) for order, at in found)]
