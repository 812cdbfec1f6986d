"""Pods whose objects are gone and that may still be there: what becomes of their seats by what the node's
agent tells (design: D3).

The agent's word goes before the clock. A pod that it listed is gone when it lists it no longer, however much
of its grace period is left, and stays while it lists it, however long that is over. Of one that it never
listed its silence says nothing: it may have looked before the pod's containers began, and written after the
object went. So such a seat waits for its grace period, or for a look in another boot of the node.

A pod that nobody but an agent tells of (`nodes.unknown_orphan`) was found at a start of ours. When its object
went nobody knows, and the agent may be gone too, with its word left behind. So that word has an age here: the
kubelet ends a pod without an object within its grace period, and none is longer than the longest.
"""

from collections.abc import Collection
from dataclasses import replace

from scheduler_ext.model.node import Node
from scheduler_ext.snapshot.node_info import Allocation, NodeInfo, is_unknown_orphan


def followed(allocation: Allocation, node_object: Node | None) -> Allocation | None:
    """The seat of a vanished pod by what is told of its node now; None where the pod is there no longer."""
    present = node_object.present if node_object is not None else None
    if node_object is not None and node_object.boot and not allocation.boot:
        allocation = replace(allocation, boot=node_object.boot)  # the first that is told of after it vanished
    if node_object is None or present is None:
        return (
            replace(allocation, listed=False) if allocation.listed else allocation
        )  # nobody tells: the clock alone counts
    if allocation.uid in present.pods:
        return allocation if allocation.listed else replace(allocation, listed=True)
    is_other_boot = bool(allocation.boot and node_object.boot) and allocation.boot != node_object.boot
    return None if present.known and (allocation.listed or is_other_boot) else allocation


def lasts(allocation: Allocation, now_ms: int) -> bool:
    """True while a vanished pod's seat, or one that is reserved, is not to be let go by the clock."""
    if is_unknown_orphan(allocation):
        return allocation.listed and now_ms < allocation.until_ms
    return allocation.listed or now_ms < allocation.until_ms


def dated(allocation: Allocation, now_ms: int, most_grace_ms: int) -> Allocation:
    """The seat with its end, where it is that of a nameless pod and has none yet."""
    is_new = is_unknown_orphan(allocation) and not allocation.until_ms
    return replace(allocation, until_ms=now_ms + most_grace_ms) if is_new else allocation


def listed(node: NodeInfo) -> Collection[str]:
    """The pods that the node's agent tells to be there."""
    node_object = node.node_object
    return (
        node_object.present.pods.keys() if node_object is not None and node_object.present is not None else ()
    )
