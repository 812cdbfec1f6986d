"""The policy `fragmentation`: each pod goes where it adds least to what no typical pod could use."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scheduler_ext.model.cpu import bounded
from scheduler_ext.scoring.fragmentation_batch import Nodes, scale_of
from scheduler_ext.scoring.fragmentation_model import Gauge, Spot, Sum, exchanged
from scheduler_ext.scoring.policy import BINPACK, Around, BindingArgs, Policy, Score
from scheduler_ext.snapshot.free import Room
from timekeeper.core.values import Ask


class Seen(NamedTuple):
    """What of a node makes a difference: the models of its cards in question, one alone where all have it;
    the others; and the CPU that is left."""

    models: tuple[str, ...]
    besides: tuple[Spot, ...]
    cpu_left: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """For a pod that asks for so much CPU, by this mix. Two are equal if their gauges are one object."""

    gauge: Gauge
    cpu_milli: int

    @property
    def together(self) -> "Gradient":
        """Itself."""
        return self

    def seen(self, around: Around, rooms: Sequence[Room]) -> Seen:
        """Without models that no pod of the mix minds, and without CPU that is more than enough."""
        besides = tuple(sorted((room, self.gauge.model(model)) for room, model in around.besides))
        left = bounded(around.cpu_left) - self.cpu_milli
        left = self.gauge.cpu_that_matters(left, len(rooms) + len(besides))
        models = around.models if self.gauge.constrained else ("",)
        return Seen(models, besides, left + self.cpu_milli)

    def here(self, seen: Hashable, rooms: Sequence[Room]) -> Policy:
        """The policy for a node that is seen so."""
        if not isinstance(seen, Seen):
            raise TypeError("not what this policy has seen")
        node = _Here(self, seen, rooms)
        return replace(FRAGMENTATION, order=node.order, score=node.score)

    def many(
        self, ask: Ask, rooms: Sequence[Sequence[Room]], models: Sequence[str], cpus_left: Sequence[int]
    ) -> list[Score]:
        """The scores of nodes for a pod of one ask, -1 where it does not fit: what `here` gives for each.
        Each node's cards are of one model."""
        seen = [
            [(room, self.gauge.model(model)) for room in its]
            for its, model in zip(rooms, models, strict=True)
        ]
        return Nodes(scale_of(self.gauge), seen, cpus_left).scores(ask, self.cpu_milli)

    def beside(self, spots: Sequence[Sequence[Spot]], cpus_left: Sequence[int]) -> list[Score]:
        """How good nodes with such free cards are for a pod that asks for CPU alone."""
        seen = [[(room, self.gauge.model(model)) for room, model in its] for its in spots]
        return Nodes(scale_of(self.gauge), seen, cpus_left).scores(None, self.cpu_milli)


class _Here:
    """One node's sum, and what a placement makes of it."""

    def __init__(self, by: Gradient, seen: Seen, rooms: Sequence[Room]) -> None:
        self._gauge, self._cpu_before, self._cpu_after = by.gauge, seen.cpu_left, seen.cpu_left - by.cpu_milli
        models = seen.models * len(rooms) if len(seen.models) == 1 else seen.models
        self._spots = list(zip(rooms, models, strict=True))
        self._sum = self._gauge.sum_of([*self._spots, *seen.besides])
        self._known: dict[tuple[Room, Room, str], BindingArgs] = {}

    def order(self, before: Room, after: Room, at: int) -> BindingArgs:
        """By the score that the node would have."""
        model = self._spots[at][1]
        known = self._known.get((before, after, model))
        if known is None:
            known = (-self._score([(before, model)], [(after, model)]),)
            self._known[before, after, model] = known
        return known

    def score(self, rooms: Sequence[Room], used: Sequence[int]) -> Score:
        """That of the node with the rooms as they then are."""
        taken = [self._spots[at] for at in used]
        return self._score(taken, [(rooms[at], self._spots[at][1]) for at in used])

    def _score(self, taken: Sequence[Spot], given: Sequence[Spot]) -> int:
        after: Sum = exchanged(self._gauge, self._sum, taken, given)
        return self._gauge.score(self._sum, after, self._cpu_before, self._cpu_after)


FRAGMENTATION = replace(BINPACK, name="fragmentation")


def fragmentation(gauge: Gauge, cpu_milli: int) -> Policy:
    """The policy for a pod that asks for so much CPU, by this mix."""
    return replace(FRAGMENTATION, weighing=Gradient(gauge, bounded(cpu_milli)))
