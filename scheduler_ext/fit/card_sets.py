"""Ways to choose several cards of a node, and the limit on trials."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_STEPS = 10_000

Chosen = tuple[int, ...]  # positions of cards


class TooManyStepsError(Exception):
    """The search was given up: within its limit it found neither a layout nor the proof that none exists."""


@dataclass(slots=True)
class Steps:
    """How many more trials a search may make."""

    left: int = MOST_STEPS

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


def best_set(best: Sequence[int], wanted: int, near: Sequence[int], steps: Steps) -> Chosen | None:
    """The first of `card_sets` for cards, best first, of which no two are interchangeable; None if there is
    none."""
    if not near:
        return tuple(best[:wanted]) if len(best) >= wanted else None
    return next(card_sets([[at] for at in best], wanted, near, steps), None)


def near_first(found: Sequence[tuple[tuple[int, ...], int]], near: Sequence[int]) -> list[int]:
    """The cards in the policy's order; among equals, those with the fewest fitting cards near them come
    first, so that larger groups stay whole."""
    fitting = sum(1 << at for _, at in found)
    return [at for *_, at in sorted((order, (near[at] & fitting).bit_count(), at) for order, at in found)]
