"""How much of a node's free GPU no typical pod could use, and what a placement adds to that.

Fragmentation gradient descent (Weng et al., USENIX ATC'23): given typical pods M, a node's fragment F(M) is
the free GPU that a pod drawn from M could not use there, in expectation. Added to that is the free GPU for
which the node has no CPU left. Everything is an integer, ``pods x milli-GPU``: the sum over the typical pods,
not their mean.

A typical pod cannot use a card with less free than it requests, nor one that its constraints exclude. Where
the node has too few cards for it, or too little CPU, it can use none of the node.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from math import ceil, log
from typing import NamedTuple

from scheduler_ext.model.cpu import bounded
from scheduler_ext.scoring.typical_pods import TypicalPod, TypicalPods
from scheduler_ext.snapshot.free import Free, takes
from timekeeper.core.request.cards import allowed
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest

# the spread of the score: placements whose fragments differ by a few hundredths of this are equal, and the
# first node by name is taken
SOFTNESS_MILLI = 1_800
THRIFT = (5, 6)  # a GPU counts as served with 5/6 of its share of the typical pods' CPU
# to pods without a GPU with 4/3 of it: what is left must also do for pods that request more CPU than others
CPU_ONLY_THRIFT = (4, 3)

Spot = tuple[Free, str]  # what is free on a card, and its model


class Level(NamedTuple):
    """What some typical pods request of each of their cards."""

    ask: Ask
    allowed: GPURequest


class Sum(NamedTuple):
    """A node's free cards in total."""

    idle: int  # free milli-GPU in all
    cards: tuple[int, ...]  # by level: number of cards that suffice
    free_milli: tuple[int, ...]  # by level: free milli-GPU on these


def idle_milli(free: Free) -> int:
    """What can still be given out of the card as a fraction: the lesser of free compute and free memory."""
    return min(free.share_milli, free.memory_mib * WHOLE_MILLI // free.card_mib)


class FragmentationModel:
    """Typical pods, prepared for counting. It never changes."""

    def __init__(self, typical_pods: TypicalPods) -> None:
        counts = [
            (typical._replace(cpu_milli=bounded(typical.cpu_milli)), count)
            for typical, count in typical_pods.counts
        ]
        gpu = [(typical, count) for typical, count in counts if typical.devices]
        self.typical_pods, self.pods = typical_pods, typical_pods.pods
        # what the GPU pods request of a card
        self.levels = tuple(dict.fromkeys(_level(typical) for typical, _ in gpu))
        self.constrained = any(typical.models or typical.exclude_models for typical, _ in gpu)
        # their CPU requests, ascending
        self.cpus = sorted({typical.cpu_milli for typical, _ in gpu})
        # the most cards that one of them requests
        self.most = max((typical.devices for typical, _ in gpu), default=0)
        # [number of `cpus` that the node can serve][level][number of cards that suffice] -> pods that fit
        self.weights = [self._weights(gpu, most) for most in (-1, *self.cpus)]
        # the score is the number of these thresholds that are reached: int(100 x sigmoid(x / SOFTNESS_MILLI))
        self.steps = [ceil(self.pods * SOFTNESS_MILLI * log(k / (100 - k))) for k in range(1, 100)]
        cpu = sum(typical.cpu_milli * count for typical, count in gpu)
        cards_milli = sum(typical.devices * _milli(typical) * count for typical, count in gpu)
        # the CPU that a free card needs beside it; the same for pods without a GPU
        self.cpu_per_card, self.cpu_only_per_card = (
            cpu * WHOLE_MILLI * part // (max(1, cards_milli) * of) for part, of in (THRIFT, CPU_ONLY_THRIFT)
        )
        # it refers to the levels and not to the model: such a cycle would outlive the model
        self.spot = lru_cache(maxsize=65_536)(partial(_spot, self.levels))

    def sum_of(self, spots: Iterable[Spot]) -> Sum:
        """These free cards in total."""
        idle, cards, free_milli = 0, [0] * len(self.levels), [0] * len(self.levels)
        for free, model in spots:
            card_milli, fits = self.spot(free, model)
            idle += card_milli
            for at in fits:
                cards[at] += 1
                free_milli[at] += card_milli
        return Sum(idle, tuple(cards), tuple(free_milli))

    def fragment(self, node: Sum, cpu_left: int) -> int:
        """``pods x milli-GPU`` that the typical pods could not use."""
        weights = self.weights[bisect_right(self.cpus, cpu_left)]
        usable = sum(
            by_cards[min(cards, self.most)] * free_milli
            for by_cards, cards, free_milli in zip(weights, node.cards, node.free_milli, strict=True)
        )
        return self.pods * node.idle - usable

    def without_cpu(self, node: Sum, cpu_left: int) -> int:
        """``pods x milli-GPU`` that are free beyond what the CPU left would serve."""
        served = cpu_left * WHOLE_MILLI // self.cpu_per_card if self.cpu_per_card else node.idle
        return self.pods * max(0, node.idle - served)

    def score(self, before: Sum, after: Sum, cpu_before: int, cpu_after: int) -> int:
        """For a pod with a GPU request, 0 to 99, greater is better: int(100 x sigmoid((F + S before - F - S
        after) / SOFTNESS_MILLI)). Rounded on purpose: nearly equal nodes are equal, and the first of them is
        filled."""
        lost = self.fragment(before, cpu_before) + self.without_cpu(before, cpu_before)
        then = self.fragment(after, cpu_after) + self.without_cpu(after, cpu_after)
        return bisect_right(self.steps, lost - then)

    def cpu_that_matters(self, cpu_left: int, cards: int) -> int:
        """The CPU left, cut off where more makes no difference to a node with this many cards."""
        return min(cpu_left, max(self.cpus[-1] if self.cpus else 0, (cards + 1) * self.cpu_per_card))

    def model(self, model: str) -> str:
        """The card model, or empty if no typical pod selects by model."""
        return model if self.constrained else ""

    def _weights(self, gpu: Sequence[tuple[TypicalPod, int]], cpu_milli: int) -> list[list[int]]:
        rows = [[0] * (self.most + 1) for _ in self.levels]
        for typical, count in gpu:
            if typical.cpu_milli <= cpu_milli:
                row = rows[self.levels.index(_level(typical))]
                for cards in range(typical.devices, self.most + 1):
                    row[cards] += count
        return rows


def _spot(levels: Sequence[Level], free: Free, model: str) -> tuple[int, tuple[int, ...]]:
    """(free milli-GPU of the card, the levels for which it suffices)."""
    card = Card("", 0, model, free.card_mib)
    fits = (
        at
        for at, level in enumerate(levels)
        if takes(level.ask, free) is not None and allowed(level.allowed, card)
    )
    return idle_milli(free), tuple(fits)


def exchanged(
    fragmentation_model: FragmentationModel, node: Sum, taken: Sequence[Spot], given: Sequence[Spot]
) -> Sum:
    """The node's sums with ``taken`` replaced by ``given``."""
    less, more = fragmentation_model.sum_of(taken), fragmentation_model.sum_of(given)
    return Sum(
        node.idle - less.idle + more.idle,
        tuple(a - b + c for a, b, c in zip(node.cards, less.cards, more.cards, strict=True)),
        tuple(a - b + c for a, b, c in zip(node.free_milli, less.free_milli, more.free_milli, strict=True)),
    )


def _level(typical: TypicalPod) -> Level:
    asked = Ask(1, typical.share_milli, typical.memory_mib)
    return Level(
        asked, GPURequest(dialect="", asks=(), models=typical.models, exclude_models=typical.exclude_models)
    )


def _milli(typical: TypicalPod) -> int:
    """What it holds of each card. For one that requests memory alone that is unknown: half of it."""
    return typical.share_milli or WHOLE_MILLI // 2
