"""Everything the extender knows of the cluster, as one value, and one function per event that makes the next
one.

Nothing is changed in place. The next snapshot shares all but the touched pod and node with the old one. A
reader keeps the version that it started with; to undo is to keep the old one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from scheduler_ext.model.labels import Packed
from scheduler_ext.model.node import Node
from scheduler_ext.model.pod import MAX_GRACE_MS, CPUMember, NonGPUPod, Pod
from scheduler_ext.model.published_gpus import PublishedGPU
from scheduler_ext.snapshot import orphans, rejections
from scheduler_ext.snapshot.allocation import (
    Allocation,
    allocation_of,
    held_by_namespace,
    is_unknown_orphan,
    orphaned,
    unknown_orphan,
)
from scheduler_ext.snapshot.drains import DRAINED, Drain, drained
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import (
    NO_USE,
    NodeInfo,
    node_info_of,
    with_allocation,
    with_allocations,
    with_node_object,
    with_non_gpu_pods,
    with_published,
    without_pod,
    without_pods,
)
from scheduler_ext.snapshot.rejections import NOTHING_REJECTED, NodeRejections
from scheduler_ext.snapshot.reservations import reserved
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.values import Card, Placement

ENDED_MS = 60_000  # how long after its end an agent's earlier look may still list a pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at one moment; a change makes another snapshot."""

    pods: Map[Pod] = field(default_factory=Map)  # every GPU pod that has an object, by UID
    # the pods without a GPU request that take something of a node, by UID
    non_gpu_pods: Map[NonGPUPod] = field(default_factory=Map)
    nodes: Map[NodeInfo] = field(default_factory=Map)  # every node that has an object or a pod, by name
    # the node on which the pod has its allocation, by pod UID
    allocated_on: Map[str] = field(default_factory=Map)
    # what the pods of each namespace hold of cards, in milli-GPU: the sum of `Allocation.held_milli`
    held: Map[int] = field(default_factory=Map)
    unsure: frozenset[str] = frozenset()  # UIDs of the pods whose allocation is not `bound`
    drain: Drain | None = None  # cards that are kept empty for a gang
    # the pods without a GPU request that wait for a node and have the mark of a group, by UID
    cpu_members: Map[CPUMember] = field(default_factory=Map)
    # of both kinds of pods those whose rules keep other pods off nodes, by UID
    keeping_off: Map[Pod | NonGPUPod] = field(default_factory=Map)
    namespaces: Map[Packed] = field(default_factory=Map)  # their labels, by name
    # pods that ended and are deleted, with their node and until when to remember that: the agent may list
    # them a little longer, or forever if it is gone
    ended: Map[tuple[str, int]] = field(default_factory=Map, compare=False)
    # by name, nodes whose kubelets refuse pods for reasons of devices
    rejections: Map[NodeRejections] = field(default_factory=Map, compare=False)
    # the pods have been listed, so a pod that an agent lists and that has no object was deleted
    whole: bool = field(default=False, compare=False)
    most_grace_ms: int = field(default=MAX_GRACE_MS, compare=False)  # the cluster's longest grace period

    def node(self, name: str) -> NodeInfo:
        """The node of this name; an empty one if it is unknown."""
        return self.nodes.get(name) or node_info_of(name, None, {})

    def allocation(self, uid: str) -> Allocation | None:
        """The pod's allocation, on whichever node it is."""
        name = self.allocated_on.get(uid)
        return self.node(name).allocations.get(uid) if name is not None else None

    def comes_last(self, namespace: str) -> frozenset[str]:
        """The nodes before which others come for pods of this namespace."""
        if not len(self.rejections):
            return frozenset()
        return frozenset(name for name, known in self.rejections.items() if known.comes_last(namespace))

    def cards(self) -> Iterator[tuple[str, Card]]:
        """Each card, with its node's name."""
        for name, node in self.nodes.items():
            for card in node.cards:
                yield name, card


EMPTY = Snapshot()


def joined(known: Pod, pod: Pod) -> Pod:
    """The newer version, with what only earlier ones said of its hold."""
    boot, says = known.boot if pod.hold.unconfirmed else "", hold.later(known.hold, pod.hold)
    return pod if (says, boot) == (pod.hold, pod.boot) else structs.replace(pod, hold=says, boot=boot)


def pod_updated(snapshot: Snapshot, pod: Pod, now_ms: int = 0) -> Snapshot:
    """The pod is now as given. An unbound pod keeps its assumed allocation until a refusal, its end, or a
    binding elsewhere; without one it gets the reservation that counts at ``now_ms``."""
    known = snapshot.pods.get(pod.uid)
    if known is not None:
        pod = joined(known, pod)
    if pod.hold.unconfirmed and not pod.boot:
        pod = structs.replace(pod, boot=snapshot.node(pod.node).boot)
    if known == pod:
        return snapshot
    snapshot = _with_keeping_off(replace(snapshot, pods=snapshot.pods.set(pod.uid, pod)), {pod.uid: pod})
    if pod.rejected or pod.node in snapshot.rejections:
        before = snapshot.rejections.get(pod.node) or NOTHING_REJECTED
        snapshot = _with_rejections(snapshot, pod.node, rejections.with_pod(before, pod, now_ms))
    allocation = snapshot.allocation(pod.uid)
    if not pod.node:
        if allocation is not None and is_unknown_orphan(allocation):
            snapshot = release(snapshot, pod.uid)
        return _reserved(snapshot, pod, now_ms)
    if not pod.holding or _is_left_behind(snapshot, pod):
        return release(snapshot, pod.uid)
    if pod.is_static:
        snapshot = _without_former(snapshot, pod, now_ms)
    return allocated(snapshot, pod.node, allocation_of(pod, pod.placement, "bound"))


def _without_former(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    """Without what former mirrors of this static pod held: a kubelet never runs two pods of one name."""
    for allocation in tuple(snapshot.node(pod.node).allocations.values()):
        is_former = allocation.is_static and allocation.state == "orphaned"
        if is_former and allocation.full_name == pod.full_name:
            former = structs.replace(pod, uid=allocation.uid)
            snapshot = _ended(release(snapshot, former.uid), former, now_ms)
    return snapshot


def _with_rejections(snapshot: Snapshot, name: str, now: NodeRejections) -> Snapshot:
    if now == (snapshot.rejections.get(name) or NOTHING_REJECTED):
        return snapshot
    if now == NOTHING_REJECTED:
        return replace(snapshot, rejections=snapshot.rejections.without(name))
    return replace(snapshot, rejections=snapshot.rejections.set(name, now))


def _is_left_behind(snapshot: Snapshot, pod: Pod) -> bool:
    node_object = snapshot.node(pod.node).node_object
    return node_object is not None and hold.is_left_behind(pod.hold, pod.uid, pod.boot, node_object.sight)


def pod_deleted(snapshot: Snapshot, pod: Pod, now_ms: int, was_watched: bool = True) -> Snapshot:
    """The pod's object is gone, and was last as given. A pod that held cards keeps them for its grace period,
    while the kubelet may still run it, or as long as the node agent reports it (`orphans`). ``was_watched``:
    False if a list does not contain it; deletions with longer grace periods may have been missed."""
    snapshot = pod_updated(snapshot, pod, now_ms)
    last = snapshot.pods.get(pod.uid) or pod
    snapshot = _without_object(snapshot, pod.uid)
    if pod.holding:
        return _orphaned(snapshot, pod.uid, last.hold, now_ms, was_watched)
    return _ended(release(snapshot, pod.uid), pod, now_ms)


def pods_listed(snapshot: Snapshot, pods: Iterable[Pod], now_ms: int) -> Snapshot:
    """These pods exist, and no others. An assumed allocation outlives the list, which may be older."""
    there = {pod.uid: pod for pod in pods}
    for gone in [pod for pod in snapshot.pods.values() if pod.uid not in there]:
        if gone.node:
            snapshot = pod_deleted(snapshot, gone, now_ms, was_watched=False)
        else:
            snapshot = _without_object(end_planned(unreserve(snapshot, gone.uid), gone.uid), gone.uid)
    unknown = (
        pod for uid, pod in there.items() if uid not in snapshot.pods and uid not in snapshot.allocated_on
    )
    new = {pod.uid: pod for pod in unknown if pod.holding and not (pod.hold.unconfirmed or pod.is_static)}
    snapshot = _all_bound(snapshot, new)
    for pod in [pod for uid, pod in there.items() if uid not in new]:
        snapshot = pod_updated(snapshot, pod, now_ms)
    snapshot = replace(snapshot, whole=True)
    for node in snapshot.nodes.values():
        snapshot = _by_agent(snapshot, node.name, now_ms)
    return snapshot


def non_gpu_pod_updated(snapshot: Snapshot, other: NonGPUPod) -> Snapshot:
    """The pod, which requests no GPU, is now as given."""
    snapshot = _with_member(snapshot, other.uid, other.member)
    known = snapshot.non_gpu_pods.get(other.uid)
    if known == other:
        return snapshot
    if known is not None:
        snapshot = _without_non_gpu(snapshot, known)
    if not other.takes:
        return snapshot
    snapshot = replace(snapshot, non_gpu_pods=snapshot.non_gpu_pods.set(other.uid, other))
    snapshot = _with_keeping_off(snapshot, {other.uid: other})
    return _with_node(snapshot, with_non_gpu_pods(snapshot.node(other.node), [other]))


def non_gpu_pod_deleted(snapshot: Snapshot, uid: str) -> Snapshot:
    """The pod, which requested no GPU, takes nothing any more."""
    snapshot = _with_member(snapshot, uid, None)
    known = snapshot.non_gpu_pods.get(uid)
    return snapshot if known is None else _without_non_gpu(snapshot, known)


def non_gpu_pods_listed(snapshot: Snapshot, others: Iterable[NonGPUPod]) -> Snapshot:
    """These pods without a GPU request exist, and no others."""
    there = {other.uid: other for other in others}
    waiting = {uid for uid, other in there.items() if other.member is not None}
    for uid in [uid for uid, _ in snapshot.cpu_members.items() if uid not in waiting]:
        snapshot = _with_member(snapshot, uid, None)
    for uid in [uid for uid, _ in snapshot.non_gpu_pods.items() if uid not in there]:
        snapshot = non_gpu_pod_deleted(snapshot, uid)
    new = {uid: other for uid, other in there.items() if other.takes and uid not in snapshot.non_gpu_pods}
    snapshot = replace(snapshot, non_gpu_pods=snapshot.non_gpu_pods.with_all(new))
    snapshot = _with_keeping_off(snapshot, new)
    by_node: dict[str, list[NonGPUPod]] = {}
    for other in new.values():
        by_node.setdefault(other.node, []).append(other)
    nodes = [with_non_gpu_pods(snapshot.node(name), come) for name, come in by_node.items()]
    snapshot = _with_nodes(snapshot, nodes)
    for other in [other for uid, other in there.items() if uid not in new]:
        snapshot = non_gpu_pod_updated(snapshot, other)
    return snapshot


def node_updated(snapshot: Snapshot, node_object: Node, now_ms: int = 0) -> Snapshot:
    """The node object's present state."""
    return nodes_updated(snapshot, [node_object], now_ms)


def nodes_updated(snapshot: Snapshot, node_objects: Iterable[Node], now_ms: int) -> Snapshot:
    """The present state of these node objects."""
    nodes = [with_node_object(snapshot.node(known.name), known) for known in node_objects]
    snapshot = _with_nodes(snapshot, nodes)
    for node in nodes:
        snapshot = _followed_node(snapshot, node.name, now_ms)
    return snapshot


def _followed_node(snapshot: Snapshot, name: str, now_ms: int) -> Snapshot:
    """With what the node's object says of pods whose end is not certain, or that have no object."""
    there = (pod for uid in snapshot.node(name).allocations if (pod := snapshot.pods.get(uid)))
    for pod in [pod for pod in there if pod.hold.unconfirmed]:
        is_left = _is_left_behind(snapshot, pod)
        snapshot = release(snapshot, pod.uid) if is_left else pod_updated(snapshot, pod)
    return _grown(_by_agent(snapshot, name, now_ms), name)


def node_deleted(snapshot: Snapshot, name: str, now_ms: int = 0) -> Snapshot:
    """The Node object is gone; pods that are bound to it stay on record."""
    gone = _with_node(snapshot, with_node_object(snapshot.node(name), None))
    return _grown(_by_agent(gone, name, now_ms), name)


def _grown(snapshot: Snapshot, name: str) -> Snapshot:
    """All cards of a node that comes for a gang are kept from the moment on at which they are known: pods
    that wait are tried on a new node at once."""
    kept = snapshot.drain
    if kept is None or kept.comes is None or not kept.comes(snapshot.node(name)):
        return snapshot
    cards = tuple(card.uuid for card in snapshot.node(name).cards)
    known = {**dict(kept.cards), name: cards}
    now = tuple((each, uuids) for each, uuids in sorted(known.items()) if uuids)
    return snapshot if now == kept.cards else drain(snapshot, replace(kept, cards=now))


def nodes_listed(snapshot: Snapshot, nodes: Iterable[Node], now_ms: int = 0) -> Snapshot:
    """These nodes exist, and no others."""
    there = {node_object.name: node_object for node_object in nodes}
    for gone in [
        node.name for node in snapshot.nodes.values() if node.node_object and node.name not in there
    ]:
        snapshot = node_deleted(snapshot, gone, now_ms)
    return nodes_updated(snapshot, there.values(), now_ms)


def gpus_published(snapshot: Snapshot, by_node: Mapping[str, tuple[PublishedGPU, ...]]) -> Snapshot:
    """Drivers publish these GPUs of these nodes, and no others of them."""
    for name, gpus in by_node.items():
        snapshot = _with_node(snapshot, with_published(snapshot.node(name), gpus))
    return snapshot


def assume(snapshot: Snapshot, pod: Pod, node: str, placement: Placement, ask_at_ms: int = 0) -> Snapshot:
    """The pod is about to be bound there: its cards are taken from now on. ``ask_at_ms``: when to ask the API
    server about it."""
    known = snapshot.allocation(pod.uid)
    is_of_plan = known is not None and known.state == "planned"
    taken = structs.replace(
        allocation_of(pod, placement, "assumed"), until_ms=ask_at_ms, is_of_plan=is_of_plan
    )
    return allocated(snapshot, node, taken)


def keep_planned(snapshot: Snapshot, pod: Pod, node: str, placement: Placement) -> Snapshot:
    """These cards are kept for this waiting member of a gang. kube-scheduler counts nothing of it."""
    return allocated(snapshot, node, _planned(allocation_of(pod, placement, "planned")))


def end_planned(snapshot: Snapshot, uid: str) -> Snapshot:
    """No cards are kept for the member any more, also if a Binding of it that is under way does not come
    about."""
    allocation = snapshot.allocation(uid)
    if allocation is not None and allocation.is_of_plan:
        name = snapshot.allocated_on.get(uid) or ""
        return allocated(snapshot, name, structs.replace(allocation, is_of_plan=False))
    return release(snapshot, uid) if allocation is not None and allocation.state == "planned" else snapshot


def _planned(allocation: Allocation) -> Allocation:
    return structs.replace(
        allocation, state="planned", is_of_plan=False, undecodable=False, amounts=(), cpu_milli=0, others=()
    )


def ask_after(snapshot: Snapshot, uid: str, at_ms: int) -> Snapshot:
    """When to ask the API server about the assumed pod."""
    allocation = snapshot.allocation(uid)
    if allocation is None or allocation.state != "assumed":
        return snapshot
    return allocated(
        snapshot, snapshot.allocated_on.get(uid) or "", structs.replace(allocation, until_ms=at_ms)
    )


def forget(snapshot: Snapshot, uid: str, now_ms: int = 0) -> Snapshot:
    """The pod was definitely not bound: its assumed allocation is freed, and the reservation that counts at
    ``now_ms`` is in force again, or its gang's plan. Any other allocation stays."""
    allocation, pod = snapshot.allocation(uid), snapshot.pods.get(uid)
    if allocation is None or allocation.state != "assumed":
        return snapshot
    if allocation.is_of_plan and pod is not None and pod.waits:
        return allocated(snapshot, snapshot.allocated_on.get(uid) or "", _planned(allocation))
    snapshot = release(snapshot, uid)
    return snapshot if pod is None or pod.node else _reserved(snapshot, pod, now_ms)


def unreserve(snapshot: Snapshot, uid: str) -> Snapshot:
    """No cards are held for the pod any more. An allocation that is no reservation stays."""
    allocation = snapshot.allocation(uid)
    return release(snapshot, uid) if allocation is not None and allocation.state == "reserved" else snapshot


def orphan(snapshot: Snapshot, uid: str, now_ms: int) -> Snapshot:
    """The pod's object is gone, as a read says, and it is unknown whether the pod had been bound. If the
    watch does not know the object either, deletions may have been missed."""
    known, allocation = snapshot.pods.get(uid), snapshot.allocation(uid)
    grace_ms = allocation.grace_ms if allocation is not None else 0
    says = known.hold if known is not None else PodHold(None, grace_ms=grace_ms)
    return _orphaned(snapshot, uid, says, now_ms, known is not None)


def drain(snapshot: Snapshot, wanted: Drain) -> Snapshot:
    """Keep the cards of this drain empty, and no others."""
    snapshot = undrain(snapshot)
    for node, cards in wanted.cards:
        snapshot = allocated(snapshot, node, drained(wanted, node, cards))
    return replace(snapshot, drain=wanted)


def undrain(snapshot: Snapshot) -> Snapshot:
    """No cards are kept empty any more."""
    if snapshot.drain is None:
        return snapshot
    for node, _ in snapshot.drain.cards:
        snapshot = release(snapshot, f"{DRAINED}{node}")
    return replace(snapshot, drain=None)


def expire(snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Ends what the clock ends: orphaned pods (`orphans.lasts`), reservations, a drain, demotions of nodes,
    and the memory of pods that ended long ago."""
    if snapshot.drain is not None and snapshot.drain.until_ms <= now_ms:
        snapshot = undrain(snapshot)
    for uid in snapshot.unsure:
        allocation = snapshot.allocation(uid)
        if allocation is None or allocation.state == "assumed":
            continue
        name = snapshot.allocated_on.get(uid) or ""
        if orphans.lasts(allocation, snapshot.node(name).node_object, now_ms):
            continue
        snapshot = release(snapshot, uid)
        if is_unknown_orphan(allocation):
            snapshot = replace(snapshot, ended=snapshot.ended.set(uid, (name, now_ms)))
    for name, known in snapshot.rejections.items():
        snapshot = _with_rejections(snapshot, name, rejections.at(known, now_ms))
    for uid, (name, until_ms) in snapshot.ended.items():
        if until_ms <= now_ms and uid not in orphans.listed(snapshot.node(name)):
            snapshot = replace(snapshot, ended=snapshot.ended.without(uid))
    return snapshot


def release(snapshot: Snapshot, uid: str) -> Snapshot:
    """The pod holds no card any more."""
    name = snapshot.allocated_on.get(uid)
    if name is None:
        return snapshot
    snapshot = replace(
        snapshot, allocated_on=snapshot.allocated_on.without(uid), unsure=snapshot.unsure - {uid}
    )
    return _with_node(snapshot, without_pod(snapshot.node(name), uid))


def without_holders(snapshot: Snapshot, uids: Iterable[str]) -> Snapshot:
    """What the nodes would have free without these pods; each node is computed once."""
    by_node: dict[str, list[str]] = {}
    for uid in uids:
        by_node.setdefault(snapshot.allocated_on.get(uid) or "", []).append(uid)
    for name, there in by_node.items():
        snapshot = _with_node(snapshot, without_pods(snapshot.node(name), there))
    return snapshot


def _orphaned(snapshot: Snapshot, uid: str, says: PodHold, now_ms: int, was_watched: bool) -> Snapshot:
    allocation = snapshot.allocation(uid)
    if allocation is None or allocation.state == "orphaned":
        return snapshot
    if allocation.is_kept:
        return release(snapshot, uid)
    name = snapshot.allocated_on.get(uid) or ""
    gone = hold.vanished(says, now_ms, now_ms, snapshot.most_grace_ms, was_watched)
    return _followed(allocated(snapshot, name, orphaned(allocation, gone)), name, uid, now_ms)


def _by_agent(snapshot: Snapshot, name: str, now_ms: int) -> Snapshot:
    """Applies the agent's report to orphaned pods, and adds the pods that only the agent reports."""
    for allocation in [
        allocation
        for allocation in snapshot.node(name).allocations.values()
        if allocation.state == "orphaned"
    ]:
        snapshot = _followed(snapshot, name, allocation.uid, now_ms)
    if not snapshot.whole:
        return snapshot
    node = snapshot.node(name)
    for uid in orphans.listed(node):
        if uid not in snapshot.allocated_on and uid not in snapshot.pods and uid not in snapshot.ended:
            boot = node.node_object.boot if node.node_object is not None else ""
            snapshot = allocated(snapshot, name, unknown_orphan(uid, boot, now_ms, snapshot.most_grace_ms))
    return snapshot


def _followed(snapshot: Snapshot, name: str, uid: str, now_ms: int) -> Snapshot:
    node = snapshot.node(name)
    allocation = orphans.followed(node.allocations[uid], node.node_object, now_ms)
    return release(snapshot, uid) if allocation is None else allocated(snapshot, name, allocation)


def _ended(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    node_object = snapshot.node(pod.node).node_object if pod.node else None
    if node_object is None or node_object.present is None:
        return snapshot  # no agent that could list it
    return replace(snapshot, ended=snapshot.ended.set(pod.uid, (pod.node, now_ms + ENDED_MS)))


def _reserved(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    allocation = snapshot.allocation(pod.uid)
    if allocation is not None and allocation.state != "reserved":
        return snapshot if pod.waits else end_planned(snapshot, pod.uid)
    if pod.reserved is None or not pod.reserved.lasts(now_ms):
        return unreserve(snapshot, pod.uid)
    return allocated(snapshot, pod.reserved.node, reserved(pod, pod.reserved))


def allocated(snapshot: Snapshot, name: str, allocation: Allocation) -> Snapshot:
    """The pod's allocation is now this one, on the named node."""
    if snapshot.allocated_on.get(allocation.uid) not in (None, name):
        snapshot = release(snapshot, allocation.uid)
    uid, sure = allocation.uid, allocation.state in ("bound", "drained", "planned")
    if (snapshot.allocated_on.get(uid), uid in snapshot.unsure) != (name, not sure):
        unsure = snapshot.unsure - {uid} if sure else snapshot.unsure | {uid}
        snapshot = replace(snapshot, allocated_on=snapshot.allocated_on.set(uid, name), unsure=unsure)
    return _with_node(snapshot, with_allocation(snapshot.node(name), allocation))


def _all_bound(snapshot: Snapshot, pods: Mapping[str, Pod]) -> Snapshot:
    """`pod_updated` of them all, where they hold cards and nothing was known of any: each node is computed
    once."""
    by_node: dict[str, list[Allocation]] = {}
    for pod in pods.values():
        by_node.setdefault(pod.node, []).append(allocation_of(pod, pod.placement, "bound"))
    nodes = {uid: pod.node for uid, pod in pods.items()}
    allocated_on = snapshot.allocated_on.with_all(nodes)
    snapshot = replace(snapshot, pods=snapshot.pods.with_all(pods), allocated_on=allocated_on)
    snapshot = _with_keeping_off(snapshot, pods)
    return _with_nodes(snapshot, [with_allocations(snapshot.node(name), of) for name, of in by_node.items()])


def _with_keeping_off(snapshot: Snapshot, pods: Mapping[str, Pod | NonGPUPod]) -> Snapshot:
    """With what these pods, which are there now, keep off."""
    keeping = {uid: pod for uid, pod in pods.items() if pod.rules.keep_off}
    known = snapshot.keeping_off
    for uid in pods if len(known) else ():
        if uid not in keeping:
            known = known.without(uid)
    if keeping:
        known = known.with_all(keeping)
    return snapshot if known is snapshot.keeping_off else replace(snapshot, keeping_off=known)


def _without_object(snapshot: Snapshot, uid: str) -> Snapshot:
    left = snapshot.pods.without(uid)
    return replace(snapshot, pods=left, keeping_off=snapshot.keeping_off.without(uid))


def _with_member(snapshot: Snapshot, uid: str, member: CPUMember | None) -> Snapshot:
    if snapshot.cpu_members.get(uid) == member:
        return snapshot
    members = snapshot.cpu_members
    return replace(snapshot, cpu_members=members.without(uid) if member is None else members.set(uid, member))


def _without_non_gpu(snapshot: Snapshot, other: NonGPUPod) -> Snapshot:
    keeping_off = snapshot.keeping_off.without(other.uid)
    left = snapshot.non_gpu_pods.without(other.uid)
    snapshot = replace(snapshot, non_gpu_pods=left, keeping_off=keeping_off)
    return _with_node(snapshot, with_non_gpu_pods(snapshot.node(other.node), gone=[other]))


def _with_node(snapshot: Snapshot, node: NodeInfo) -> Snapshot:
    return _with_nodes(snapshot, [node])


def _with_nodes(snapshot: Snapshot, nodes: Iterable[NodeInfo]) -> Snapshot:
    """These nodes, each once, are now as given."""
    left, come, more = snapshot.nodes, dict[str, NodeInfo](), dict[str, int]()
    for node in nodes:
        old = snapshot.nodes.get(node.name)
        if old is node:
            continue
        former = old.allocations if old is not None else {}
        for namespace, milli in held_by_namespace(node.allocations, former):
            more[namespace] = more.get(namespace, 0) + milli
        if node.node_object is None and not (node.allocations or node.published) and node.non_gpu == NO_USE:
            left = left.without(node.name)
        else:
            come[node.name] = node
    if not come and left is snapshot.nodes:
        return snapshot
    held = snapshot.held
    for namespace, milli in more.items():
        if milli:
            total = (held.get(namespace) or 0) + milli
            held = held.set(namespace, total) if total else held.without(namespace)
    return replace(snapshot, held=held, nodes=left.with_all(come))
