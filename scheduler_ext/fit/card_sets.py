"""Ways to choose several cards of a node, and how long may be looked for one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_STEPS = 10_000

Chosen = tuple[int, ...]  # positions of cards


class TooManyStepsError(Exception):
    """The search was given up: neither a layout nor the proof that there is none was found in time."""


@dataclass(slots=True)
class Steps:
    """How many more trials a search may make; what it has made is missing."""

    left: int = MOST_STEPS

    def spend(self) -> None:
        """One trial. Raises TooManyStepsError when there is none left."""
        if self.left == 0:
            raise TooManyStepsError
        self.left -= 1


def card_sets(
    groups: Sequence[Sequence[int]], wanted: int, near: Sequence[int], steps: Steps
) -> Iterator[Chosen]:
    """Every way to take ``wanted`` cards from the groups that differs by more than cards that are alike,
    best first; the members of a group are alike.

    ``near``: for each card the bits of those that are near it, itself among them; then only cards are taken
    that are all near each other, and each trial costs a step. Empty where that does not matter.
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
    """The first of `card_sets` where no two of the cards, best first, are alike; None where there is none."""
    if not near:
        return tuple(best[:wanted]) if len(best) >= wanted else None
    return next(card_sets([[at] for at in best], wanted, near, steps), None)


def near_first(found: Sequence[tuple[tuple[int, ...], int]], near: Sequence[int]) -> list[int]:
    """The cards by what the policy sorts them by, and of equals those first that have the fewest others near
    them: the greater groups are left for pods that need them."""
    fitting = sum(1 << at for _, at in found)
    return [at for *_, at in sorted((order, (near[at] & fitting).bit_count(), at) for order, at in found)]
