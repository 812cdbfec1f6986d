"""How much of a node's free GPU no typical pod could use, and what a placement adds to that.

Fragmentation gradient descent (Weng et al., USENIX ATC'23): with a mix M of typical pods, a node's fragment
F(M) is the free GPU that a pod drawn from M could not use there, expected over M. To that comes what a
placement strands: free GPU for which the node has no CPU left. Everything is counted in whole numbers,
``pods x milli-GPU``: the sum over the mix's pods, not their mean.

A typical pod cannot use a card that has less free than it asks, nor one that its constraints forbid; where
the node has too few cards for it, or too little CPU, it can use none of the node.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil, log
from typing import NamedTuple

from scheduler_ext.model.cpu import bounded
from scheduler_ext.scoring.typical_pods import Mix, Want
from scheduler_ext.snapshot.free import Room, takes
from timekeeper.core.request.cards import allowed
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest

# how far the score is spread: of two placements whose fragments differ by a few hundredths of this, neither
# is better, and the first by name is taken
SOFTNESS_MILLI = 1_800
THRIFT = (7, 8)  # a GPU counts as served by so much of the CPU that comes to it in the mix
STRANDED_COUNTS = 2  # free GPU without CPU is lost to every pod, a fragment to some

Spot = tuple[Room, str]  # what is free on a card, and its model


class Level(NamedTuple):
    """What some typical pods ask of each of their cards."""

    ask: Ask
    allowed: GPURequest


class Sum(NamedTuple):
    """A node's free cards as the levels see them: free milli-GPU in all; and by level, how many cards suffice
    and how much is free on these."""

    idle: int
    cards: tuple[int, ...]
    free: tuple[int, ...]


def idle_milli(room: Room) -> int:
    """What of the card can still be given out as a fraction: the lesser of free compute and free memory."""
    return min(room.share_milli, room.memory_mib * WHOLE_MILLI // room.card_mib)


class Gauge:
    """One mix, prepared for counting. It never changes.

    ``levels``: what its GPU pods ask of a card. ``cpus``: what they ask of CPU, ascending. ``most``: on how
    many cards at most. ``weights``: by how many of the ``cpus`` a node has enough for, by level, by number of
    cards that suffice: of how many pods that is enough. ``steps``: int(100 x sigmoid(x / SOFTNESS_MILLI)) is
    how many of these x has reached. ``cpu_per_card``: CPU that a card needs not to be stranded.
    """

    def __init__(self, mix: Mix) -> None:
        # what asks for more than any node has needs more than any node has, however much that is
        wants = [(want._replace(cpu_milli=bounded(want.cpu_milli)), count) for want, count in mix.wants]
        gpu = [(want, count) for want, count in wants if want.devices]
        self.mix, self.pods = mix, mix.pods
        self.levels = tuple(dict.fromkeys(_level(want) for want, _ in gpu))
        self.constrained = any(want.models or want.exclude_models for want, _ in gpu)
        self.cpus = sorted({want.cpu_milli for want, _ in gpu})
        self.most = max((want.devices for want, _ in gpu), default=0)
        self.weights = [self._weights(gpu, most) for most in (-1, *self.cpus)]
        self.steps = [ceil(self.pods * SOFTNESS_MILLI * log(k / (100 - k))) for k in range(1, 100)]
        cpu = sum(want.cpu_milli * count for want, count in gpu)
        cards_milli = sum(want.devices * _milli(want) * count for want, count in gpu)
        self.cpu_per_card = cpu * WHOLE_MILLI * THRIFT[0] // (max(1, cards_milli) * THRIFT[1])
        self.spot = lru_cache(maxsize=65_536)(self._spot)

    def sum_of(self, spots: Iterable[Spot]) -> Sum:
        """These free cards together."""
        idle, cards, free = 0, [0] * len(self.levels), [0] * len(self.levels)
        for room, model in spots:
            its, fits = self.spot(room, model)
            idle += its
            for at in fits:
                cards[at] += 1
                free[at] += its
        return Sum(idle, tuple(cards), tuple(free))

    def fragment(self, node: Sum, cpu_left: int) -> int:
        """``pods x milli-GPU`` that the pods of the mix could not use."""
        weights = self.weights[bisect_right(self.cpus, cpu_left)]
        usable = sum(
            by_cards[min(cards, self.most)] * free
            for by_cards, cards, free in zip(weights, node.cards, node.free, strict=True)
        )
        return self.pods * node.idle - usable

    def stranded(self, node: Sum, cpu_left: int) -> int:
        """``pods x milli-GPU`` that are free beyond what the CPU left would serve."""
        served = cpu_left * WHOLE_MILLI // self.cpu_per_card if self.cpu_per_card else node.idle
        return self.pods * max(0, node.idle - served)

    def score(self, before: Sum, after: Sum, cpu_before: int, cpu_after: int) -> int:
        """From 0 to 99, the greater the better: int(100 x sigmoid((F before - F after - 2 x newly stranded) /
        SOFTNESS_MILLI)). Cut off on purpose: nearly equal nodes are equal, and the first of them is filled.
        """
        gained = self.fragment(before, cpu_before) - self.fragment(after, cpu_after)
        strands = max(0, self.stranded(after, cpu_after) - self.stranded(before, cpu_before))
        return bisect_right(self.steps, gained - STRANDED_COUNTS * strands)

    def cpu_that_matters(self, cpu_left: int, cards: int) -> int:
        """The CPU left, cut off where more of it makes no difference to a node with so many cards."""
        return min(cpu_left, max(self.cpus[-1] if self.cpus else 0, (cards + 1) * self.cpu_per_card))

    def model(self, model: str) -> str:
        """The model, or "" where no pod of the mix minds."""
        return model if self.constrained else ""

    def _spot(self, room: Room, model: str) -> tuple[int, tuple[int, ...]]:
        """What is free there, and for which levels it suffices."""
        card = Card("", 0, model, room.card_mib)
        fits = (
            at
            for at, level in enumerate(self.levels)
            if takes(level.ask, room) is not None and allowed(level.allowed, card)
        )
        return idle_milli(room), tuple(fits)

    def _weights(self, gpu: Sequence[tuple[Want, int]], cpu_milli: int) -> list[list[int]]:
        rows = [[0] * (self.most + 1) for _ in self.levels]
        for want, count in gpu:
            if want.cpu_milli <= cpu_milli:
                row = rows[self.levels.index(_level(want))]
                for cards in range(want.devices, self.most + 1):
                    row[cards] += count
        return rows


def exchanged(gauge: Gauge, node: Sum, taken: Sequence[Spot], given: Sequence[Spot]) -> Sum:
    """The node with these cards instead of those."""
    less, more = gauge.sum_of(taken), gauge.sum_of(given)
    return Sum(
        node.idle - less.idle + more.idle,
        tuple(a - b + c for a, b, c in zip(node.cards, less.cards, more.cards, strict=True)),
        tuple(a - b + c for a, b, c in zip(node.free, less.free, more.free, strict=True)),
    )


def _level(want: Want) -> Level:
    asked = Ask(1, want.share_milli, want.memory_mib)
    return Level(asked, GPURequest("", (), want.models, want.exclude_models))


def _milli(want: Want) -> int:
    """What it holds of each card; of one that asks for memory alone that is not known: half of it."""
    return want.share_milli or WHOLE_MILLI // 2
