"""Which namespaces strand a node's free cards: no pod can use these, because pods hold the CPU or memory
beside them.

By the node's own ratio: a card needs its part of the node's allocatable CPU and of its memory, whatever pods
usually request. The resource that leaves more free cards without their part counts. The whole is divided
among namespaces by how much their pods hold of it beyond the part of the cards that they hold; a pod without
a GPU has no such part. Nothing is charged by it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from scheduler_ext.model.other_resources import memory_bytes
from scheduler_ext.scoring.fragmentation_model import idle_milli
from scheduler_ext.snapshot.node_info import NodeInfo, whole_left
from timekeeper.core.values import WHOLE_MILLI

Weights = Mapping[str, int]

MAX_NAMESPACES = 100  # that are named at once


class _Resource(NamedTuple):
    """CPU or memory of a node, in one unit: allocatable, and what the pods of each namespace request."""

    total: int
    held: Weights

    def carried_milli(self, cards_milli: int, without: int = 0) -> int:
        """How many thousandths of a card have their part in what is left, or would be left without so much of
        what is held."""
        left = max(0, self.total - sum(self.held.values()) + without)
        return left * cards_milli // self.total


def stranded_by(node: NodeInfo) -> dict[str, int]:
    """Thousandths of a card that each namespace strands on the node; empty if it is closed or none is
    stranded."""
    if node.closed or node.node_object is None or not node.cards:
        return {}
    free_milli = sum(idle_milli(free) for free in node.free_by_card if free is not None)
    free_milli -= node.unnamed * WHOLE_MILLI
    cards_milli = len(node.cards) * WHOLE_MILLI
    known = [each for each in _resources(node) if each.total > 0]
    if free_milli <= 0 or not known:
        return {}
    scarce = min(known, key=lambda each: each.carried_milli(cards_milli))
    stranded_milli = free_milli - scarce.carried_milli(cards_milli)
    if stranded_milli <= 0:
        return {}
    return shares(stranded_milli, _beyond(scarce, node, cards_milli))


def stranded_by_strangers(node: NodeInfo) -> int:
    """How many free cards lack their part of the node's CPU or memory because of pods without GPUs that need
    not be there."""
    (pods, host), free = node.non_gpu.strangers, whole_left(node)
    if node.closed or not pods or free <= 0:
        return 0
    cards_milli = len(node.cards) * WHOLE_MILLI
    parts = zip(_resources(node), (host.cpu_milli, host.memory_bytes), strict=True)
    known = [(each, without) for each, without in parts if each.total > 0]
    now = min((each.carried_milli(cards_milli) for each, _ in known), default=cards_milli)
    else_ = min((each.carried_milli(cards_milli, without) for each, without in known), default=cards_milli)
    return min(free, else_ // WHOLE_MILLI) - min(free, now // WHOLE_MILLI)


def _resources(node: NodeInfo) -> tuple[_Resource, _Resource]:
    """CPU and memory."""
    cpu = {name: each.cpu_milli for name, each in node.non_gpu.by_namespace.items()}
    memory = {name: each.memory_bytes for name, each in node.non_gpu.by_namespace.items()}
    for allocation in node.allocations.values():
        cpu[allocation.namespace] = cpu.get(allocation.namespace, 0) + allocation.cpu_milli
        memory[allocation.namespace] = memory.get(allocation.namespace, 0) + memory_bytes(allocation.others)
    whole = node.node_object
    return (
        _Resource(whole.cpu_milli if whole else 0, cpu),
        _Resource(memory_bytes(whole.others) if whole else 0, memory),
    )


def _beyond(scarce: _Resource, node: NodeInfo, cards_milli: int) -> Weights:
    """What each namespace holds of the resource beyond its part of the cards, in the resource's unit times
    thousandths of a card. All that it holds counts where no namespace is beyond."""
    cards: dict[str, int] = {}
    for allocation in node.allocations.values():
        cards[allocation.namespace] = cards.get(allocation.namespace, 0) + allocation.held_milli
    beyond = {
        name: max(0, held * cards_milli - cards.get(name, 0) * scarce.total)
        for name, held in scarce.held.items()
    }
    return beyond if any(beyond.values()) else scarce.held


def largest(by_namespace: Weights) -> dict[str, int]:
    """The namespaces that strand most, `MAX_NAMESPACES` of them at most; of equal ones the first by name."""
    listed = sorted(by_namespace.items(), key=lambda each: (-each[1], each[0]))
    return dict(listed[:MAX_NAMESPACES])


def shares(whole: int, weights: Weights) -> dict[str, int]:
    """The whole divided by the weights, of which one is positive, into integers that sum to it; the largest
    remainders are rounded up, of equal ones the first by name. Without those that get nothing."""
    total = sum(weights.values())
    found = {name: whole * weight // total for name, weight in weights.items()}
    left = whole - sum(found.values())
    for name in sorted(weights, key=lambda each: (-(whole * weights[each] % total), each))[:left]:
        found[name] += 1
    return {name: milli for name, milli in sorted(found.items()) if milli}
