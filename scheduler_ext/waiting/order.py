"""Who waits for a card, and which of them should go next: the pure part of waking.

kube-scheduler tries a pod that only the extender refused again when some event tells it to, and else after
five minutes. An event may reach it before the same event has reached us: then the pod is refused once more
by what is no longer true, and nothing tells kube-scheduler when it has become so. So when a card frees, the
pod that should go next is woken by a condition on its status, and no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.node_info import NodeInfo, without_pod
from timekeeper.core.values import GPURequest

MOST_NODES = 1_000

QueueKey = tuple[bool, bool, int, int, str]
ANYWHERE = ""  # no node's name: where no cards are held for anybody


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits, by which policy, and the nodes that kube-scheduler had offered when we refused it;
    None where these were too many to remember, or we were not asked. ``asked``: False where we know that
    kube-scheduler has never asked us."""

    pod: Pod
    policy: Policy
    offered: frozenset[str] | None
    asked: bool = True


def waiting_pod(pod: Pod, policy: Policy, offered: Iterable[str]) -> WaitingPod:
    """The pod as one that waits for any of the nodes offered."""
    nodes = frozenset(offered)
    return WaitingPod(pod, policy, nodes if len(nodes) <= MOST_NODES else None)


def next_to_wake(
    node: NodeInfo, waiting_pods: Iterable[WaitingPod], standings: NamespaceStandings = UNHEARD
) -> WaitingPod | None:
    """Of those that wait for this node and now fit there, the one whose turn it is (`queue_key`)."""
    return first_that_fits(
        node, sorted(waiting_pods, key=lambda each: queue_key(each.pod, node.name, standings))
    )


def first_that_fits(node: NodeInfo, waiting_pods: Iterable[WaitingPod]) -> WaitingPod | None:
    """Of those that wait for this node and now fit there, the first."""
    without_room: set[GPURequest] = set()
    for each in waiting_pods:
        if not _asks_for(each, node) or each.pod.request in without_room:
            continue
        if _fits(each, node):
            return each
        if each.pod.uid not in node.allocations and each.pod.request is not None:
            without_room.add(each.pod.request)
    return None


def queue_key(pod: Pod, node: str, standings: NamespaceStandings) -> QueueKey:
    """When it is the pod's turn on that node, least first: one that its cards are held for there; those of
    namespaces that are not over budget, as these stand now and whatever class a pod was stamped with; then
    the higher priority; then the older."""
    held = pod.reserved is not None and pod.reserved.node == node
    return not held, standings.of(pod.namespace).over, -pod.priority, pod.asked_ms, pod.uid


def _asks_for(each: WaitingPod, node: NodeInfo) -> bool:
    pod = each.pod
    if pod.reserved is not None and pod.reserved.node == node.name:
        return True
    if each.offered is not None:
        return node.name in each.offered
    return node.node_object is None or pod.node_constraints.admit(node.name, node.node_object.node_labels)


def _fits(each: WaitingPod, node: NodeInfo) -> bool:
    free = without_pod(node, each.pod.uid)  # what is held for a pod is not in its own way
    request = each.pod.request
    return request is not None and not isinstance(fit(request, free, each.policy), Refusal)
