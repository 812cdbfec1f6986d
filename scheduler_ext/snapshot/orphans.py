"""Orphaned pods: the object is gone, the containers may still run. How the node agent's report changes their
allocations (design: D3).

The agent's report takes precedence over the clock. A pod that it listed is gone once it lists it no longer,
and stays while it does, whatever its grace period. For a pod that it never listed, silence proves nothing:
the agent may have looked before the containers started, and written after the object was deleted. Such an
allocation lasts for the grace period, or until a report from another boot of the node.

A pod that only the agent reports (`node_info.unknown_orphan`) is found when the extender starts. The time of
its deletion is unknown, and the agent may be gone and its report stale. So the report expires for such a pod
after the longest grace period.
"""

from collections.abc import Collection
from dataclasses import replace

from scheduler_ext.model.node import Node
from scheduler_ext.snapshot.node_info import Allocation, NodeInfo, is_unknown_orphan


def followed(allocation: Allocation, node_object: Node | None) -> Allocation | None:
    """The allocation of an orphaned pod after this report; None if the pod is gone."""
    present = node_object.present if node_object is not None else None
    if node_object is not None and node_object.boot and not allocation.boot:
        allocation = replace(allocation, boot=node_object.boot)  # the first boot known after the deletion
    if node_object is None or present is None:
        return (
            replace(allocation, listed=False) if allocation.listed else allocation
        )  # without a report the clock alone counts
    if allocation.uid in present.pods:
        return allocation if allocation.listed else replace(allocation, listed=True)
    is_other_boot = bool(allocation.boot and node_object.boot) and allocation.boot != node_object.boot
    return None if present.known and (allocation.listed or is_other_boot) else allocation


def lasts(allocation: Allocation, now_ms: int) -> bool:
    """True until the clock ends an orphaned pod's allocation, or a reservation."""
    if is_unknown_orphan(allocation):
        return allocation.listed and now_ms < allocation.until_ms
    return allocation.listed or now_ms < allocation.until_ms


def dated(allocation: Allocation, now_ms: int, most_grace_ms: int) -> Allocation:
    """The allocation with its end, where it is that of an unknown orphan without one."""
    is_new = is_unknown_orphan(allocation) and not allocation.until_ms
    return replace(allocation, until_ms=now_ms + most_grace_ms) if is_new else allocation


def listed(node: NodeInfo) -> Collection[str]:
    """The pods that the node agent reports."""
    node_object = node.node_object
    return (
        node_object.present.pods.keys() if node_object is not None and node_object.present is not None else ()
    )
