"""Cards that are held for waiting pods, as allocations of their node."""

from msgspec.structs import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.allocation import Allocation, allocation_of
from scheduler_ext.snapshot.drains import DRAINED
from scheduler_ext.snapshot.node_info import NodeInfo, without_pods
from timekeeper.core.ledger.reservation import Reservation


def reserved(pod: Pod, reservation: Reservation) -> Allocation:
    """The allocation of a waiting pod for which cards are held. kube-scheduler counts nothing of it."""
    allocation = allocation_of(pod, reservation.placement, "reserved")
    return replace(
        allocation,
        until_ms=reservation.until_ms,
        since_ms=reservation.since_ms,
        undecodable=False,
        amounts=(),
        cpu_milli=0,
        others=(),
    )


def as_found_by(uid: str, node: NodeInfo) -> NodeInfo:
    """The node as this pod finds it. The pod ignores its own reservation. It also ignores later reservations
    of the cards that it reserves, and a drain, which is later too: these count on what other pods still hold
    of the cards."""
    own = node.allocations.get(uid)
    drained = {f"{DRAINED}{node.name}"} if own is not None and own.is_kept else set()
    return without_pods(node, {uid, *drained, *later_reservations(uid, node)})


def began_before(uid: str, node: NodeInfo) -> tuple[str, ...]:
    """UIDs of the pods for which cards of the node were reserved before they were for this pod; all others'
    where it has none."""
    own = node.allocations.get(uid)
    began = (own.since_ms, own.uid) if own is not None and own.state == "reserved" else None
    return tuple(
        each.uid
        for each in node.allocations.values()
        if each.state == "reserved"
        and each.uid != uid
        and (began is None or (each.since_ms, each.uid) < began)
    )


def later_reservations(uid: str, node: NodeInfo) -> frozenset[str]:
    """UIDs of the pods whose reservations of the same cards began after this pod's; none if it has none.
    Later reservations of other cards are not among them: pods were evicted from those cards for them."""
    own = node.allocations.get(uid)
    if own is None or own.state != "reserved":
        return frozenset()
    began, cards = (own.since_ms, own.uid), {uuid for uuid, _ in own.uses}
    return frozenset(
        each.uid
        for each in node.allocations.values()
        if each.state == "reserved"
        and (each.since_ms, each.uid) > began
        and (own.unnamed or each.unnamed or any(uuid in cards for uuid, _ in each.uses))
    )
