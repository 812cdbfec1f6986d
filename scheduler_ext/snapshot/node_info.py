"""A node with the pods on its cards, and what they leave free."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from scheduler_ext.model.node import Node
from scheduler_ext.model.other_resources import Others
from scheduler_ext.model.pod import Amounts, NonGPUPod
from scheduler_ext.model.published_gpus import PublishedGPU, claim_drivers
from scheduler_ext.snapshot.allocation import (
    Allocation,
    in_state_of,
    judged,
    spread_over,
    uses_of,
    within_node,
)
from scheduler_ext.snapshot.free import Free, FreeShape, free_of, has_more, shape_of
from timekeeper.core.dialects.nvidia_parts import is_in_parts
from timekeeper.core.names import AGENTS_NAMESPACE
from timekeeper.core.request.card_amounts import NO_AMOUNT
from timekeeper.core.values import WHOLE_MILLI, Card


class NonGPUUse(NamedTuple):
    """What pods without an allocation take of a node."""

    cpu_milli: int = 0
    others: Others = ()  # memory and other resources
    leaving: tuple[NonGPUPod, ...] = ()  # of these pods the ones that are being deleted
    agents: int = 0  # of these pods those in the node agent's namespace


NO_USE = NonGPUUse()


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A node, the pods on its cards, and what follows from both. It never changes."""

    name: str
    node_object: Node | None  # None: only pods name this node
    allocations: Mapping[str, Allocation]  # by pod UID; never changed in place
    closed: str  # why the node is closed for sharing: a key of `node.CLOSED`, or ""
    free_by_card: tuple[Free | None, ...]  # in the inventory's order; None: the card is not to be given out
    unnamed: int  # cards that pods hold and that only the device plugin could name
    left: tuple[tuple[str, int], ...]  # what kube-scheduler counts as left, by resource
    non_gpu: NonGPUUse
    cpu_left: int  # allocatable CPU less the requests of all pods, in thousandths of a core
    shape: FreeShape  # of the cards that may be given out
    serves: str = ""  # the dialect whose requests may use any of its cards; "": more must be checked
    model: str = ""  # the model of all its cards, "" where they differ
    published: tuple[PublishedGPU, ...] = ()  # what drivers publish of it for device claims
    claim_drivers: tuple[str, ...] = ()  # those of them that give out its cards, or may
    boot: str = ""  # the last known boot ID, also while the node has no object

    @property
    def cards(self) -> tuple[Card, ...]:
        """The inventory."""
        return self.node_object.cards if self.node_object else ()

    @property
    def undescribed(self) -> str:
        """What it offers without an inventory (`Node.undescribed`), or by claims; "": nothing."""
        if self.claim_drivers and not self.cards:
            return f"device claims of {', '.join(self.claim_drivers)}"
        return self.node_object.undescribed if self.node_object else ""

    @property
    def is_on_map(self) -> bool:
        """Whether a map of the cluster's cards shows it."""
        return bool(self.cards or self.closed or self.undescribed)


def node_info_of(
    name: str,
    node_object: Node | None,
    allocations: Mapping[str, Allocation],
    non_gpu: NonGPUUse = NO_USE,
    published: tuple[PublishedGPU, ...] = (),
    boot: str = "",
) -> NodeInfo:
    """The node that follows from its object, its allocations, what pods without one take, and the GPUs that
    drivers publish of it. ``boot``: the last known one before."""
    if node_object is None:
        return NodeInfo(
            name=name,
            node_object=None,
            allocations=allocations,
            closed="",
            free_by_card=(),
            unnamed=0,
            left=(),
            non_gpu=non_gpu,
            cpu_left=0,
            shape=shape_of(()),
            published=published,
            boot=boot,
        )
    allocations = spread_over(node_object.cards, within_node(node_object, allocations))
    uses, drivers = uses_of(allocations), claim_drivers(published, node_object)
    closed = _closed(node_object, allocations, drivers)
    free_by_card = tuple(
        free_of(c, uses.get(c.uuid, NO_AMOUNT)) if c.usable else None for c in node_object.cards
    )
    healthy = tuple(sorted(free for free in free_by_card if free is not None))
    models = {c.model for c, free in zip(node_object.cards, free_by_card, strict=True) if free is not None}
    return NodeInfo(
        name=name,
        node_object=node_object,
        allocations=allocations,
        closed=closed,
        free_by_card=free_by_card,
        unnamed=sum(allocation.unnamed for allocation in allocations.values()),
        left=_left(node_object, allocations),
        non_gpu=non_gpu,
        cpu_left=node_object.cpu_milli
        - non_gpu.cpu_milli
        - sum(allocation.cpu_milli for allocation in allocations.values()),
        shape=shape_of(healthy),
        serves="" if closed or not healthy or node_object.plugin_chooses else node_object.family,
        model=next(iter(models)) if len(models) == 1 else "",
        published=published,
        claim_drivers=drivers,
        boot=node_object.boot or boot,
    )


def _closed(node_object: Node, allocations: Mapping[str, Allocation], drivers: tuple[str, ...]) -> str:
    """Of several faults always the same one, so that a restart does not change the reason. Claims are the
    first: to the node's agent, their processes are strangers."""
    if drivers and node_object.has_gpus:
        return "claims"
    return node_object.fault or min(
        (allocation.fault for allocation in allocations.values() if allocation.fault),
        default=_overcommitted(node_object, allocations),
    )


def with_node_object(node: NodeInfo, node_object: Node | None) -> NodeInfo:
    """The node with a new Node object; every allocation is judged again by its inventory."""
    if node.node_object == node_object:
        return node
    allocations = {uid: judged(allocation, node_object) for uid, allocation in node.allocations.items()}
    return node_info_of(node.name, node_object, allocations, node.non_gpu, node.published, node.boot)


def with_published(node: NodeInfo, published: tuple[PublishedGPU, ...]) -> NodeInfo:
    """The node of which drivers publish these GPUs."""
    if node.published == published:
        return node
    return node_info_of(node.name, node.node_object, node.allocations, node.non_gpu, published, node.boot)


def _with(node: NodeInfo, allocations: Mapping[str, Allocation]) -> NodeInfo:
    return node_info_of(node.name, node.node_object, allocations, node.non_gpu, node.published, node.boot)


def with_allocation(node: NodeInfo, allocation: Allocation) -> NodeInfo:
    """The node with this allocation, in place of an earlier one of the same pod."""
    known = node.allocations.get(allocation.uid)
    now = in_state_of(known, allocation) if known is not None else None
    if now is not None:  # a Binding that was expected: nothing is counted again
        return node if now is known else replace(node, allocations={**node.allocations, now.uid: now})
    allocation = judged(allocation, node.node_object)
    if known == allocation:
        return node
    return _with(node, {**node.allocations, allocation.uid: allocation})


def with_allocations(node: NodeInfo, allocations: Iterable[Allocation]) -> NodeInfo:
    """The node with these allocations of pods that had none."""
    more = {each.uid: judged(each, node.node_object) for each in allocations}
    return _with(node, {**node.allocations, **more})


def without_pod(node: NodeInfo, uid: str) -> NodeInfo:
    """The node without this pod's cards."""
    return without_pods(node, (uid,))


def without_pods(node: NodeInfo, uids: Collection[str]) -> NodeInfo:
    """The node without these pods' cards; the same value if it has none of them."""
    if not any(uid in node.allocations for uid in uids):
        return node
    return _with(node, {uid: each for uid, each in node.allocations.items() if uid not in uids})


def with_non_gpu_pods(
    node: NodeInfo, come: Iterable[NonGPUPod] = (), gone: Iterable[NonGPUPod] = ()
) -> NodeInfo:
    """The node with these more pods without an allocation, and without those that are gone."""
    come, gone = list(come), list(gone)
    total, agents = dict(node.non_gpu.others), node.non_gpu.agents
    for sign, pods in ((1, come), (-1, gone)):
        for pod in pods:
            agents += sign * (pod.namespace == AGENTS_NAMESPACE)
            for resource, amount in pod.others:
                total[resource] = total.get(resource, 0) + sign * amount
    uids = {pod.uid for pod in gone}
    leaving = [pod for pod in node.non_gpu.leaving if pod.uid not in uids]
    leaving += [pod for pod in come if pod.leaves_ms]
    cpu_milli = sum(pod.cpu_milli for pod in come) - sum(pod.cpu_milli for pod in gone)
    use = NonGPUUse(
        node.non_gpu.cpu_milli + cpu_milli,
        tuple(sorted((resource, amount) for resource, amount in total.items() if amount)),
        tuple(sorted(leaving, key=lambda pod: pod.uid)),
        agents,
    )
    if node.node_object is None:
        return replace(node, non_gpu=use)
    return replace(node, non_gpu=use, cpu_left=node.cpu_left - cpu_milli)


def unreserved(node: NodeInfo) -> NodeInfo:
    """The node without reservations and drains; the same object if it has none."""
    allocations = {uid: allocation for uid, allocation in node.allocations.items() if not allocation.is_kept}
    return node if len(allocations) == len(node.allocations) else _with(node, allocations)


def is_emptier(new: NodeInfo, old: NodeInfo | None) -> bool:
    """True if a request may fit now that did not fit before. Cards that are freed under a reservation count:
    the pod that they are held for may use them."""
    if new.closed or not new.cards:
        return False
    if old is None or old.closed or old.node_object is None or new.node_object is None:
        return True
    if (new.node_object.cards, new.node_object.family) != (old.node_object.cards, old.node_object.family):
        return True
    return _has_more(new, old) or _has_more(unreserved(new), unreserved(old))


def is_as_free(new: NodeInfo | None, old: NodeInfo | None) -> bool:
    """True if nothing differs that a pod's fit or score depends on: only pods' states do. False if unsure."""
    if new is None or old is None or new.free_by_card is not old.free_by_card or new.left is not old.left:
        return False
    mine = new.node_object, new.closed, new.unnamed, new.cpu_left, new.claim_drivers
    return mine == (old.node_object, old.closed, old.unnamed, old.cpu_left, old.claim_drivers)


def lacks(node: NodeInfo, amounts: Amounts) -> bool:
    """Whether kube-scheduler's own sums are short, be it for good."""
    left = dict(node.left)
    return node.node_object is not None and any(
        amount > left.get(resource, 0) for resource, amount in amounts
    )


def is_short(node: NodeInfo, amounts: Amounts) -> bool:
    """True if kube-scheduler's own sums are short as well, but not for good. kube-scheduler would not have
    offered such a node, and its own preemption can help there. For any other shortage it would find no
    victim and retry at once, endlessly."""
    if node.node_object is None or not lacks(node, amounts):
        return False
    allocatable = dict(node.node_object.allocatable)
    return all(amount <= allocatable.get(resource, 0) for resource, amount in amounts)


def _has_more(new: NodeInfo, old: NodeInfo) -> bool:
    cards = zip(new.cards, new.free_by_card, old.free_by_card, strict=True)
    known = ((card, mine, was) for card, mine, was in cards if mine is not None and was is not None)
    if new.node_object is not None and new.node_object.plugin_chooses:
        has_more_parts = any(is_in_parts(card) and has_more(mine, was) for card, mine, was in known)
        return has_more_parts or whole_left(new) > whole_left(old)
    return new.unnamed < old.unnamed or any(has_more(mine, was) for _, mine, was in known)


def _overcommitted(node_object: Node, allocations: Mapping[str, Allocation]) -> str:
    """The fault of a card that two schedulers gave out, without knowing of each other; "" without one."""
    named = {uuid for each in allocations.values() if each.named for uuid, _ in each.uses}
    if not named:
        return ""
    held = uses_of({uid: each for uid, each in allocations.items() if not each.is_kept})
    for card in node_object.cards:
        use = held.get(card.uuid, NO_AMOUNT)
        if card.uuid in named and (use.share_milli > WHOLE_MILLI or use.memory_mib > card.memory_mib):
            return "overcommitted"
    return ""


def whole_left(node: NodeInfo) -> int:
    """Untouched cards, less those of pods of which only the number of cards is known."""
    cards = zip(node.cards, node.free_by_card, strict=True)
    whole = (free for card, free in cards if free is not None and not is_in_parts(card))
    return sum(free.untouched for free in whole) - node.unnamed


def _left(node_object: Node, allocations: Mapping[str, Allocation]) -> tuple[tuple[str, int], ...]:
    taken: dict[str, int] = {}
    for allocation in allocations.values():
        for resource, amount in allocation.amounts:
            taken[resource] = taken.get(resource, 0) + amount
    return tuple((resource, most - taken.get(resource, 0)) for resource, most in node_object.allocatable)
