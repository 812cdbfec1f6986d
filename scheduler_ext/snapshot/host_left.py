"""What a node has left beside its cards: CPU, memory and every other resource that kube-scheduler counts, and
which of them a pod lacks there.
"""

from collections.abc import Collection, Iterable, Iterator

from scheduler_ext.model.other_resources import PODS, exceed
from scheduler_ext.model.pod import CPUMember, NonGPUPod, Pod
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot

CPU = "cpu"
MANY = 1_000_000  # pods: more than any node takes

HostAmounts = tuple[tuple[str, int], ...]  # by resource, in thousandths of its unit


def host_amounts(pod: Pod | NonGPUPod | CPUMember) -> HostAmounts:
    """What kube-scheduler counts of the pod beside GPUs."""
    return ((CPU, pod.cpu_milli), *pod.others) if pod.cpu_milli else pod.others


def offered(pod: Pod, snapshot: Snapshot) -> Iterator[NodeInfo]:
    """The nodes with GPUs that kube-scheduler would offer the pod if enough were free there."""
    return (node for node in snapshot.nodes.values() if is_offered(pod, node))


def is_offered(pod: Pod, node: NodeInfo) -> bool:
    """Whether the node has GPUs, and kube-scheduler would offer it to the pod if enough were free there."""
    there = node.node_object
    if there is None or not there.has_gpus or exceed(pod.others, there.others):
        return False
    return pod.node_constraints.admit(node.name, there.node_labels)


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
    left = _left(node, waiting)
    for other in node.non_gpu.leaving:
        if other.uid in gone:
            _add(left, host_amounts(other))
    lacks = ((resource, amount - left.get(resource, 0)) for resource, amount in _limited(pod, node))
    return tuple((resource, lack) for resource, lack in lacks if lack > 0)


def host_takes(member: CPUMember, node: NodeInfo, waiting: Iterable[CPUMember] = ()) -> int:
    """How many such pods have their CPU, memory and other resources on the node, beside those that
    ``waiting`` has."""
    left = _left(node, waiting)
    counts = (left.get(resource, 0) // amount for resource, amount in _limited(member, node) if amount)
    return max(0, min(counts, default=MANY))


def _left(node: NodeInfo, waiting: Iterable[Pod | CPUMember]) -> dict[str, int]:
    """What the node has left of each resource; less than 0 where it is overcommitted."""
    if node.node_object is None:
        return {}
    left = dict(node.node_object.others)
    left[CPU] = node.cpu_left
    _add(left, node.non_gpu.others, -1)
    for allocation in node.allocations.values():
        _add(left, allocation.others, -1)
    for each in waiting:
        _add(left, host_amounts(each), -1)
    return left


def _limited(pod: Pod | CPUMember, node: NodeInfo) -> Iterator[tuple[str, int]]:
    """What it requests of that the node has a limit of."""
    there = dict(node.node_object.others) if node.node_object is not None else {}
    return ((name, amount) for name, amount in host_amounts(pod) if name != PODS or PODS in there)


def _add(total: dict[str, int], amounts: HostAmounts, sign: int = 1) -> None:
    for resource, amount in amounts:
        total[resource] = total.get(resource, 0) + sign * amount
