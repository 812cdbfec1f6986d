"""What a few moves would gain: which pods to move so that a node has whole cards free.

It is advice for people; nothing acts on it. Every pod that it names fits on the node that it names, by the
same `fit` as filter and bind, and by kube-scheduler's sums of CPU and of the requested resources. It ignores
taints, affinities and other resources. Plans with fewer moves are looked at first, and the work of a call is
bounded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, nsmallest
from itertools import combinations, islice
from typing import TypedDict

from scheduler_ext.fit.fit import fit, shape_for
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.other_resources import exceed
from scheduler_ext.model.pod import Amounts, Pod
from scheduler_ext.snapshot.allocation import Allocation, allocation_of
from scheduler_ext.snapshot.free import FreeShape
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import (
    NodeInfo,
    whole_left,
    with_allocation,
    with_node_object,
    without_pods,
)
from timekeeper.core.values import WHOLE_MILLI, GPURequest

MAX_FREE = 16  # cards of a node
MAX_FITS = 100  # for each number of cards, plans and fits together, each about 0.1 ms
LIGHTEST = 8  # of a node's cards, those with the fewest pods; more are combined only where they are needed
MAX_SOURCES = 500  # nodes whose cards might be freed: those with the most free beside pods
MAX_TARGETS = 32  # nodes where a pod might go
MAX_SETS = 70  # of cards of one node: four of eight
STAYING = ("DaemonSet/", "Node/")  # pods of these controllers belong to their node
_EACH = 1_000  # a pod counts so much, divided among its cards


_Demand = tuple[GPURequest | None, int, Amounts]


class MoveView(TypedDict):
    """A pod to move, and a node where it fits."""

    namespace: str
    name: str
    uid: str
    to: str


class AdviceView(TypedDict):
    """``cards``: whole cards of one node; ``node``: where they are free after the fewest moves that were
    found, null where no moves were found; ``free_now``: how many are free there already. ``moves``: none if
    there is room now. ``given_up``: true where the work of a call ended before every plan was tried."""

    cards: int
    node: str | None
    free_now: int
    moves: list[MoveView]
    given_up: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A node whose cards might be freed: its free cards, and for each other card that could be freed the pods
    on it, those with the fewest pods first."""

    node: NodeInfo
    free: tuple[str, ...]
    loaded: tuple[tuple[str, frozenset[str]], ...]
    # of `loaded`, in `_EACH`: any of these cards together have at least as many pods
    weights: tuple[int, ...]


class _SpentError(Exception):
    """The work allowed is done."""


def advise(
    nodes: Map[NodeInfo], pods: Map[Pod], sources: Iterable[NodeInfo], free: int, fits: int = MAX_FITS
) -> list[AdviceView]:
    """For 1 to ``free`` cards the fewest moves that free them on one of ``sources``, to any of ``nodes``."""
    if not free:
        return []
    search = _Search(nodes, pods, fits)
    known = [node for node in sources if _may_be_freed(node)]
    broken = nsmallest(MAX_SOURCES, known, key=lambda each: (-_broken(each), each.name))
    looked_at = [_source(node, pods) for node in broken]
    ready = sorted((whole_left(node), node.name) for node in known)
    return [
        next((_view(cards, name, count, []) for count, name in ready if count >= cards), None)
        or search.freeing(looked_at, cards)
        for cards in range(1, free + 1)
    ]


class _Search:
    """One call's work."""

    def __init__(self, nodes: Map[NodeInfo], pods: Map[Pod], fits: int) -> None:
        self._pods, self._fits, self._left = pods, fits, fits
        open_nodes = (each for each in nodes.values() if each.cards and not each.closed)
        self._targets = sorted((_idle(each), each.name, each) for each in open_nodes)
        self._known: dict[_Demand, list[NodeInfo]] = {}
        self._refused: set[tuple[GPURequest, FreeShape]] = set()

    def freeing(self, sources: Sequence[_Source], cards: int) -> AdviceView:
        """The fewest moves found."""
        self._left = self._fits
        try:
            for source, emptied, uids in _plans(sources, cards):
                moved = self._moved(source, emptied, uids)
                if moved is not None:
                    return _view(cards, source.node.name, len(source.free), moved)
        except _SpentError:
            return _view(cards, None, 0, [], given_up=True)
        return _view(cards, None, 0, [])

    def _moved(self, source: _Source, emptied: Sequence[str], uids: Iterable[str]) -> list[MoveView] | None:
        """To where these pods fit all together, while the cards stay free. Raises _SpentError."""
        self._spend()
        kept = {*source.free, *emptied}
        left = _without_cards(without_pods(source.node, tuple(uids)), kept)
        pods = [pod for uid in uids if (pod := self._pods.get(uid)) is not None]
        leaving = sorted(pods, key=_size, reverse=True)
        return self._settled(leaving, {left.name: left})

    def _settled(self, leaving: Sequence[Pod], changed: Mapping[str, NodeInfo]) -> list[MoveView] | None:
        """A place for each of the pods; ``changed``: the nodes as they are after earlier moves."""
        if not leaving:
            return []
        pod = leaving[0]
        unchanged = (node for node in self._first(pod) if node.name not in changed)
        tried = set[object]()
        for node in [*changed.values(), *unchanged]:
            kind = (node.shape, node.model, node.cpu_left, node.left)
            there = self._with(pod, node) if kind not in tried else None
            tried.add(kind)
            rest = self._settled(leaving[1:], {**changed, node.name: there}) if there is not None else None
            if rest is not None:
                move = MoveView(namespace=pod.namespace, name=pod.name, uid=pod.uid, to=node.name)
                return [move, *rest]
        return None

    def _first(self, pod: Pod) -> list[NodeInfo]:
        """The first nodes that have room for it, the fullest first. Raises _SpentError."""
        demand = pod.request, pod.cpu_milli, pod.amounts
        known = self._known.get(demand)
        if known is None:
            least = _size(pod)[0]
            roomy = (node for idle, _, node in self._targets if idle >= least and self._with(pod, node))
            known = self._known[demand] = list(islice(roomy, MAX_TARGETS))
        return known

    def _with(self, pod: Pod, node: NodeInfo) -> NodeInfo | None:
        """The node with the pod, None where it does not fit. Raises _SpentError."""
        shape = _shape(pod, node)
        if pod.request is None or shape is None or (pod.request, shape) in self._refused:
            return None
        self._spend()
        placement = fit(pod.request, node)
        if isinstance(placement, Refusal):
            self._refused.add((pod.request, shape))
            return None
        return with_allocation(node, allocation_of(pod, placement, "assumed"))

    def _spend(self) -> None:
        if not self._left:
            raise _SpentError
        self._left -= 1


def _shape(pod: Pod, node: NodeInfo) -> FreeShape | None:
    """What is free for the pod; None where it does not fit for a reason that takes no search."""
    if pod.request is None or pod.cpu_milli > node.cpu_left:
        return None
    if exceed(pod.amounts, node.left):
        return None
    for ask in (each.ask for each in pod.request.asks):
        if (
            sum(each is not None and each.share_milli >= ask.share_milli for each in node.free_by_card)
            < ask.devices
        ):
            return None
    shape = shape_for(pod.request, node)
    return None if isinstance(shape, Refusal) else shape


def _view(
    cards: int, node: str | None, free_now: int, moves: list[MoveView], given_up: bool = False
) -> AdviceView:
    return AdviceView(cards=cards, node=node, free_now=free_now, moves=moves, given_up=given_up)


def _plans(sources: Sequence[_Source], cards: int) -> Iterator[tuple[_Source, Sequence[str], frozenset[str]]]:
    """The sets of cards to free, each with its pods, those with the fewest pods first. A node's sets are
    made only when its lower bound is the least."""
    waiting: list[tuple[int, str, int, _Source, Sequence[str], frozenset[str]]] = []
    for source in sources:
        need = cards - len(source.free)
        if 0 < need <= len(source.loaded):
            at_least = -(-sum(source.weights[:need]) // _EACH)
            waiting.append((at_least, source.node.name, -1, source, (), frozenset()))
    heapify(waiting)
    while waiting:
        _, name, at, source, emptied, uids = heappop(waiting)
        if at >= 0:
            yield source, emptied, uids
            continue
        need = cards - len(source.free)
        sets = combinations(source.loaded[: max(need, LIGHTEST)], need)
        for place, chosen in enumerate(islice(sets, MAX_SETS)):
            together = frozenset[str]().union(*(pods for _, pods in chosen))
            heappush(waiting, (len(together), name, place, source, [uuid for uuid, _ in chosen], together))


def _may_be_freed(node: NodeInfo) -> bool:
    """False where the device plugin chooses the cards."""
    return not (node.closed or node.node_object is None or node.node_object.plugin_chooses or node.unnamed)


def _source(node: NodeInfo, pods: Map[Pod]) -> _Source:
    free = {
        card.uuid: each.untouched
        for card, each in zip(node.cards, node.free_by_card, strict=True)
        if each is not None
    }
    on_card: dict[str, set[str]] = {uuid: set() for uuid, untouched in free.items() if not untouched}
    stays: set[str] = set()
    spread: dict[str, int] = {}
    for uid, allocation in node.allocations.items():
        spread[uid] = max(1, len(allocation.uses))
        for uuid, _ in allocation.uses:
            if not _is_movable(allocation, pods.get(uid), node.name):
                stays.add(uuid)
            elif uuid in on_card:
                on_card[uuid].add(uid)
    loaded = sorted(
        (sum(_EACH // spread[uid] for uid in its), uuid, frozenset(its))
        for uuid, its in on_card.items()
        if its and uuid not in stays
    )
    untouched = tuple(uuid for uuid, is_free in free.items() if is_free)
    pairs = tuple((uuid, its) for _, uuid, its in loaded)
    return _Source(node, untouched, pairs, tuple(weight for weight, _, _ in loaded))


def _is_movable(allocation: Allocation, pod: Pod | None, node: str) -> bool:
    """True if its controller would make it again, and anywhere."""
    if pod is None or allocation.state != "bound" or allocation.placement is None or pod.request is None:
        return False
    stays = not pod.controller or pod.controller.startswith(STAYING)
    return pod.node == node and not (pod.deleting or pod.terminal or stays)


def _without_cards(node: NodeInfo, uuids: set[str]) -> NodeInfo:
    """The node with these cards kept from every pod."""
    if node.node_object is None:
        return node
    cards = tuple(
        replace(card, cordoned=card.cordoned or card.uuid in uuids) for card in node.node_object.cards
    )
    return with_node_object(node, replace(node.node_object, cards=cards))


def _size(pod: Pod) -> tuple[int, int, int, str]:
    """The most demanding pods look for a place first."""
    asks = [each.ask for each in pod.request.asks] if pod.request is not None else []
    share = sum(ask.devices * (ask.share_milli or WHOLE_MILLI // 2) for ask in asks)
    return share, sum(ask.devices * ask.memory_mib for ask in asks), pod.cpu_milli, pod.uid


def _idle(node: NodeInfo) -> int:
    return sum(each.share_milli for each in node.free_by_card if each is not None)


def _broken(node: NodeInfo) -> int:
    """What is free beside pods."""
    return sum(each.share_milli for each in node.free_by_card if each is not None and not each.untouched)
