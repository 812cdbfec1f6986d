"""Cards that are held for waiting pods, as allocations of their node."""

from dataclasses import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.node_info import Allocation, NodeInfo, allocation_of, without_pods
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
        host_mib=0,
    )


def as_found_by(uid: str, node: NodeInfo) -> NodeInfo:
    """The node as this pod finds it: a reservation of its own does not stand in its way, nor do later ones of
    cards that it reserves, for those were made for what others still hold of them."""
    return without_pods(node, {uid, *later_reservations(uid, node)})


def later_reservations(uid: str, node: NodeInfo) -> frozenset[str]:
    """UIDs of the pods whose reservations of the same cards began after this pod's; none if it has none.
    Later ones of other cards stay: others have left those for them."""
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
