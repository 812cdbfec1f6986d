"""Members of a gang without GPUs, such as a launcher: whether nodes have their CPU and memory beside those
with cards. Nothing is reserved for them, as kube-scheduler places them without asking. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler_ext.model.pod import CPUMember, Pod
from scheduler_ext.snapshot.host_left import host_takes
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.gangs import group_of_key


def cpu_members_of(pod: Pod, snapshot: Snapshot) -> list[CPUMember]:
    """Those of the pod's gang that have no node."""
    if pod.gang is None:
        return []
    whose = pod.namespace, group_of_key(pod.gang.key)
    return [each for _, each in snapshot.cpu_members.items() if (each.namespace, each.gang) == whose]


def unplaced(members: Iterable[CPUMember], nodes: Iterable[NodeInfo]) -> tuple[str, ...]:
    """Names of the members that no node takes beside the others. The largest go first, to nodes
    without cards before others."""
    left: list[str] = []
    there = sorted(
        (node for node in nodes if node.node_object is not None),
        key=lambda node: (bool(node.cards), node.name),
    )
    shapes: dict[object, list[CPUMember]] = {}
    for each in members:
        shapes.setdefault((each.cpu_milli, each.others, each.node_constraints), []).append(each)
    placed: dict[str, list[CPUMember]] = {}
    for alike in sorted(shapes.values(), key=lambda each: (-each[0].cpu_milli, each[0].name)):
        waiting = sorted(each.name for each in alike)
        for node in _accepting(alike[0], there):
            if not waiting:
                break
            count = min(len(waiting), host_takes(alike[0], node, placed.get(node.name, ())))
            placed.setdefault(node.name, []).extend(alike[:count])
            del waiting[:count]
        left += waiting
    return tuple(left)


def _accepting(member: CPUMember, nodes: Sequence[NodeInfo]) -> Iterator[NodeInfo]:
    for node in nodes:
        there = node.node_object
        if there is not None and member.node_constraints.admit(node.name, there.node_labels):
            yield node
