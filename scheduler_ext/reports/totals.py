"""The cluster in figures: cards, what is free on them, and how much of that nobody typical could use.

A node's figures are counted once for each version of it and kept, so that a scrape or a look at a cluster of
thousands of nodes costs what has changed since the last one.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from scheduler_ext.scoring.fragmentation_model import FragmentationModel, idle_milli
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, unreserved


class Figures(NamedTuple):
    """Sums over nodes that are open: the cards that may be given out, those of them that nobody is on, and in
    thousandths of a card: free compute; the compute that is held for waiting pods; free compute that has
    memory beside it (``idle``). ``fragmented`` and ``stranded``: how much of the idle a typical pod could not
    use, and how much of it has no CPU beside it, summed over the pods of the default policy's mix."""

    cards: int = 0
    untouched: int = 0
    free_milli: int = 0
    reserved_milli: int = 0
    idle_milli: int = 0
    fragmented: int = 0
    stranded: int = 0


def figures_of(node: NodeInfo, fragmentation_model: FragmentationModel) -> Figures:
    """Those of one node; nothing where it is closed."""
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
    cpu_left = max(0, node.cpu_left)  # kube-scheduler never overcommits it, but a node may shrink
    return Figures(
        cards=len(spots),
        untouched=sum(free.untouched for free, _ in spots),
        free_milli=free_milli,
        reserved_milli=sum(free.share_milli for free in whole.free_by_card if free is not None) - free_milli,
        idle_milli=sum(idle_milli(free) for free, _ in spots),
        fragmented=fragmentation_model.fragment(total, cpu_left),
        stranded=fragmentation_model.stranded(total, cpu_left),
    )


class Totals:
    """The figures of all nodes together. `now` may be called from any thread."""

    def __init__(self, fragmentation_model: Callable[[], FragmentationModel]) -> None:
        self._fragmentation_model_now = fragmentation_model
        self._lock = threading.Lock()
        self._fragmentation_model = fragmentation_model()
        self._nodes: Map[NodeInfo] = Map()
        self._of: dict[str, tuple[Figures, bool, str]] = {}
        self._sums = [0] * len(Figures())
        self._with_cards, self._closed = 0, Counter[str]()

    def now(self, nodes: Map[NodeInfo]) -> "Total":
        """The sums for this version of the map."""
        with self._lock:
            fragmentation_model = self._fragmentation_model_now()
            if fragmentation_model is not self._fragmentation_model:  # then every node's figures are others
                for name in list(self._of):
                    self._count(name, None)
                self._fragmentation_model, self._nodes = fragmentation_model, Map()
            if nodes is not self._nodes:
                for name in nodes.changed_since(self._nodes):
                    self._count(name, nodes.get(name))
                self._nodes = nodes
            return Total(Figures(*self._sums), self._with_cards, +self._closed, fragmentation_model)

    def _count(self, name: str, node: NodeInfo | None) -> None:
        was, has_cards, closed = self._of.pop(name, (Figures(), False, ""))
        self._add(was, has_cards, closed, -1)
        if node is not None:
            found = (figures_of(node, self._fragmentation_model), bool(node.cards), node.closed)
            self._of[name] = found
            self._add(*found, 1)

    def _add(self, figures: Figures, has_cards: bool, closed: str, sign: int) -> None:
        for at, value in enumerate(figures):
            self._sums[at] += sign * value
        self._with_cards += sign * has_cards
        if closed:
            self._closed[closed] += sign


class Total(NamedTuple):
    """``figures`` of the open nodes, by ``fragmentation_model``; how many nodes have cards, and how
    many are closed, by a word of `node.CLOSED`."""

    figures: Figures
    nodes: int
    closed: Counter[str]
    fragmentation_model: FragmentationModel

    def milli(self, sum_over_pods: int) -> int:
        """Thousandths of a card from what was counted for each pod of the mix."""
        return sum_over_pods // max(1, self.fragmentation_model.pods)
