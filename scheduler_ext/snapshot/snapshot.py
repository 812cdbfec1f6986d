"""Everything the extender knows at one moment, as one value, and how each event makes the next one.

No function here changes anything: it gives a new snapshot that shares all but the touched pod and node with
the old one, so a reader keeps the one it began with, and to undo is to go on with the old one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduler_ext.model.node import Facts
from scheduler_ext.model.pod import MOST_GRACE_MS, Other, Pod
from scheduler_ext.snapshot import orphans as lingering
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import (
    Node,
    Seat,
    is_nameless,
    nameless,
    node_of,
    reserved,
    seat_of,
    vanished,
    with_facts,
    with_others,
    with_seat,
    without_seat,
)
from timekeeper.core.values import Placement

ENDED_MS = 60_000  # so long after its end a pod may come to be listed that was there when its agent looked


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``pods``: every GPU pod whose object exists, by UID. ``others``: the pods that ask for no GPU and
    take CPU of a node, by UID. ``nodes``: every node that has an object or a pod, by name. ``seated``: on
    which node a pod has a seat, by UID. ``unsure``: the UIDs whose seats are assumed, or those of
    vanished pods. ``ended``: pods that ended and whose objects are gone, with their node and how long to
    remember that: its agent may list them a little longer, or, where it is gone itself, for ever.
    ``whole``: the pods have been listed, so that one that is listed by an agent and has no object has
    lost it."""

    pods: Map[Pod] = field(default_factory=Map)
    others: Map[Other] = field(default_factory=Map)
    nodes: Map[Node] = field(default_factory=Map)
    seated: Map[str] = field(default_factory=Map)
    unsure: frozenset[str] = frozenset()
    ended: Map[tuple[str, int]] = field(default_factory=Map, compare=False)
    whole: bool = field(default=False, compare=False)

    def node(self, name: str) -> Node:
        """The node of this name; a bare one where nothing is known of it."""
        return self.nodes.get(name) or node_of(name, None, {})

    def seat(self, uid: str) -> Seat | None:
        """The pod's seat, wherever it is."""
        name = self.seated.get(uid)
        return self.node(name).seats.get(uid) if name is not None else None


EMPTY = Snapshot()


def pod_seen(snapshot: Snapshot, pod: Pod, now_ms: int = 0) -> Snapshot:
    """The pod is now as given. One that is not bound keeps the seat that was assumed for it: only a refusal,
    its binding elsewhere or its end takes that away; without such a seat it has the one that is reserved for
    it by ``now_ms``."""
    if snapshot.pods.get(pod.uid) == pod:
        return snapshot
    snapshot = replace(snapshot, pods=snapshot.pods.set(pod.uid, pod))
    seat = snapshot.seat(pod.uid)
    if not pod.node:
        if seat is not None and is_nameless(seat):
            snapshot = unseat(snapshot, pod.uid)  # it has an object after all
        return _reserved(snapshot, pod, now_ms)
    if not pod.holding:
        return unseat(snapshot, pod.uid)
    return _seated(snapshot, pod.node, seat_of(pod, pod.placement, "bound"))


def pod_gone(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    """The pod's object is gone, and was last as given. Where it held cards, it goes on doing so for its grace
    period, for so long the kubelet may go on running it, or as its node's agent tells (`lingering`)."""
    snapshot = pod_seen(snapshot, pod)
    snapshot = replace(snapshot, pods=snapshot.pods.without(pod.uid))
    if pod.holding:
        return vanish(snapshot, pod.uid, now_ms)
    return _ended(unseat(snapshot, pod.uid), pod, now_ms)


def pods_listed(snapshot: Snapshot, pods: Iterable[Pod], now_ms: int) -> Snapshot:
    """These pods exist, and no others. A seat that is only assumed outlives the list: it may be younger."""
    there = {pod.uid: pod for pod in pods}
    for gone in [pod for pod in snapshot.pods.values() if pod.uid not in there]:
        if gone.node:
            snapshot = pod_gone(snapshot, gone, now_ms)
        else:
            snapshot = replace(unreserve(snapshot, gone.uid), pods=snapshot.pods.without(gone.uid))
    for pod in there.values():
        snapshot = pod_seen(snapshot, pod, now_ms)
    snapshot = replace(snapshot, whole=True)
    for node in snapshot.nodes.values():
        snapshot = _by_agent(snapshot, node.name)
    return snapshot


def other_seen(snapshot: Snapshot, other: Other) -> Snapshot:
    """The pod, which asks for no GPU, is now as given."""
    known = snapshot.others.get(other.uid)
    if known == other:
        return snapshot
    if known is not None:
        snapshot = _less_cpu(snapshot, known)
    if other.cpu_milli == 0:
        return snapshot
    snapshot = replace(snapshot, others=snapshot.others.set(other.uid, other))
    return _with_node(snapshot, with_others(snapshot.node(other.node), other.cpu_milli))


def other_gone(snapshot: Snapshot, uid: str) -> Snapshot:
    """The pod, which asked for no GPU, takes nothing any more."""
    known = snapshot.others.get(uid)
    return snapshot if known is None else _less_cpu(snapshot, known)


def others_listed(snapshot: Snapshot, others: Iterable[Other]) -> Snapshot:
    """These pods without a request for GPUs exist, and no others."""
    there = {other.uid: other for other in others}
    for uid in [uid for uid, _ in snapshot.others.items() if uid not in there]:
        snapshot = other_gone(snapshot, uid)
    for other in there.values():
        snapshot = other_seen(snapshot, other)
    return snapshot


def node_seen(snapshot: Snapshot, facts: Facts) -> Snapshot:
    """The node is now as given."""
    return _by_agent(_with_node(snapshot, with_facts(snapshot.node(facts.name), facts)), facts.name)


def node_gone(snapshot: Snapshot, name: str) -> Snapshot:
    """The node's object is gone; pods that are bound to it stay on record."""
    return _by_agent(_with_node(snapshot, with_facts(snapshot.node(name), None)), name)


def nodes_listed(snapshot: Snapshot, nodes: Iterable[Facts]) -> Snapshot:
    """These nodes exist, and no others."""
    there = {facts.name: facts for facts in nodes}
    for gone in [node.name for node in snapshot.nodes.values() if node.facts and node.name not in there]:
        snapshot = node_gone(snapshot, gone)
    for facts in there.values():
        snapshot = node_seen(snapshot, facts)
    return snapshot


def assume(snapshot: Snapshot, pod: Pod, node: str, placement: Placement, ask_at_ms: int = 0) -> Snapshot:
    """The pod is about to be bound there: its cards are taken from now on, and from ``ask_at_ms`` on it is to
    be asked after."""
    return _seated(snapshot, node, replace(seat_of(pod, placement, "assumed"), until_ms=ask_at_ms))


def ask_after(snapshot: Snapshot, uid: str, at_ms: int) -> Snapshot:
    """The assumed pod is to be asked after from then on."""
    seat = snapshot.seat(uid)
    if seat is None or seat.held != "assumed":
        return snapshot
    return _seated(snapshot, snapshot.seated.get(uid) or "", replace(seat, until_ms=at_ms))


def forget(snapshot: Snapshot, uid: str, now_ms: int = 0) -> Snapshot:
    """The pod was definitely not bound: what was assumed for it is free, and what its object reserves for it
    by ``now_ms`` is held again. A seat that is more than assumed stays."""
    seat, pod = snapshot.seat(uid), snapshot.pods.get(uid)
    if seat is None or seat.held != "assumed":
        return snapshot
    snapshot = unseat(snapshot, uid)
    return snapshot if pod is None or pod.node else _reserved(snapshot, pod, now_ms)


def unreserve(snapshot: Snapshot, uid: str) -> Snapshot:
    """Nothing is held for the pod any more. A seat that is more than reserved stays."""
    seat = snapshot.seat(uid)
    return unseat(snapshot, uid) if seat is not None and seat.held == "reserved" else snapshot


def vanish(snapshot: Snapshot, uid: str, now_ms: int) -> Snapshot:
    """The pod's object is gone, and nothing tells that its containers have ended."""
    seat = snapshot.seat(uid)
    if seat is None or seat.held == "vanished":
        return snapshot
    if seat.held == "reserved":
        return unseat(snapshot, uid)
    name = snapshot.seated.get(uid) or ""
    facts = snapshot.node(name).facts
    gone = vanished(seat, now_ms + seat.grace_ms, facts.boot if facts is not None else "")
    return _followed(_seated(snapshot, name, gone), name, uid)


def expire(snapshot: Snapshot, now_ms: int, most_grace_ms: int = MOST_GRACE_MS) -> Snapshot:
    """Pods that vanished and whose grace period is over let go of their cards, but for those that an agent
    lists; those that nobody but an agent tells of do so ``most_grace_ms`` after they were first seen here;
    reservations end; and what ended long ago is forgotten."""
    for uid in snapshot.unsure:
        seat = snapshot.seat(uid)
        if seat is None or seat.held == "assumed":
            continue
        name, dated = snapshot.seated.get(uid) or "", lingering.dated(seat, now_ms, most_grace_ms)
        if not lingering.lasts(dated, now_ms):
            snapshot = unseat(snapshot, uid)
            if is_nameless(seat):
                snapshot = replace(snapshot, ended=snapshot.ended.set(uid, (name, now_ms)))
        elif dated is not seat:
            snapshot = _seated(snapshot, name, dated)
    for uid, (name, until_ms) in snapshot.ended.items():
        if until_ms <= now_ms and uid not in lingering.listed(snapshot.node(name)):
            snapshot = replace(snapshot, ended=snapshot.ended.without(uid))
    return snapshot


def unseat(snapshot: Snapshot, uid: str) -> Snapshot:
    """The pod holds no card any more."""
    name = snapshot.seated.get(uid)
    if name is None:
        return snapshot
    snapshot = replace(snapshot, seated=snapshot.seated.without(uid), unsure=snapshot.unsure - {uid})
    return _with_node(snapshot, without_seat(snapshot.node(name), uid))


def _by_agent(snapshot: Snapshot, name: str) -> Snapshot:
    """What the node's agent tells of vanished pods, and of pods that nobody else has told of."""
    for seat in [seat for seat in snapshot.node(name).seats.values() if seat.held == "vanished"]:
        snapshot = _followed(snapshot, name, seat.uid)
    if not snapshot.whole:
        return snapshot
    node = snapshot.node(name)
    for uid in lingering.listed(node):
        if uid not in snapshot.seated and uid not in snapshot.pods and uid not in snapshot.ended:
            boot = node.facts.boot if node.facts is not None else ""
            snapshot = _seated(snapshot, name, nameless(uid, boot))
    return snapshot


def _followed(snapshot: Snapshot, name: str, uid: str) -> Snapshot:
    node = snapshot.node(name)
    seat = lingering.followed(node.seats[uid], node.facts)
    return unseat(snapshot, uid) if seat is None else _seated(snapshot, name, seat)


def _ended(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    facts = snapshot.node(pod.node).facts if pod.node else None
    if facts is None or facts.present is None:
        return snapshot  # nobody lists it
    return replace(snapshot, ended=snapshot.ended.set(pod.uid, (pod.node, now_ms + ENDED_MS)))


def _reserved(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot:
    seat = snapshot.seat(pod.uid)
    if seat is not None and seat.held != "reserved":
        return snapshot
    if pod.reserved is None or not pod.reserved.lasts(now_ms):
        return unreserve(snapshot, pod.uid)
    return _seated(snapshot, pod.reserved.node, reserved(pod, pod.reserved))


def _seated(snapshot: Snapshot, name: str, seat: Seat) -> Snapshot:
    if snapshot.seated.get(seat.uid) not in (None, name):
        snapshot = unseat(snapshot, seat.uid)
    sure = seat.held == "bound"
    unsure = snapshot.unsure - {seat.uid} if sure else snapshot.unsure | {seat.uid}
    snapshot = replace(snapshot, seated=snapshot.seated.set(seat.uid, name), unsure=unsure)
    return _with_node(snapshot, with_seat(snapshot.node(name), seat))


def _less_cpu(snapshot: Snapshot, other: Other) -> Snapshot:
    snapshot = replace(snapshot, others=snapshot.others.without(other.uid))
    return _with_node(snapshot, with_others(snapshot.node(other.node), -other.cpu_milli))


def _with_node(snapshot: Snapshot, node: Node) -> Snapshot:
    if snapshot.nodes.get(node.name) is node:
        return snapshot
    if node.facts is None and not node.seats and not node.others_milli:
        return replace(snapshot, nodes=snapshot.nodes.without(node.name))
    return replace(snapshot, nodes=snapshot.nodes.set(node.name, node))
