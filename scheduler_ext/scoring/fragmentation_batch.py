"""`fragmentation` for many nodes at once: the same integers as in `scoring.fragmentation`, by numpy.

A request that is not cached, or new typical pods, require every node to be scored. One by one that would take
most of a second on a large cluster.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduler_ext.model.cpu import MAX_MILLI, bounded
from scheduler_ext.scoring.fragmentation_model import FragmentationModel, Spot
from scheduler_ext.snapshot.free import takes
from timekeeper.core.values import WHOLE_MILLI, Ask

Ints = NDArray[np.int64]

AT_ONCE = 8_192  # numbers of a step: they fit into the processor's cache


class ModelArrays:
    """A model's numbers as arrays. The amounts of a card or a node are a row: the free milli-GPU, then by
    level the number of cards that suffice, then by level the free milli-GPU on these."""

    def __init__(self, fragmentation_model: FragmentationModel) -> None:
        self.fragmentation_model = fragmentation_model
        self.levels = len(fragmentation_model.levels)
        self._weights: Ints = np.array(fragmentation_model.weights, np.int64).ravel()
        self._steps: Ints = np.array(fragmentation_model.steps, np.int64)
        self._cpus: Ints = np.array(fragmentation_model.cpus, np.int64)
        self._level: Ints = np.arange(self.levels) * (fragmentation_model.most + 1)  # begin in ``_weights``
        self._a_cpu = self.levels * (fragmentation_model.most + 1)

    def amounts(self, spots: Sequence[Spot]) -> Ints:
        """The amounts of each spot; row 0 stands for no card."""
        found = np.zeros((len(spots) + 1, 1 + 2 * self.levels), np.int64)
        for row, (free, model) in enumerate(spots, 1):
            idle, fits = self.fragmentation_model.spot(free, model)
            found[row, 0] = idle
            for level in fits:
                found[row, 1 + level], found[row, 1 + self.levels + level] = 1, idle
        return found

    def losing(self, amounts: Ints, cpu_left: Ints, needs: int) -> Ints:
        """For nodes with these amounts: free compute that typical pods cannot use, and that is without CPU
        beside it, ``needs`` a card; in thousandths of a card, times the typical pods' number."""
        model, idle = self.fragmentation_model, amounts[..., 0]
        cards, free_milli = amounts[..., 1 : 1 + self.levels], amounts[..., 1 + self.levels :]
        enough = np.searchsorted(self._cpus, cpu_left, "right")
        begin = (enough * self._a_cpu)[..., None] + self._level
        by_cards = self._weights.take(begin + np.minimum(cards, model.most))
        lost: Ints = model.pods * idle - np.einsum("...l,...l", by_cards, free_milli)
        if needs:
            lost += model.pods * np.maximum(0, idle - cpu_left * WHOLE_MILLI // needs)
        return lost

    def scores(self, gained: Ints) -> Ints:
        """The scores of what is lost less than before."""
        found: Ints = np.searchsorted(self._steps, gained, "right")
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
        pod = _PodScores(self._scale, self._scale.amounts(list(self._numbers)), then, ask, cpu_milli)
        step = max(1, AT_ONCE // max(1, self._at.shape[1] * self._scale.levels))
        blocks = (slice(first, first + step) for first in range(0, len(self._at), step))
        return [score for block in blocks for score in pod.scores(self._at[block], self._cpus[block])]

    def _then(self, ask: Ask | None) -> Ints:
        """By number of a spot, the number of that spot after the ask; -1 where it does not fit."""
        numbers, then = self._numbers, [-1]
        for free, model in list(numbers):
            left = takes(ask, free) if ask is not None else None
            then.append(-1 if left is None else numbers.setdefault((left, model), len(numbers) + 1))
        return np.array(then + [-1] * (len(numbers) + 1 - len(then)), np.int64)


class _PodScores:
    """A pod's scores. ``amounts`` by number of a spot, and ``then``: that spot's number after the ask."""

    def __init__(
        self, scale: ModelArrays, amounts: Ints, then: Ints, ask: Ask | None, cpu_milli: int
    ) -> None:
        self._scale, self._ask, self._cpu_milli = scale, ask, cpu_milli
        self._amounts, self._fits = amounts, then >= 0
        self._change: Ints = amounts[then] - amounts  # counts only where the ask fits
        model = scale.fragmentation_model
        self._needs = model.cpu_only_per_card if ask is None else model.cpu_per_card

    def scores(self, at: Ints, cpus: Ints) -> list[int]:
        """The scores of nodes with these spots and this CPU left."""
        before: Ints = self._amounts[at].sum(1)
        lost, left = self._scale.losing(before, cpus, self._needs), cpus - self._cpu_milli
        if self._ask is None:
            return _listed(self._scores(lost, before, left))
        fits = self._fits[at]
        each = self._scores(lost[:, None], before[:, None] + self._change[at], left[:, None])
        each[~fits] = -1
        if self._ask.devices == 1:
            return _listed(each.max(1))
        best = np.argsort(-each, 1, kind="stable")[:, : self._ask.devices]
        after = before + self._change[np.take_along_axis(at, best, 1)].sum(1)
        return _listed(np.where(fits.sum(1) >= self._ask.devices, self._scores(lost, after, left), -1))

    def _scores(self, lost: Ints, after: Ints, left: Ints) -> Ints:
        return self._scale.scores(lost - self._scale.losing(after, left, self._needs))


def _bounded(cpus: Sequence[int]) -> Ints:
    if cpus and not -MAX_MILLI <= min(cpus) <= max(cpus) <= MAX_MILLI:
        cpus = [bounded(each) for each in cpus]
    return np.array(cpus, np.int64)


def _listed(scores: Ints) -> list[int]:
    listed: list[int] = scores.tolist()
    return listed
