"""What people must know of a Node object, and placement does not need."""

import json
from typing import NamedTuple

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects import NodeFacts
from timekeeper.core.dialects.nvidia_parts import MIG, SHARED
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.kube.node_lock import locks_of
from timekeeper.core.request.inventory import gpu_amounts
from timekeeper.core.request.runtime_plugins import OURS

PLUGINS = "nvidia.com/gpu"


class NodeRemarks(NamedTuple):
    """``locks``: of those that name a pod, that pod and when they were written."""

    has_inventory: bool = False  # its agent has written one
    has_capacity: bool = False  # it advertises GPUs, free or not
    is_unguarded: bool = False  # its container runtime starts containers with cards while the agent is away
    change: str = ""  # what it is cordoned for: fractions or whole
    keeps_name: bool = False  # of NVIDIA's plugin, which is gone
    locks: tuple[tuple[str, int], ...] = ()


NO_REMARKS = NodeRemarks()


def read_remarks(raw: Json, facts: NodeFacts) -> NodeRemarks:
    """``facts``: what the node says of its cards. Never raises on what an API server can hold."""
    written = annotations_of(raw)
    found = ((lock.holder, lock.written_ms) for lock in locks_of(raw).values())
    return NodeRemarks(
        has_inventory=names.INVENTORY in written,
        has_capacity=any(accelerator_of(name) is None for name in facts.capacity),
        is_unguarded=_is_unguarded(str(written.get(names.INVENTORY, ""))),
        change=str(written.get(names.NODE_CHANGE, "")),
        keeps_name=_keeps_name(mapping(raw.get("status"))),
        locks=tuple(("/".join(holder), written_ms) for holder, written_ms in found if holder is not None),
    )


def _is_unguarded(inventory: str) -> bool:
    if '"nri"' not in inventory:
        return False
    try:
        nri = mapping(mapping(json.loads(inventory)).get("nri"))
    except (ValueError, RecursionError):
        return False
    plugins = nri.get("plugins")
    return isinstance(plugins, list) and OURS in plugins and nri.get("enforced") is False


def _keeps_name(status: Json) -> bool:
    """Whether nothing of NVIDIA's plugin is left but its name. Renamed replicas and instances leave 0 whole
    cards, too: then the plugin is there."""
    capacity, allocatable = mapping(status.get("capacity")), mapping(status.get("allocatable"))
    if PLUGINS not in capacity or PLUGINS in gpu_amounts(capacity):
        return False
    return not any(name.startswith((SHARED, MIG)) for name in gpu_amounts(allocatable or capacity))
