"""The exact search: the fewest pods of a node whose leaving makes a request fit, and of those sets the least.

Sets of one pod are tried before sets of two, and so on, so the first size at which any set does is the least;
of that size the least set that does is taken. Three things keep that short, none of which loses a set that
could win:

- A set is tried only if, card by card, as many pods as are still to be chosen could free what the request
  needs (`shortage`).
- Pods that hold the same, are of the same rank and under the same PodDisruptionBudgets differ by age alone:
  of such a class the youngest go first.
- Of two classes that hold the same, the one of lower rank goes first.

The search goes so many steps and looks for so many placements. Where these do not suffice, the sets found so
far of the size at hand are tried. Where none of them does, all leave in thought, and one after another is let
back in whom the request can do with: nobody leaves in vain then either, but there may be a smaller set.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_ext.model.pdb import PDB
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.lower_bound import NEVER, Freed, Holdings, LowerBound
from scheduler_ext.preemption.precedence import Rank
from timekeeper.core.request.cards import CardAmount
from timekeeper.core.values import Placement


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How many steps the search goes, and how often it looks for a placement before it is content with less
    than the least."""

    steps: int = 4_000
    looks: int = 200


LIMITS = SearchLimits()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may be asked to leave, and what it holds: of cards by UUID, or as whole cards that only the
    node's plugin could name. ``covering``: the PodDisruptionBudgets over it."""

    pod: Pod
    uses: tuple[tuple[str, CardAmount], ...]
    unnamed: int
    rank: Rank
    covering: tuple[PDB, ...]
    age_ms: int


Victims = tuple[Candidate, ...]
Least = Callable[[Victims], Any]  # what sets of one size are sorted by
Look = Callable[[Collection[str]], Placement | None]  # the placement once those UIDs have left


class _SpentError(Exception):
    """The search has had its steps or its looks."""


def fewest(
    bound_of: Callable[[Holdings], LowerBound],
    candidates: Sequence[Candidate],
    look: Look,
    least: Least,
    bound: SearchLimits = LIMITS,
) -> tuple[Victims, Placement] | None:
    """The victims and the placement that their leaving makes possible; None where not even all of them
    would do."""
    search = _VictimSearch(bound_of, candidates, look, least, bound)
    if search.lower_bound >= NEVER or search.placement(candidates) is None:
        return None
    try:
        sizes = range(search.lower_bound, len(candidates) + 1)
        return next(found for found in map(search.of_size, sizes) if found is not None)
    except _SpentError:
        return search.reprieve()


class _VictimSearch:
    """One search; its fields are the state of the walk."""

    def __init__(
        self,
        bound_of: Callable[[Holdings], LowerBound],
        candidates: Sequence[Candidate],
        look: Look,
        least: Least,
        bound: SearchLimits,
    ) -> None:
        self._look, self._least = look, least
        self._all = tuple(candidates)
        self._classes = _classes(candidates)
        self._before = [_dominating(self._classes, at) for at in range(len(self._classes))]
        self._bound = bound_of([(each[0].uses, len(each)) for each in self._classes])
        self.lower_bound = self._bound.at_least(self._bound.none, 0)
        self._steps, self._looks = bound.steps, bound.looks
        self._taken = [0] * len(self._classes)
        self._sets: list[Victims] = []

    def placement(self, victims: Sequence[Candidate]) -> Placement | None:
        """What the request would have once they have left."""
        return self._look({each.pod.uid for each in victims})

    def of_size(self, size: int) -> tuple[Victims, Placement] | None:
        """The least set of that size that does. Raises _SpentError where it is not known whether one does."""
        self._sets = []
        whole = True
        try:
            self._gather(0, size, self._bound.none)
        except _SpentError:
            whole = False
        for victims in sorted(self._sets, key=self._least):
            if not self._looks:
                raise _SpentError
            self._looks -= 1
            placement = self.placement(victims)
            if placement is not None:
                return victims, placement
        if not whole:
            raise _SpentError
        return None

    def reprieve(self) -> tuple[Victims, Placement] | None:
        """All leave but those whom the request can do with, the highest rank first."""
        staying = sorted(self._all, key=lambda each: (each.rank, each.age_ms, each.pod.uid), reverse=True)
        leaving = list(self._all)
        for each in staying:
            fewer = [other for other in leaving if other is not each]
            if self.placement(fewer) is not None:
                leaving = fewer
        placement = self.placement(leaving)
        return None if placement is None else (tuple(leaving), placement)

    def _gather(self, at: int, left: int, freed: Freed) -> None:
        """Collect the sets that take ``left`` more from the classes from this one on."""
        if self._steps == 0:
            raise _SpentError
        self._steps -= 1
        if self._bound.at_least(freed, at) > left:
            return
        if left == 0:
            self._sets.append(self._chosen(at))
            return
        if at == len(self._classes):
            return
        most = min(left, len(self._classes[at]))
        if any(self._taken[before] < len(self._classes[before]) for before in self._before[at]):
            most = 0
        for count in range(most, -1, -1):
            self._taken[at] = count
            self._gather(at + 1, left - count, self._bound.freed(freed, at, count) if count else freed)
        self._taken[at] = 0

    def _chosen(self, until: int) -> Victims:
        return tuple(
            each
            for members, count in zip(self._classes[:until], self._taken[:until], strict=True)
            for each in members[:count]
        )


def _classes(candidates: Sequence[Candidate]) -> list[Victims]:
    """Those who differ by age alone, youngest first; the classes by rank, lowest first."""
    found: dict[object, list[Candidate]] = {}
    for each in sorted(candidates, key=lambda each: (each.rank, each.age_ms, each.pod.uid)):
        found.setdefault((each.uses, each.unnamed, each.rank, each.covering), []).append(each)
    return [tuple(each) for each in found.values()]


def _dominating(classes: Sequence[Victims], at: int) -> list[int]:
    """The classes before this one that hold the same and are of lower rank."""
    me = classes[at][0]
    return [
        before
        for before, (first, *_) in enumerate(classes[:at])
        if (first.uses, first.unnamed) == (me.uses, me.unnamed) and first.rank < me.rank
    ]
