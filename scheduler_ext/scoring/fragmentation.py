"""The policy `fragmentation`: each pod goes where it adds least to what no typical pod could use."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scheduler_ext.model.cpu import bounded
from scheduler_ext.scoring.fragmentation_batch import NodeBatch, arrays_of
from scheduler_ext.scoring.fragmentation_model import FragmentationModel, Spot, Sum, exchanged
from scheduler_ext.scoring.policy import BINPACK, CardOrder, NodeContext, Policy, Score
from scheduler_ext.snapshot.free import Free
from timekeeper.core.values import Ask


class ContextKey(NamedTuple):
    """What of a node makes a difference: the models of its cards in question, one alone where all have it;
    the others; and the CPU that is left."""

    models: tuple[str, ...]
    other_cards: tuple[Spot, ...]
    cpu_left: int


@dataclass(frozen=True, slots=True)
class FragmentationPerNode:
    """For a pod that asks for so much CPU, by this mix. Two are equal if their gauges are one object."""

    fragmentation_model: FragmentationModel
    cpu_milli: int

    @property
    def batch(self) -> "FragmentationPerNode":
        """Itself."""
        return self

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> ContextKey:
        """Without models that no pod of the mix minds, and without CPU that is more than enough."""
        other_cards = tuple(
            sorted((free, self.fragmentation_model.model(model)) for free, model in context.other_cards)
        )
        left = bounded(context.cpu_left) - self.cpu_milli
        left = self.fragmentation_model.cpu_that_matters(left, len(free_by_card) + len(other_cards))
        models = context.models if self.fragmentation_model.constrained else ("",)
        return ContextKey(models, other_cards, left + self.cpu_milli)

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> Policy:
        """The policy for a node that is seen so."""
        if not isinstance(context_key, ContextKey):
            raise TypeError("not what this policy has seen")
        node = _FragmentationOnNode(self, context_key, free_by_card)
        return replace(FRAGMENTATION, order=node.order, score=node.score)

    def score_batch(
        self,
        ask: Ask,
        free_by_card: Sequence[Sequence[Free]],
        models: Sequence[str],
        cpus_left: Sequence[int],
    ) -> list[Score]:
        """The scores of nodes for a pod of one ask, -1 where it does not fit: what `for_node` gives for each.
        Each node's cards are of one model."""
        context_key = [
            [(free, self.fragmentation_model.model(model)) for free in its]
            for its, model in zip(free_by_card, models, strict=True)
        ]
        return NodeBatch(arrays_of(self.fragmentation_model), context_key, cpus_left).scores(
            ask, self.cpu_milli
        )

    def score_cpu_only(self, spots: Sequence[Sequence[Spot]], cpus_left: Sequence[int]) -> list[Score]:
        """How good nodes with such free cards are for a pod that asks for CPU alone."""
        context_key = [
            [(free, self.fragmentation_model.model(model)) for free, model in its] for its in spots
        ]
        return NodeBatch(arrays_of(self.fragmentation_model), context_key, cpus_left).scores(
            None, self.cpu_milli
        )


class _FragmentationOnNode:
    """One node's sum, and what a placement makes of it."""

    def __init__(
        self, by: FragmentationPerNode, context_key: ContextKey, free_by_card: Sequence[Free]
    ) -> None:
        self._fragmentation_model, self._cpu_before, self._cpu_after = (
            by.fragmentation_model,
            context_key.cpu_left,
            context_key.cpu_left - by.cpu_milli,
        )
        models = (
            context_key.models * len(free_by_card) if len(context_key.models) == 1 else context_key.models
        )
        self._spots = list(zip(free_by_card, models, strict=True))
        self._sum = self._fragmentation_model.sum_of([*self._spots, *context_key.other_cards])
        self._known: dict[tuple[Free, Free, str], CardOrder] = {}

    def order(self, before: Free, after: Free, at: int) -> CardOrder:
        """By the score that the node would have."""
        model = self._spots[at][1]
        known = self._known.get((before, after, model))
        if known is None:
            known = (-self._score([(before, model)], [(after, model)]),)
            self._known[before, after, model] = known
        return known

    def score(self, free_by_card: Sequence[Free], used: Sequence[int]) -> Score:
        """That of the node with the rooms as they then are."""
        taken = [self._spots[at] for at in used]
        return self._score(taken, [(free_by_card[at], self._spots[at][1]) for at in used])

    def _score(self, taken: Sequence[Spot], given: Sequence[Spot]) -> int:
        after: Sum = exchanged(self._fragmentation_model, self._sum, taken, given)
        return self._fragmentation_model.score(self._sum, after, self._cpu_before, self._cpu_after)


FRAGMENTATION = replace(BINPACK, name="fragmentation")


def fragmentation(fragmentation_model: FragmentationModel, cpu_milli: int) -> Policy:
    """The policy for a pod that asks for so much CPU, by this mix."""
    return replace(FRAGMENTATION, per_node=FragmentationPerNode(fragmentation_model, bounded(cpu_milli)))
