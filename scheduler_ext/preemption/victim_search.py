"""The exact search: the smallest set of pods on a node whose eviction makes a request fit, and of those sets
the least.

Sets of one pod are tried before sets of two, and so on: the first size that works is the smallest, and of
that size the least set is taken. Three rules keep the search short without losing a set that could win:

- A set is tried only if, card by card, the pods still to be chosen could free what the request needs
  (`lower_bound`).
- Pods with the same holdings, rank and PodDisruptionBudgets differ by age alone: of such a class the youngest
  leave first.
- Of two classes with the same holdings, the one of lower rank leaves first.

Steps and placements are limited. At the limit, the sets of the present size found so far are tried. If none
works, every candidate starts as a victim, and each is reprieved, highest rank first, whose return still
leaves a fit: no eviction is useless then either, but a smaller set may exist.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_ext.model.pdb import PDB
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.lower_bound import NEVER, ClassHoldings, Freed, Holdings, LowerBound
from scheduler_ext.preemption.precedence import Rank
from scheduler_ext.snapshot.host_left import HostAmounts
from timekeeper.core.request.card_amounts import CardAmount
from timekeeper.core.values import Placement


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How long the search for victims may take on one node."""

    steps: int = 4_000  # of the walk
    looks: int = 200  # attempts to find a placement


LIMITS = SearchLimits()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may be evicted, and what it holds."""

    pod: Pod
    uses: tuple[tuple[str, CardAmount], ...]  # what it takes of each card, by UUID
    unnamed: int  # whole cards that only the device plugin could name
    rank: Rank
    covering: tuple[PDB, ...]  # the PodDisruptionBudgets that cover it
    age_ms: int
    host: HostAmounts = ()  # what it gives back of the resources that are lacking beside cards


Victims = tuple[Candidate, ...]
Least = Callable[[Victims], Any]  # sort key of sets of one size
Look = Callable[[Collection[str]], Placement | None]  # the placement once those UIDs have left


class _SpentError(Exception):
    """The search has reached a limit."""


def fewest(
    bound_of: Callable[[Holdings], LowerBound],
    candidates: Sequence[Candidate],
    look: Look,
    least: Least,
    bound: SearchLimits = LIMITS,
) -> tuple[Victims, Placement] | None:
    """The victims, and the placement after their eviction; None if even all candidates are not enough."""
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
        self._bound = bound_of(
            [ClassHoldings(each[0].uses, len(each), each[0].host) for each in self._classes]
        )
        self.lower_bound = self._bound.at_least(self._bound.none, 0)
        self._steps, self._looks = bound.steps, bound.looks
        self._taken = [0] * len(self._classes)
        self._sets: list[Victims] = []

    def placement(self, victims: Sequence[Candidate]) -> Placement | None:
        """The request's placement once these have left."""
        return self._look({each.pod.uid for each in victims})

    def of_size(self, size: int) -> tuple[Victims, Placement] | None:
        """The least set of that size that works. Raises _SpentError if a limit leaves that open."""
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
        """Starts with every candidate as a victim, then reprieves each, highest rank first, whose return
        still leaves a fit."""
        staying = sorted(self._all, key=lambda each: (each.rank, each.age_ms, each.pod.uid), reverse=True)
        leaving = list(self._all)
        for each in staying:
            fewer = [other for other in leaving if other is not each]
            if self.placement(fewer) is not None:
                leaving = fewer
        placement = self.placement(leaving)
        return None if placement is None else (tuple(leaving), placement)

    def _gather(self, at: int, left: int, freed: Freed) -> None:
        """Collects the sets that take ``left`` more pods from the classes from ``at`` on."""
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
    """Candidates that differ by age alone, youngest first; the classes by rank, lowest first."""
    found: dict[object, list[Candidate]] = {}
    for each in sorted(candidates, key=lambda each: (each.rank, each.age_ms, each.pod.uid)):
        holdings = each.uses, each.unnamed, each.host
        found.setdefault((holdings, each.rank, each.covering), []).append(each)
    return [tuple(each) for each in found.values()]


def _dominating(classes: Sequence[Victims], at: int) -> list[int]:
    """The classes before this one with the same holdings and lower rank."""
    me = classes[at][0]
    return [
        before
        for before, (first, *_) in enumerate(classes[:at])
        if (first.uses, first.unnamed, first.host) == (me.uses, me.unnamed, me.host) and first.rank < me.rank
    ]
