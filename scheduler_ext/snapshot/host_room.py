"""What a node has left beside its cards: CPU, memory and every other resource that kube-scheduler counts, and
which of them a pod lacks there.
"""

from collections.abc import Collection, Iterable, Iterator

from scheduler_ext.model.other_resources import PODS, exceed
from scheduler_ext.model.pod import NonGPUPod, Pod
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot

CPU = "cpu"

HostAmounts = tuple[tuple[str, int], ...]  # by resource, in thousandths of its unit


def host_amounts(pod: Pod | NonGPUPod) -> HostAmounts:
    """What kube-scheduler counts of the pod beside GPUs."""
    return ((CPU, pod.cpu_milli), *pod.others) if pod.cpu_milli else pod.others


def offered(pod: Pod, snapshot: Snapshot) -> Iterator[NodeInfo]:
    """The nodes that kube-scheduler would offer the pod if it had room there."""
    for node in snapshot.nodes.values():
        there = node.node_object
        if there is None or exceed(pod.others, there.others):
            continue
        if pod.node_constraints.admit(node.name, there.node_labels):
            yield node


def host_lack(
    pod: Pod, node: NodeInfo, waiting: Iterable[Pod] = (), gone: Collection[str] = ()
) -> HostAmounts:
    """What must be given back on the node so that the pod has its CPU, memory and other resources there;
    empty where enough is left. ``waiting``: pods that go there first. ``gone``: UIDs of terminating pods
    without a GPU request that are counted as gone. As for kube-scheduler, the node may lack any amount of a
    resource that the pod does not request. A node that does not say how many pods it takes has no limit.
    """
    if node.node_object is None:
        return ()
    there = dict(node.node_object.others)
    there[CPU] = node.node_object.cpu_milli
    taken: dict[str, int] = dict(node.non_gpu.others)
    taken[CPU] = node.node_object.cpu_milli - node.cpu_left
    for allocation in node.allocations.values():
        _add(taken, allocation.others)
    for each in waiting:
        _add(taken, host_amounts(each))
    for other in node.non_gpu.leaving:
        if other.uid in gone:
            _add(taken, host_amounts(other), -1)
    lacks = (
        (resource, amount + taken.get(resource, 0) - there.get(resource, 0))
        for resource, amount in host_amounts(pod)
        if resource != PODS or PODS in there
    )
    return tuple((resource, lack) for resource, lack in lacks if lack > 0)


def _add(total: dict[str, int], amounts: HostAmounts, sign: int = 1) -> None:
    for resource, amount in amounts:
        total[resource] = total.get(resource, 0) + sign * amount
