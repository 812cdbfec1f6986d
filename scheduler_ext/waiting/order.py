"""Which waiting pod goes next when a card is freed. Pure.

kube-scheduler retries a pod that only the extender refused when some event tells it to, else after five
minutes. An event can reach kube-scheduler before the extender: then the pod is refused by an outdated
snapshot, and no event follows. So when a card is freed, the extender wakes the pod that goes next, and only
that one, by a condition on its status.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.drains import beside_drain
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.reservations import as_found_by
from timekeeper.core.values import GPURequest

MAX_NODES = 1_000

QueueKey = tuple[bool, bool, int, int, int, str]
ANYWHERE = ""  # in place of a node's name, for an order that ignores reservations
# The steps that the search for a pod may take: pods share them, for some requests take long to refuse
StepsOf = Callable[["WaitingPod"], Steps]


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that was refused, or that kube-scheduler has not tried yet."""

    pod: Pod
    policy: Policy
    offered: frozenset[str] | None  # the nodes that kube-scheduler offered last; None: too many, or unknown
    asked: bool = True  # False: kube-scheduler is known to have never asked about it
    preemptible: frozenset[str] = frozenset()  # the nodes of the last call of preempt, since that of filter
    refused_s: float = 0.0  # when every offered node refused it; monotonic, 0: unknown


def waiting_pod(pod: Pod, policy: Policy, offered: Iterable[str]) -> WaitingPod:
    """The pod as one that waits for any of the nodes offered."""
    nodes = frozenset(offered)
    return WaitingPod(pod, policy, nodes if len(nodes) <= MAX_NODES else None)


def next_to_wake(
    node: NodeInfo,
    waiting_pods: Iterable[WaitingPod],
    steps_of: StepsOf,
    standings: NamespaceStandings = UNHEARD,
    now_ms: int | None = None,
) -> WaitingPod | None:
    """The first by `queue_key` of the pods that wait for this node and now fit there."""
    in_turn = sorted(waiting_pods, key=lambda each: queue_key(each.pod, node.name, standings))
    return first_that_fits(node, in_turn, steps_of, now_ms)


def first_that_fits(
    node: NodeInfo, waiting_pods: Iterable[WaitingPod], steps_of: StepsOf, now_ms: int | None = None
) -> WaitingPod | None:
    """The first of the pods that wait for this node and now fit there. A pod for which no steps are left fits
    if its containers fit in their own order. ``now_ms``: for pods that may pass a drain; None: none may."""
    # by namespace, for each has steps of its own, and whether it may pass a drain
    refused: set[tuple[str, GPURequest | None, bool]] = set()
    for each in waiting_pods:
        there = node if now_ms is None else beside_drain(each.pod, node, now_ms)
        alike = each.pod.namespace, each.pod.request, there is node
        if not _accepts(each, node) or alike in refused:
            continue
        if _fits(each, there, steps_of(each)):
            return each
        if each.pod.uid not in node.allocations and each.pod.request is not None:
            refused.add(alike)
    return None


def queue_key(pod: Pod, node: str, standings: NamespaceStandings) -> QueueKey:
    """Sort key of a pod for one node. First the pod that the node's cards are held for; then pods of
    namespaces that are not over budget now, whatever priority class was stamped; then higher priority;
    then the order that its dialect's own priority gives; then age."""
    order = pod.request.order if pod.request is not None else 0
    held = pod.reserved is not None and pod.reserved.node == node
    return not held, standings.of_pod(pod).over, -pod.priority, -order, pod.asked_ms, pod.uid


def _accepts(each: WaitingPod, node: NodeInfo) -> bool:
    pod = each.pod
    if pod.reserved is not None and pod.reserved.node == node.name:
        return True
    if each.offered is not None:
        return node.name in each.offered
    return node.node_object is None or pod.node_constraints.admit(node.name, node.node_object.node_labels)


def _fits(each: WaitingPod, node: NodeInfo, steps: Steps) -> bool:
    others = as_found_by(each.pod.uid, node)
    request = each.pod.request
    return request is not None and not isinstance(fit(request, others, each.policy, steps), Refusal)
