"""The policy `fragmentation`: a pod goes where it adds least to the free GPU that no typical pod could
use."""

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
    """What distinguishes nodes for this policy."""

    models: tuple[str, ...]  # of the cards in question; one entry if all are equal
    other_cards: tuple[Spot, ...]  # the node's other cards
    cpu_left: int  # in thousandths of a core


@dataclass(frozen=True, slots=True)
class FragmentationPerNode:
    """`fragmentation` for pods with this CPU request. Instances are equal if their models are the same
    object."""

    fragmentation_model: FragmentationModel
    cpu_milli: int

    @property
    def batch(self) -> "FragmentationPerNode":
        """Itself."""
        return self

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> ContextKey:
        """Leaves out models that no typical pod selects by, and CPU beyond what matters."""
        other_cards = tuple(
            sorted((free, self.fragmentation_model.model(model)) for free, model in context.other_cards)
        )
        left = bounded(context.cpu_left) - self.cpu_milli
        left = self.fragmentation_model.cpu_that_matters(left, len(free_by_card) + len(other_cards))
        models = context.models if self.fragmentation_model.constrained else ("",)
        return ContextKey(models, other_cards, left + self.cpu_milli)

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> Policy:
        """See `PerNode`. Raises TypeError for a key of another policy."""
        if not isinstance(context_key, ContextKey):
            raise TypeError("not a key of this policy")
        node = _FragmentationOnNode(self, context_key, free_by_card)
        return replace(FRAGMENTATION, order=node.order, score=node.score)

    def score_batch(
        self,
        ask: Ask,
        free_by_card: Sequence[Sequence[Free]],
        models: Sequence[str],
        cpus_left: Sequence[int],
    ) -> list[Score]:
        """The same integers as `for_node`, for many nodes. The cards of a node are of one model."""
        context_key = [
            [(free, self.fragmentation_model.model(model)) for free in its]
            for its, model in zip(free_by_card, models, strict=True)
        ]
        return NodeBatch(arrays_of(self.fragmentation_model), context_key, cpus_left).scores(
            ask, self.cpu_milli
        )

    def score_cpu_only(self, spots: Sequence[Sequence[Spot]], cpus_left: Sequence[int]) -> list[Score]:
        """The scores of nodes with these free cards for a pod that requests CPU alone."""
        context_key = [
            [(free, self.fragmentation_model.model(model)) for free, model in its] for its in spots
        ]
        return NodeBatch(arrays_of(self.fragmentation_model), context_key, cpus_left).scores(
            None, self.cpu_milli
        )


class _FragmentationOnNode:
    """The sums of one node, and what a placement changes."""

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
        """The node's score with these free amounts."""
        taken = [self._spots[at] for at in used]
        return self._score(taken, [(free_by_card[at], self._spots[at][1]) for at in used])

    def _score(self, taken: Sequence[Spot], given: Sequence[Spot]) -> int:
        after: Sum = exchanged(self._fragmentation_model, self._sum, taken, given)
        return self._fragmentation_model.score(self._sum, after, self._cpu_before, self._cpu_after)


FRAGMENTATION = replace(BINPACK, name="fragmentation")


def fragmentation(fragmentation_model: FragmentationModel, cpu_milli: int) -> Policy:
    """The policy for a pod with this CPU request."""
    return replace(FRAGMENTATION, per_node=FragmentationPerNode(fragmentation_model, bounded(cpu_milli)))
