"""gpushare's lists of unhealthy cards: ConfigMaps `unhealthy-gpu-NODE`, whose key `gpus` has indexes such as
``0,2``. They are put over the nodes that the watch of nodes shows."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import Kind
from scheduler_ext.log import Log
from scheduler_ext.model.node import Node
from timekeeper.core.dialects import gpushare
from timekeeper.core.dialects.amounts import indexes
from timekeeper.core.json_values import Json, mapping

STEM = "unhealthy-gpu-"
KEY = "gpus"


@dataclass(frozen=True, slots=True)
class UnhealthyList:
    """The unhealthy cards of a node; None: the list cannot be read."""

    node: str
    cards: tuple[int, ...] | None


class UnhealthyLists:
    """Stands between the watch of nodes and the cache. No card of a node of gpushare is given out while its
    list cannot be read, or before the first lists are there."""

    def __init__(self, cache: ClusterCache, log: Log) -> None:
        self._cache, self._log = cache, log
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}  # of gpushare, as the watch showed them
        self._lists: dict[str, UnhealthyList] | None = None

    def of_nodes(self, nodes: Kind[Node]) -> Kind[Node]:
        """The kind of nodes, with the lists."""
        return replace(nodes, listed=self._nodes_listed, seen=self._node_seen, gone=self._node_gone)

    def kind(self, namespace: str) -> Kind[UnhealthyList]:
        """The ConfigMaps of this namespace."""
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        return Kind(path, read_list, self._listed, self._seen, self._gone)

    def _nodes_listed(self, nodes: list[Node]) -> None:
        with self._lock:
            self._nodes = {each.name: each for each in nodes if each.family == gpushare.DIALECT.name}
            self._cache.nodes_listed([self._marked(each) for each in nodes])

    def _node_seen(self, node: Node) -> None:
        with self._lock:
            self._nodes.pop(node.name, None)
            if node.family == gpushare.DIALECT.name:
                self._nodes[node.name] = node
            self._cache.node_updated(self._marked(node))

    def _node_gone(self, node: Node) -> None:
        with self._lock:
            self._nodes.pop(node.name, None)
            self._cache.node_deleted(node.name)

    def _listed(self, lists: list[UnhealthyList]) -> None:
        with self._lock:
            before, self._lists = self._lists, {each.node: each for each in lists}
            changed = self._nodes if before is None else {*before, *self._lists}
            self._update(changed)

    def _seen(self, each: UnhealthyList) -> None:
        with self._lock:
            self._lists = {**(self._lists or {}), each.node: each}
            self._update([each.node])

    def _gone(self, each: UnhealthyList) -> None:
        self._seen(replace(each, cards=()))

    def _update(self, names: Iterable[str]) -> None:
        for node in [self._nodes[name] for name in names if name in self._nodes]:
            self._cache.node_updated(self._marked(node))

    def _marked(self, node: Node) -> Node:
        if node.family != gpushare.DIALECT.name:
            return node
        if self._lists is None:
            return _without(node, None)
        found = self._lists.get(node.name)
        if found is None:
            return node
        if found.cards is None:
            self._log("unhealthy-list", level="warning", node=node.name, error="not a list of indexes")
        return _without(node, found.cards)


def read_list(raw: Json) -> UnhealthyList | None:
    """The list in a ConfigMap; None if it is another ConfigMap."""
    name = str(mapping(raw.get("metadata")).get("name", ""))
    if not name.startswith(STEM):
        return None
    text = str(mapping(raw.get("data")).get(KEY, ""))
    found = indexes(",".join(each.strip() for each in text.split(",")))
    return UnhealthyList(name.removeprefix(STEM), found if found or not text.strip() else None)


def _without(node: Node, unhealthy: tuple[int, ...] | None) -> Node:
    cards = (
        replace(card, healthy=card.healthy and unhealthy is not None and card.index not in unhealthy)
        for card in node.cards
    )
    return replace(node, cards=tuple(cards))
