"""What CPU and memory cost: the larger part of a node's CPU or memory costs that part of its cards."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from timekeeper.core.rating.weights import Weights, weight_of
from timekeeper.core.request.cards import allowed
from timekeeper.core.request.host import HostAmount, HostShare, Models, models_of
from timekeeper.core.values import Card, GPURequest


def host_rate(share: HostShare, weights: Weights) -> int:
    """The rate of the larger part of CPU and memory, in milli-GPU: that part of the weights of all cards of
    the node, rounded up. All of the node is the most; an amount that the node does not report counts as
    nothing."""
    whole_milli = sum(number * weight_of(model, weights) for model, number in share.models)
    asked, there = share.requested, share.allocatable
    return max(
        _part(asked.cpu_milli, there.cpu_milli, whole_milli),
        _part(asked.memory_bytes, there.memory_bytes, whole_milli),
    )


def _part(asked: int, there: int, whole_milli: int) -> int:
    return -(-min(asked, there) * whole_milli // there) if there else 0


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes with the same cards, and what each of them can allocate, in ascending order."""

    cards: tuple[Card, ...]  # one of each model, memory size and named resources
    models: Models
    cpus_milli: tuple[int, ...]
    memories_bytes: tuple[int, ...]


def node_kinds(nodes: Iterable[tuple[tuple[Card, ...], HostAmount]]) -> tuple[NodeKind, ...]:
    """The kinds of these nodes with cards."""
    alike: dict[tuple[Models, frozenset[object]], tuple[tuple[Card, ...], list[HostAmount]]] = {}
    for cards, there in nodes:
        if cards:
            kinds = {(card.model, card.memory_mib, card.resources): card for card in cards}
            key = models_of(cards), frozenset(kinds)
            alike.setdefault(key, (tuple(kinds.values()), []))[1].append(there)
    return tuple(
        NodeKind(
            cards,
            models,
            tuple(sorted(amount.cpu_milli for amount in there)),
            tuple(sorted(amount.memory_bytes for amount in there)),
        )
        for (models, _), (cards, there) in alike.items()
    )


def most_host(
    request: GPURequest, asked: HostAmount, kinds: Iterable[NodeKind], weights: Weights
) -> HostShare | None:
    """The share with an upper bound of `host_rate` wherever the pod can be bound: on each kind of node with a
    card that the request allows, the smallest node that has as much. None: no kind has such a card."""
    anywhere = replace(request, uuids=(), exclude_uuids=())
    shares = (
        HostShare(asked, _smallest(kind, asked), kind.models)
        for kind in kinds
        if any(allowed(anywhere, card) for card in kind.cards)
    )
    return max(shares, key=lambda share: host_rate(share, weights), default=None)


def _smallest(kind: NodeKind, asked: HostAmount) -> HostAmount:
    """The smallest CPU and the smallest memory that hold the amounts; 0 where no node of the kind does."""
    return HostAmount(
        _first_from(kind.cpus_milli, asked.cpu_milli), _first_from(kind.memories_bytes, asked.memory_bytes)
    )


def _first_from(amounts: tuple[int, ...], least: int) -> int:
    at = bisect_left(amounts, least)
    return amounts[at] if at < len(amounts) else 0
