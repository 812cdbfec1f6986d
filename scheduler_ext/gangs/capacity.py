"""How many pods of a shape a node takes. Pure.

Pods of one shape are alike, and nodes are independent of each other: what a node takes of a shape does not
depend on what others take. So each node is looked at once, and again only after it has taken pods of the
gang. And whether a gang can ever start on the nodes that there are, whatever leaves them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced

from msgspec.structs import replace

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit, is_picky, shape_for
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.apart import Apart, Checks, Reason
from scheduler_ext.gangs.domains import called, label_value
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.free import FreeShape
from scheduler_ext.snapshot.host_left import host_lack, is_offered, offered
from scheduler_ext.snapshot.node_info import NodeInfo, lacks, with_allocation, without_pods
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.dialects.nvidia import GPU
from timekeeper.core.kube.node_constraints import NodeConstraints
from timekeeper.core.rating.held import cards_text, least_milli
from timekeeper.core.request.cards import allowed
from timekeeper.core.values import WHOLE_MILLI, GPURequest, Placement

_PASSING = "node.kubernetes.io/"  # taints of what passes: not ready, cordoned, under pressure

Kind = tuple[NodeConstraints, GPURequest]


@dataclass(frozen=True, slots=True)
class PlanInput:
    """Everything that a plan reads, of one moment. ``is_late``: whether its time is over; ``nominated``: the
    pods that kube-scheduler has nominated for a node; ``ahead``: waiting pods that come first, in order;
    ``avoided``: nodes on which members of the gang came to nothing."""

    snapshot: Snapshot
    standings: NamespaceStandings
    policies: Callable[[Pod], Policy]
    is_late: Callable[[], bool] = lambda: False
    nominated: tuple[Pod, ...] = ()
    ahead: tuple[Pod, ...] = ()
    avoided: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Capacity:
    """For each of the ``shapes``, lists of pods that are alike. ``base``: the cluster before the plan;
    ``apart``: where pods are there; ``refused``: for each shape the nodes with cards that rules about other
    pods keep from it, whatever is placed."""

    shapes: Sequence[Sequence[Pod]]
    given: PlanInput
    base: Snapshot
    caps: CapChecks
    apart: Apart
    refused: dict[int, dict[str, Reason]] = field(default_factory=dict)
    _is_picky: list[bool] = field(init=False)
    _takes: dict[int, dict[str, int]] = field(default_factory=dict)
    _alike: dict[int, dict[object, int]] = field(default_factory=dict)
    _all: list[dict[str, int]] = field(default_factory=list)
    _cards: dict[str, int] = field(default_factory=dict)
    _free: dict[FreeShape, int] = field(default_factory=dict)
    _offered: dict[object, list[NodeInfo]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        requests = (pods[0].request for pods in self.shapes)
        self._is_picky = [each is None or is_picky(each) for each in requests]

    def of(
        self,
        shape: int,
        now: Snapshot,
        touched: Collection[str] = (),
        names: Collection[str] | None = None,
    ) -> dict[str, int]:
        """How many pods of this shape each node takes now, of the nodes that take any. ``touched``: those
        that have taken pods since; ``names``: only these nodes, None: all."""
        pod, before = self.shapes[shape][0], self._before(shape)
        wanted = before if names is None else names
        found = {name: before[name] for name in wanted if name in before}
        for name in touched:
            if name in found:
                count = self._count(shape, self.without_promised(now.node(name)))
                if count:
                    found[name] = count
                else:
                    del found[name]
        for name in self.caps.refused_nodes(pod, found, now):
            del found[name]
        return found

    def after(self, shape: int, node: NodeInfo) -> int:
        """How many pods of this shape the node takes, which some pods have left."""
        is_candidate = self._is_open(node) and is_offered(self.shapes[shape][0], node)
        return self._count(shape, self.without_promised(node)) if is_candidate else 0

    @property
    def all(self) -> Sequence[Mapping[str, int]]:
        """For each shape, how many of its pods each node takes at most before any is placed."""
        for shape in range(len(self.shapes)) if not self._all else ():
            takes, is_alone = self.of(shape, self.base), self.apart.is_alone(self.shapes[shape][0])
            self._all.append(dict.fromkeys(takes, 1) if is_alone else takes)
        return self._all

    def free(self, node: NodeInfo) -> int:
        """How empty the node's cards are."""
        if node.shape not in self._free:
            self._free[node.shape] = sum(each.left_milli for each in node.shape.free_by_card)
        return self._free[node.shape]

    @property
    def cards(self) -> Mapping[str, int]:
        """How many cards of each of their nodes no pod uses; empty for one shape."""
        if len(self.shapes) > 1 and not self._cards:
            there = {name for shape in range(len(self.shapes)) for name in self._before(shape)}
            self._cards = {name: _untouched(self.base.node(name)) for name in there}
        return self._cards

    def _before(self, shape: int) -> dict[str, int]:
        if shape not in self._takes:
            found, pod = {}, self.shapes[shape][0]
            checks, refused = Checks(self.apart, pod), dict[str, Reason]()
            for node in self._candidates(pod):
                if self.given.is_late():
                    break
                count = self._count(shape, node)
                if count and (reason := checks.keeps_off(node.name)) is not None:
                    refused[node.name] = reason
                elif count:
                    found[node.name] = count
            self._takes[shape], self.refused[shape] = found, refused
        return self._takes[shape]

    def _count(self, shape: int, node: NodeInfo) -> int:
        pods, known = self.shapes[shape], self._alike.setdefault(shape, {})
        key = None if self._is_picky[shape] else _likeness(pods[0], node)
        if key in known:
            return known[key]
        count = count_on(pods[0], node, self.given.policies(pods[0]), len(pods))
        if key is not None:
            known[key] = count
        return count

    def _candidates(self, pod: Pod) -> list[NodeInfo]:
        """The nodes with cards that kube-scheduler would offer if enough were free there."""
        key = pod.others, pod.node_constraints
        if key not in self._offered:
            self._offered[key] = [
                self.without_promised(node) for node in offered(pod, self.base) if self._is_open(node)
            ]
        return self._offered[key]

    def _is_open(self, node: NodeInfo) -> bool:
        """Whether it has cards that members of this gang may get."""
        there = node.node_object
        is_kept = there is None or not there.cards or node.closed or node.name in self.given.avoided
        return not is_kept

    def without_promised(self, node: NodeInfo) -> NodeInfo:
        """The node, where reservations of pods that still wait count as kube-scheduler will count them."""
        promised = [each for each in node.allocations.values() if each.state in ("reserved", "planned")]
        for each in promised:
            pod = self.base.pods.get(each.uid)
            if pod is not None:
                full = replace(each, amounts=pod.amounts, cpu_milli=pod.cpu_milli, others=pod.others)
                node = with_allocation(node, full)
        return node


def _untouched(node: NodeInfo) -> int:
    return len([free for free in node.free_by_card if free is not None and free.untouched])


def count_on(pod: Pod, node: NodeInfo, policy: Policy, most: int) -> int:
    """How many such pods the node takes, at most ``most``."""
    for count in range(most):
        placement = placed_on(pod, node, policy)
        if placement is None:
            return count
        node = with_allocation(
            node, allocation_of(replace(pod, uid=f"{pod.uid}/{count}"), placement, "assumed")
        )
    return most


def placed_on(pod: Pod, node: NodeInfo, policy: Policy) -> Placement | None:
    """The pod's cards on the node; None where the node, or its sums, have too little left."""
    if pod.request is None or lacks(node, pod.amounts) or host_lack(pod, node):
        return None
    found = fit(pod.request, node, policy)
    return None if isinstance(found, Refusal) else found


def takes_empty(pod: Pod, node: NodeInfo, policy: Policy) -> bool:
    """Whether the node would take the pod if no pod had cards there."""
    there = node.node_object
    if there is None or node.closed or not pod.node_constraints.admit(node.name, there.node_labels):
        return False
    return placed_on(pod, without_pods(node, tuple(node.allocations)), policy) is not None


def shape_of(pod: Pod) -> object:
    """Equal for pods that each node takes alike."""
    return pod.request, pod.amounts, pod.cpu_milli, pod.others, pod.node_constraints, pod.rules


def _likeness(pod: Pod, node: NodeInfo) -> object | None:
    """Equal for nodes that take as many pods of this shape, unless it names cards or models; None: not known
    without trying."""
    if pod.request is None or node.node_object is None:
        return None
    shape = shape_for(pod.request, node)
    if isinstance(shape, Refusal):
        return shape
    others = tuple(each.others for each in node.allocations.values() if each.others)
    return shape, node.left, node.cpu_left, node.node_object.others, node.non_gpu.others, others


def never_text(pods: Sequence[Pod], needed: int, given: PlanInput, autoscales: bool) -> str:
    """Why as many of these members as it needs cannot start, for people; "": caps allow it and the cards are
    there, held or not, or it is not known of all nodes how many they have, or more may come. Closed nodes
    count."""
    kinds = Counter((pod.node_constraints, pod.request) for pod in pods if pod.request is not None)
    standing, milli = given.standings.of(pods[0].namespace), sum(_least(kinds)[:needed])
    for cap in (standing.caps.own, standing.caps.of_group) if standing.watched is None else ():
        if cap.total_milli is not None and milli > cap.total_milli:
            most = cards_text(cap.total_milli)
            return f"it can never start by maxGPUs: it needs {cards_text(milli)} cards, and may hold {most}"
    named = any(each.ask.resources for _, request in kinds for each in request.asks)
    by_sets = any(request.same_gpu or request.by_set for _, request in kinds)
    if autoscales or not kinds or named or by_sets or any(pod.waits_for_devices for pod in pods):
        return ""  # parts of cards and devices of claims are counted in other ways
    label, snapshot = next((pod.gang.topology for pod in pods if pod.gang), ""), given.snapshot
    told = _lack(kinds, needed, label, snapshot)
    for kind, count in kinds.items() if len(kinds) > 1 and not told else ():
        least = needed - (len(pods) - count)  # of this kind
        told = told or (_lack({kind: count}, least, label, snapshot) if least > 0 else "")
    return told


def _least(kinds: Mapping[Kind, int]) -> list[int]:
    return sorted(least_milli(request) for (_, request), count in kinds.items() for _ in range(count))


def _lack(kinds: Mapping[Kind, int], needed: int, label: str, snapshot: Snapshot) -> str:
    every = _least(kinds)
    milli = sum(every[:needed])
    # of pods that are alike, with whole cards on one node or a part of one card
    (_, request), alike = next(iter(kinds)), every[0] if len(kinds) == 1 else 0
    alike = alike if not alike % WHOLE_MILLI or cards_at_once(request.asks) == 1 else 0
    cards, takes = Counter[str](), Counter[str]()
    for node in snapshot.nodes.values():
        there = node.node_object
        if there is None:
            continue
        labels = there.node_labels
        if labels.taints:
            lasting = (taint for taint in labels.taints if not taint.key.startswith(_PASSING))
            labels = replaced(labels, taints=tuple(lasting))
        asked = [request for constraints, request in kinds if constraints.admit(node.name, labels)]
        domain = label_value(node, label) if label else ""
        if not asked or domain is None:
            continue
        is_unknown = not there.cards and (node.undescribed or there.fault == "inventory")
        if is_unknown or dict(there.allocatable).get(GPU, 0) > len(there.cards):
            return ""  # the second: a plugin that shares cards
        count = sum(any(allowed(request, card) for request in asked) for card in there.cards)
        cards[domain] += count
        parts = WHOLE_MILLI // alike if 0 < alike < WHOLE_MILLI else 1
        takes[domain] += count * parts * WHOLE_MILLI // max(alike, WHOLE_MILLI)
        if cards[domain] * WHOLE_MILLI >= milli and (not alike or takes[domain] >= needed):
            return ""
    selectors = {constraints.selector for constraints, _ in kinds}
    selector = ",".join(f"{key}={value}" for key, value in selectors.pop()) if len(selectors) == 1 else ""
    where = f"nodes {f'with {selector}' if selector else 'that it may use'}"
    where += f" in one {called(label)}" if label else ""
    best, most = max(cards.values(), default=0), max(takes.values(), default=0)
    lack = f"it needs {cards_text(milli)} cards on {where}, which have {best}{' at most' if label else ''}"
    if best * WHOLE_MILLI >= milli:
        lack = f"{needed} members need {cards_text(alike)} cards each, and {where} take {most} of them"
    return f"it can never start here: {lack}"
