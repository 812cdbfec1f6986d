"""What the extender finds wrong with nodes and with what holds them, for ``GET /v1/findings``."""

from collections.abc import Iterator

from scheduler_ext.model.node import Node
from scheduler_ext.model.node_remarks import PLUGINS
from scheduler_ext.reports.closed_nodes import why_closed
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.findings import RoleFinding, some_of
from timekeeper.core.kube.node_lock import NodeLock
from timekeeper.core.names import GPU_PERCENT
from timekeeper.core.request.runtime_plugins import OURS


def findings(snapshot: Snapshot, now_ms: int) -> Iterator[RoleFinding]:
    """All of them, in the order in which to mend them."""
    known = sorted(snapshot.nodes.values(), key=lambda info: info.name)
    there = [(info, info.node_object) for info in known if info.node_object is not None]
    with_gpus = [(info, node) for info, node in there if _has_gpus(info, node)]
    yield from _of_inventories(with_gpus)
    yield from _of_fractions([node for _, node in with_gpus])
    for info, _ in with_gpus:
        if info.closed:
            yield RoleFinding("closed-node", {"node": info.name, "why": why_closed(info)})
    for info, node in there:
        for holder, written_ms in node.remarks.locks:
            if NodeLock(written_ms).is_old(now_ms) and _waits(snapshot, info, holder):
                yield RoleFinding("locked-node", {"node": info.name, "pod": holder})
    yield from _of_rejections(snapshot, now_ms)


def _has_gpus(info: NodeInfo, node: Node) -> bool:
    said = node.remarks
    return bool(node.cards or said.has_inventory or said.has_capacity or _has_agent(info))


def _has_agent(info: NodeInfo) -> bool:
    """Whether a pod of the agent is there."""
    return bool(info.non_gpu.agents)


def _of_inventories(nodes: list[tuple[NodeInfo, Node]]) -> Iterator[RoleFinding]:
    if not nodes:
        yield RoleFinding("no-gpu-nodes", {})
        return
    bare = [info for info, node in nodes if not node.cards and not node.remarks.has_inventory]
    yield RoleFinding("inventories", {"described": len(nodes) - len(bare), "number": len(nodes)})
    yield from _named("no-agent", [info.name for info in bare if not _has_agent(info)])
    yield from _named("silent-agent", [info.name for info in bare if _has_agent(info)])
    by_agent = [info for info, node in nodes if OURS in node.runtime_plugins]
    yield from _named("agent-is-needed", [info.name for info in by_agent if not _has_agent(info)])
    yield from _named("no-validator", [info.name for info, node in nodes if node.remarks.is_unguarded])


def _of_fractions(nodes: list[Node]) -> Iterator[RoleFinding]:
    """Which nodes give out fractions, where some have NVIDIA's plugin; and nodes that are between both."""
    ours = [node.name for node in nodes if GPU_PERCENT in dict(node.allocatable)]
    of_nvidia = [node for node in nodes if node.family == NVIDIA.name]
    whole = [node.name for node in of_nvidia if PLUGINS in dict(node.allocatable)]
    if whole and ours:
        yield RoleFinding("fractions", {"number": len(ours), "whole": len(whole)})
    else:
        yield from _named("whole-cards", whole)
    for node in nodes:
        if node.remarks.change:
            yield RoleFinding("changing-node", {"node": node.name, "change": node.remarks.change})
        elif node.remarks.keeps_name and node.remarks.has_inventory:
            yield RoleFinding("left-over-name", {"node": node.name})


def _named(code: str, names: list[str]) -> Iterator[RoleFinding]:
    if names:
        yield RoleFinding(code, {"nodes": some_of(names), "node": names[0]})


def _waits(snapshot: Snapshot, info: NodeInfo, holder: str) -> bool:
    """Whether this pod, as ``namespace/name``, waits there for devices."""
    uids = [each.uid for each in info.allocations.values() if each.full_name == holder]
    return any(pod.waits_for_plugin for uid in uids if (pod := snapshot.pods.get(uid)) is not None)


def _of_rejections(snapshot: Snapshot, now_ms: int) -> Iterator[RoleFinding]:
    """Of kubelets that refuse pods for reasons of devices, so that other nodes come first."""
    for name, known in sorted(snapshot.rejections.items()):
        for namespace, demotion in sorted(known.demotions.items()):
            if demotion.until_ms > now_ms:
                whose = f"GPU pods of namespace {namespace}" if namespace else "GPU pods"
                texts = {"node": name, "whose": whose, "why": demotion.why}
                yield RoleFinding("demoted-node", {"until": demotion.until_ms, **texts})
