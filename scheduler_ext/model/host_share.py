"""What a pod requests of a node's CPU and memory, as the ledger charges it."""

from scheduler_ext.model.node import Node
from scheduler_ext.model.pod import Pod
from timekeeper.core.request.host import MEMORY, HostAmount, HostShare, models_of


def host_share(pod: Pod, node: Node) -> HostShare:
    """Of a pod that waits, on this node."""
    memory_milli, node_memory_milli = (dict(each.others).get(MEMORY, 0) for each in (pod, node))
    return HostShare(
        HostAmount(pod.cpu_milli, -(-memory_milli // 1000)),
        HostAmount(node.cpu_milli, node_memory_milli // 1000),
        models_of(node.cards),
    )
