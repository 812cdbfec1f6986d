"""The cluster in figures: cards, free capacity, and how much of it no typical pod can use.

A node's figures are computed once per version of the node, so a scrape of thousands of nodes costs only what
has changed since the last one.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.snapshot.drains import without_drain
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, unreserved
from scheduler_ext.snapshot.snapshot import Snapshot


class Figures(NamedTuple):
    """Sums over open nodes: usable cards, and cards without a pod; and in thousandths of a card: free
    compute, compute reserved for waiting pods. ``fragmented``: free compute with memory that a typical pod
    cannot use, summed over the typical pods of the default policy."""

    cards: int = 0
    untouched: int = 0
    free_milli: int = 0
    reserved_milli: int = 0
    fragmented: int = 0


def figures_of(node: NodeInfo, fragmentation_model: FragmentationModel) -> Figures:
    """One node's figures; zero if it is closed."""
    if node.closed or node.node_object is None:
        return Figures()
    spots = [
        (free, card.model)
        for free, card in zip(node.free_by_card, node.cards, strict=True)
        if free is not None
    ]
    total = fragmentation_model.sum_of(spots)
    whole = unreserved(node)
    free_milli = sum(free.share_milli for free, _ in spots)
    cpu_left = max(0, node.cpu_left)  # kube-scheduler never overcommits CPU, but a node may shrink
    return Figures(
        cards=len(spots),
        untouched=sum(free.untouched for free, _ in spots),
        free_milli=free_milli,
        reserved_milli=sum(free.share_milli for free in whole.free_by_card if free is not None) - free_milli,
        fragmented=fragmentation_model.fragment(total, cpu_left),
    )


def drained_milli(snapshot: Snapshot) -> int:
    """Compute that is empty because a drain keeps it for a gang, in thousandths of a card."""
    if snapshot.drain is None:
        return 0
    nodes = [snapshot.node(name) for name, _ in snapshot.drain.cards]
    return sum(_free_milli(without_drain(node)) - _free_milli(node) for node in nodes)


def _free_milli(node: NodeInfo) -> int:
    return sum(free.share_milli for free in node.free_by_card if free is not None)


class Totals:
    """The figures of all nodes. `now` may be called from any thread."""

    def __init__(self, fragmentation_model: Callable[[], FragmentationModel]) -> None:
        self._fragmentation_model_now = fragmentation_model
        self._lock = threading.Lock()
        self._fragmentation_model = fragmentation_model()
        self._nodes: Map[NodeInfo] = Map()
        self._of: dict[str, _OfNode] = {}
        self._sums = [0] * len(Figures())
        self._with_cards, self._closed = 0, Counter[str]()

    def now(self, nodes: Map[NodeInfo]) -> "Total":
        """The sums for this version of the map."""
        with self._lock:
            fragmentation_model = self._fragmentation_model_now()
            if fragmentation_model is not self._fragmentation_model:  # then every node's figures change
                for name in list(self._of):
                    self._count(name, None)
                self._fragmentation_model, self._nodes = fragmentation_model, Map()
            if nodes is not self._nodes:
                for name in nodes.changed_since(self._nodes):
                    self._count(name, nodes.get(name))
                self._nodes = nodes
            return Total(Figures(*self._sums), self._with_cards, +self._closed, fragmentation_model)

    def _count(self, name: str, node: NodeInfo | None) -> None:
        if name in self._of:
            self._add(self._of.pop(name), -1)
        if node is not None:
            figures = figures_of(node, self._fragmentation_model)
            found = self._of[name] = _OfNode(figures, bool(node.cards), node.closed)
            self._add(found, 1)

    def _add(self, node: "_OfNode", sign: int) -> None:
        for at, value in enumerate(node.figures):
            self._sums[at] += sign * value
        self._with_cards += sign * node.has_cards
        if node.closed:
            self._closed[node.closed] += sign


class _OfNode(NamedTuple):
    """What one node adds; ``closed``: why it is closed, or ""."""

    figures: Figures
    has_cards: bool
    closed: str


class Total(NamedTuple):
    """``figures`` of the open nodes by ``fragmentation_model``; the number of nodes with cards; and closed
    nodes by reason (keys of `node.CLOSED`)."""

    figures: Figures
    nodes: int
    closed: Counter[str]
    fragmentation_model: FragmentationModel

    def milli(self, sum_over_pods: int) -> int:
        """Thousandths of a card from what was counted for each pod of the mix."""
        return sum_over_pods // max(1, self.fragmentation_model.pods)
