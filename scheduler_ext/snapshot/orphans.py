"""Orphaned pods: the object is gone, the containers may still run. How long their allocations last.

`core.ledger.hold` says how long such a pod holds its cards; the ledger charges by the same functions. One
thing is added: while nothing is known of the node, because it is silent or its agent's report cannot be read,
the cards stay taken, until the node speaks again or its object goes. A node that is not silent renewed its
Lease a minute ago at the latest, so a card is given out later than its charge ends.

A pod that only the agent reports (`node_info.unknown_orphan`) is found when the extender starts. The time of
its deletion is unknown, and the agent may be gone and its report stale. So the report expires for such a pod
after the longest grace period.
"""

from collections.abc import Collection
from dataclasses import replace

from scheduler_ext.model.node import Node
from scheduler_ext.snapshot.allocation import Allocation, is_unknown_orphan, orphaned
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import NodeSight

HEARD_MS = 60_000  # above kube-controller-manager's ``--node-monitor-grace-period``


def followed(allocation: Allocation, node_object: Node | None, now_ms: int) -> Allocation | None:
    """The allocation of an orphaned pod, by what its node says now; None if the pod is gone."""
    if allocation.gone is None:
        return allocation
    sight = node_object.sight if node_object is not None else NodeSight()
    is_heard = node_object is not None and node_object.ends_forced and not node_object.is_dark
    first_ms = (allocation.gone.first_ms or now_ms) if is_heard else None
    gone = hold.followed(replace(allocation.gone, first_ms=first_ms), allocation.uid, sight, now_ms)
    return orphaned(allocation, gone) if gone.left_ms is None else None


def lasts(allocation: Allocation, node_object: Node | None, now_ms: int) -> bool:
    """True until the clock ends an orphaned pod's allocation, or a reservation."""
    gone = allocation.gone
    if gone is None:
        return now_ms < allocation.until_ms
    is_dark = node_object is not None and node_object.is_dark
    if is_unknown_orphan(allocation):
        return (is_dark or gone.is_listed) and now_ms < gone.removed_ms + gone.grace_ms
    return is_dark or replace(gone, last_ms=now_ms - HEARD_MS).is_held(now_ms)


def listed(node: NodeInfo) -> Collection[str]:
    """The pods that the node agent reports."""
    node_object = node.node_object
    return (
        node_object.present.pods.keys() if node_object is not None and node_object.present is not None else ()
    )
