"""What a waiting pod can hope for: the freest card that it may use, or what keeps it off every node until
somebody changes the pod, a node or its inventory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler_ext.fit.fit import fit, shape_for
from scheduler_ext.fit.refusal import MAX_LISTED, NO_CARDS, NOT_DESCRIBED, Refusal
from scheduler_ext.model.node import OURS, Node
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.dialects import OF_NVIDIA, serves
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.kube.node_constraints import NodeConstraints
from timekeeper.core.request.cards import allowed
from timekeeper.core.texts import no_fractions
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import first_of

MAX_LOOKS = 10_000  # at nodes, for all pods of one call


@dataclass(frozen=True, slots=True)
class Hole:
    """The card with the most free memory, of those that may be given out."""

    node: str
    memory_mib: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class Prospects:
    """``obstacle``: why no node can take the pod even when it is empty, a part of a sentence without varying
    figures; "": cards that become free may be enough, or the looks of the call were spent. ``hole``: on the
    nodes that may take it."""

    obstacle: str = ""
    hole: Hole | None = None


UNKNOWN = Prospects()


@dataclass(frozen=True, slots=True)
class UsableNodes:
    """The open nodes that a pod accepts, and of their cards those that its request allows: how many there
    are, how many of them are free as a whole, and whether a part of one is free."""

    names: frozenset[str]
    cards: int
    whole: int
    has_part: bool

    def has_for(self, pod: Pod) -> bool:
        """Whether a card, or the part of one, is free that the pod might get."""
        asks = pod.request.asks if pod.request is not None else ()
        return self.whole > 0 if all(each.ask.whole for each in asks) else self.has_part


class ProspectSearch:
    """Looks for one pod after another in one snapshot; pods alike are looked for once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left = MAX_LOOKS
        self._known: dict[object, Prospects] = {}
        self._empty: dict[object, Refusal | None] = {}
        self._usable: dict[object, UsableNodes | None] = {}
        self._left_to_count = MAX_LOOKS

    def usable(self, pod: Pod) -> UsableNodes | None:
        """Those of this pod, without cards where it waits for devices; None where that is not known, or the
        looks of the call were spent."""
        if pod.request is None:
            return None
        request = None if pod.waits_for_devices else replace(pod.request, asks=(), same_gpu=(), topology="")
        shape = pod.node_constraints, request
        if shape not in self._usable:
            self._left_to_count -= len(self._nodes)
            is_counted = self._left_to_count >= 0
            self._usable[shape] = self._count(pod.node_constraints, request) if is_counted else None
        return self._usable[shape]

    def _count(self, constraints: NodeConstraints, request: GPURequest | None) -> UsableNodes:
        names, cards, whole, has_part = set[str](), 0, 0, False
        for _, node, there in self._nodes:
            if node.closed or not constraints.admit(node.name, there.node_labels):
                continue
            free = [
                left
                for card, left in zip(there.cards, node.free_by_card, strict=True)
                if left is not None and request is not None and allowed(request, card)
            ]
            if free or not there.cards or request is None:
                names.add(node.name)
            cards += len(free)
            untouched = max(0, sum(left.untouched for left in free) - node.unnamed)
            whole += untouched
            parts = (left.share_milli and left.memory_mib for left in free if not left.untouched)
            has_part = has_part or untouched > 0 or any(parts)
        return UsableNodes(frozenset(names), cards, whole, has_part)

    @cached_property
    def _nodes(self) -> list[tuple[Hole, NodeInfo, Node]]:
        """Those with GPUs, the one with the freest card first."""
        known = ((node, node.node_object) for node in self._snapshot.nodes.values())
        with_gpus = [(_hole_of(node), node, there) for node, there in known if there and there.has_gpus]
        return sorted(with_gpus, key=lambda each: (-each[0].memory_mib, each[1].name))

    def of(self, pod: Pod) -> Prospects:
        """Of this pod; `UNKNOWN` where it has no readable request, or waits for devices of claims."""
        if pod.request is None or pod.waits_for_devices:
            return UNKNOWN
        shape = pod.request, pod.node_constraints
        if shape not in self._known:
            self._known[shape] = self._look(pod, pod.request)
        return self._known[shape]

    def _look(self, pod: Pod, request: GPURequest) -> Prospects:
        refused: list[tuple[Node, Refusal]] = []
        for hole, node, there in self._nodes:
            if not self._left:
                return UNKNOWN
            self._left -= 1
            if not pod.node_constraints.admit(node.name, there.node_labels):
                continue
            refusal = self._ever(request, node, there)
            if refusal is None:
                return Prospects(hole=hole if hole.memory_mib else None)
            refused.append((there, refusal))
        nodes = [there for _, _, there in self._nodes]
        return Prospects(_never(request, refused) if refused else _unmatched(pod.node_constraints, nodes))

    def _ever(self, request: GPURequest, node: NodeInfo, there: Node) -> Refusal | None:
        """Why the node cannot take it, whatever leaves."""
        shape = shape_for(request, node)
        if shape in (NO_CARDS, NOT_DESCRIBED):
            return None  # an inventory may be published at any time, and other schedulers need none
        closed = isinstance(shape, Refusal) and shape.kind == "closed"
        if closed and there.fault == "holders-unknown":
            return None  # until its agent's next report
        if isinstance(shape, Refusal) and not shape.shortage and not closed:
            return shape
        key = (
            request,
            there.family,
            there.fault,
            tuple(replace(card, uuid="", index=0) for card in there.cards),
        )
        if request.uuids or request.exclude_uuids or key not in self._empty:
            found = fit(request, node_info_of(node.name, there, {}))
            self._empty[key] = found if isinstance(found, Refusal) and found.kind != "search" else None
        return self._empty[key]


def _hole_of(node: NodeInfo) -> Hole:
    """On this node; without memory where none of its cards may be given out."""
    given_out = [left for left in node.free_by_card if left is not None and not node.closed]
    untouched = [left for left in given_out if left.untouched][node.unnamed :]
    parts = (left for left in given_out if not left.untouched)
    free = max((*untouched, *parts), key=lambda left: left.memory_mib, default=None)
    return Hole(node.name, free.memory_mib, free.share_milli) if free else Hole(node.name, 0, 0)


def _never(request: GPURequest, refused: Sequence[tuple[Node, Refusal]]) -> str:
    """``refused``: the nodes that the pod accepts."""
    if serves(OURS, request.dialect) and all(there.family in OF_NVIDIA for there, _ in refused):
        return no_fractions(len(refused))
    if all(refusal.shortage for _, refusal in refused):
        cards = cards_at_once(request.asks)
        most = max(len(node.cards) for node, _ in refused)
        if cards > most and all(each.ask.whole for each in request.asks):
            return f"it asks for {cards} cards on one node; a node that it may use has at most {most}"
    nodes: dict[str, list[str]] = {}
    for node, refusal in refused:
        nodes.setdefault(refusal.sentence, []).append(node.name)
    most_first = sorted(nodes.items(), key=lambda item: -len(item[1]))
    told = [f"{first_of(sorted(names), MAX_LISTED)}: {sentence}" for sentence, names in most_first]
    return f"no node that it may use takes it, even when empty: {first_of(told, MAX_LISTED, '; ')}"


def _unmatched(constraints: NodeConstraints, nodes: Sequence[Node]) -> str:
    """Why it accepts none of these nodes."""
    if not nodes:
        return "no node has GPU cards"
    if not constraints.is_read:
        return "its nodeSelector, required node affinity and tolerations are too large to be read here"
    labels = [dict(node.node_labels.labels) for node in nodes]
    for key, value in constraints.selector:
        if all(there.get(key) != value for there in labels):
            return f"its nodeSelector asks for {key}={value}, which no node with GPU cards has as a label"
    untainted = [(node, replace(node.node_labels, taints=())) for node in nodes]
    selected = [node for node, labels in untainted if constraints.admit(node.name, labels)]
    if not selected:
        return "its nodeSelector and its required node affinity match no node with GPU cards"
    taints = {taint for node in selected for taint in node.node_labels.taints}
    keys = {taint.key for taint in taints if not any(each.covers(taint) for each in constraints.tolerations)}
    listed = first_of(sorted(keys), MAX_LISTED)
    return f"each node with GPU cards that it selects has a taint that it does not tolerate ({listed})"
