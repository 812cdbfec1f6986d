"""`fragmentation` for many nodes at once: the same integers as in `scoring.fragmentation`, by numpy.

A request that is not cached, or new typical pods, require every node to be scored. One by one that would take
most of a second on a large cluster.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduler_ext.model.cpu import MOST_MILLI, bounded
from scheduler_ext.scoring.fragmentation_model import FragmentationModel, Spot
from scheduler_ext.snapshot.free import takes
from timekeeper.core.values import WHOLE_MILLI, Ask

Ints = NDArray[np.int64]


class SpotArrays:
    """The model's view of some spots as arrays; row 0 stands for no card."""

    def __init__(self, fragmentation_model: FragmentationModel, spots: Sequence[Spot]) -> None:
        self.idle: Ints = np.zeros(len(spots) + 1, np.int64)
        self.cards: Ints = np.zeros((len(spots) + 1, len(fragmentation_model.levels)), np.int64)
        for row, (free, model) in enumerate(spots, 1):
            self.idle[row], fits = fragmentation_model.spot(free, model)
            self.cards[row, list(fits)] = 1
        self.free_milli: Ints = self.cards * self.idle[:, None]


class ModelArrays:
    """A model's numbers as arrays."""

    def __init__(self, fragmentation_model: FragmentationModel) -> None:
        self.fragmentation_model = fragmentation_model
        shape = (
            len(fragmentation_model.cpus) + 1,
            len(fragmentation_model.levels),
            fragmentation_model.most + 1,
        )
        self.weights: Ints = np.array(fragmentation_model.weights, np.int64).reshape(shape)
        self.steps: Ints = np.array(fragmentation_model.steps, np.int64)
        self.cpus: Ints = np.array(fragmentation_model.cpus, np.int64)
        self.levels = np.arange(len(fragmentation_model.levels))

    def fragment(self, idle: Ints, cards: Ints, free_milli: Ints, cpu_left: Ints) -> Ints:
        """For each node: free compute that typical pods cannot use, in thousandths of a card, times their
        number."""
        enough = np.searchsorted(self.cpus, cpu_left, "right")
        by_cards = self.weights[
            enough[:, None], self.levels, np.minimum(cards, self.fragmentation_model.most)
        ]
        found: Ints = self.fragmentation_model.pods * idle - (by_cards * free_milli).sum(1)
        return found

    def stranded(self, idle: Ints, cpu_left: Ints, needs: int) -> Ints:
        """For each node: free compute without CPU beside it, ``needs`` a card, in thousandths of a card,
        times the typical pods' number."""
        beyond = idle - cpu_left * WHOLE_MILLI // needs if needs else np.zeros_like(idle)
        found: Ints = self.fragmentation_model.pods * np.maximum(0, beyond)
        return found


@lru_cache(maxsize=4)
def arrays_of(fragmentation_model: FragmentationModel) -> ModelArrays:
    """The model's arrays, made once for each of the last few models."""
    return ModelArrays(fragmentation_model)


class NodeBatch:
    """Some nodes' free cards, each with its model, and the CPU left there."""

    def __init__(self, scale: ModelArrays, spots: Sequence[Sequence[Spot]], cpus_left: Sequence[int]) -> None:
        self._scale = scale
        self._numbers: dict[Spot, int] = {}
        self._cpus = _bounded(cpus_left)
        widest = max(map(len, spots), default=0)
        numbers, none = self._numbers, [0]
        rows = [
            [numbers.setdefault(spot, len(numbers) + 1) for spot in its] + none * (widest - len(its))
            for its in spots
        ]
        self._at: Ints = np.array(rows, np.int64).reshape(len(spots), widest)

    def scores(self, ask: Ask | None, cpu_milli: int) -> list[int]:
        """Each node's score for a pod with this CPU request and ask, -1 where too few cards fit."""
        then = self._then(ask)
        seen = SpotArrays(self._scale.fragmentation_model, list(self._numbers))
        weighed = _BatchScores(self._scale, seen, self._at, self._cpus, cpu_milli, ask is None)
        if ask is None:
            return _listed(weighed.with_less(then, []))
        takes_it = then[self._at] >= 0
        fits = takes_it.sum(1) >= ask.devices
        each = np.stack([weighed.with_less(then, [column]) for column in self._at.T], 1)
        each[~takes_it] = -1
        if ask.devices == 1:
            return _listed(np.where(fits, each.max(1), -1))
        best = np.argsort(-each, 1, kind="stable")[:, : ask.devices]
        chosen = np.take_along_axis(self._at, best, 1) * fits[:, None]
        return _listed(np.where(fits, weighed.with_less(then, list(chosen.T)), -1))

    def _then(self, ask: Ask | None) -> Ints:
        """By number of a spot, the number of that spot after the ask; -1 where it does not fit."""
        numbers, then = self._numbers, [-1]
        for free, model in list(numbers):
            left = takes(ask, free) if ask is not None else None
            then.append(-1 if left is None else numbers.setdefault((left, model), len(numbers) + 1))
        return np.array(then + [-1] * (len(numbers) + 1 - len(then)), np.int64)


class _BatchScores:
    """The present sums of the nodes, and their scores after a change."""

    def __init__(
        self,
        scale: ModelArrays,
        seen: SpotArrays,
        at: Ints,
        cpus: Ints,
        cpu_milli: int,
        is_cpu_only: bool,
    ) -> None:
        self._scale, self._seen, self._left = scale, seen, cpus - cpu_milli
        self._idle: Ints = seen.idle[at].sum(1)
        self._cards: Ints = seen.cards[at].sum(1)
        self._free: Ints = seen.free_milli[at].sum(1)
        model = scale.fragmentation_model
        self._needs = model.cpu_only_per_card if is_cpu_only else model.cpu_per_card
        self._lost = self._losing(self._idle, self._cards, self._free, cpus)

    def with_less(self, then: Ints, columns: Sequence[Ints]) -> Ints:
        """The scores with the cards in these columns (one of each node) as they are after the ask."""
        idle, cards, free_milli = self._idle, self._cards, self._free
        for column in columns:
            after = np.maximum(0, then[column])
            idle = idle - self._seen.idle[column] + self._seen.idle[after]
            cards = cards - self._seen.cards[column] + self._seen.cards[after]
            free_milli = free_milli - self._seen.free_milli[column] + self._seen.free_milli[after]
        gained = self._lost - self._losing(idle, cards, free_milli, self._left)
        found: Ints = np.searchsorted(self._scale.steps, gained, "right")
        return found

    def _losing(self, idle: Ints, cards: Ints, free_milli: Ints, cpu_left: Ints) -> Ints:
        fragment = self._scale.fragment(idle, cards, free_milli, cpu_left)
        return fragment + self._scale.stranded(idle, cpu_left, self._needs)


def _bounded(cpus: Sequence[int]) -> Ints:
    if cpus and not -MOST_MILLI <= min(cpus) <= max(cpus) <= MOST_MILLI:
        cpus = [bounded(each) for each in cpus]
    return np.array(cpus, np.int64)


def _listed(scores: Ints) -> list[int]:
    listed: list[int] = scores.tolist()
    return listed
