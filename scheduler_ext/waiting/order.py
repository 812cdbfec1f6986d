"""Which waiting pod goes next when a card is freed. Pure.

kube-scheduler retries a pod that only the extender refused when some event tells it to, else after five
minutes. An event can reach kube-scheduler before the extender: then the pod is refused by an outdated
snapshot, and no event follows. So when a card is freed, the extender wakes the pod that goes next, and only
that one, by a condition on its status.
"""

from bisect import bisect_left, bisect_right, insort
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

QueueKey = tuple[bool, bool, int, int, int, int, str]
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
    namespaces that are not over budget now, whatever priority class was stamped; then higher priority now;
    then the order that its dialect's own priority gives; then the rank of the namespace's account; then
    age."""
    order = pod.request.order if pod.request is not None else 0
    held = pod.reserved is not None and pod.reserved.node == node
    standing = standings.of_pod(pod)
    priority = standings.priority_of(pod) if standing.over else pod.priority
    return not held, standing.over, -priority, -order, standing.rank, pod.asked_ms, pod.uid


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


class WaitingQueue:
    """Waiting pods by UID and by `queue_key` without reservations. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting_pods: dict[str, WaitingPod] = {}
        self._waiting_queue: dict[str, QueueKey] = {}
        self._order: list[QueueKey] = []
        self._standings = UNHEARD

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting_pods

    def get(self, uid: str) -> WaitingPod | None:
        """The waiting pod of this UID; None if it does not wait."""
        return self._waiting_pods.get(uid)

    def all(self) -> list[WaitingPod]:
        """In the order in which they came."""
        return list(self._waiting_pods.values())

    def put(self, waiting: WaitingPod) -> None:
        """Adds the pod, or replaces its value."""
        uid, its = waiting.pod.uid, queue_key(waiting.pod, ANYWHERE, self._standings)
        self._waiting_pods[uid] = waiting
        if self._waiting_queue.get(uid) != its:
            self._out_of_order(uid)
            self._waiting_queue[uid] = its
            insort(self._order, its)

    def discard(self, uids: Iterable[str]) -> None:
        """These pods wait no more."""
        for uid in uids:
            if self._waiting_pods.pop(uid, None) is not None:
                self._out_of_order(uid)

    def some(
        self,
        standings: NamespaceStandings,
        most: int,
        after: QueueKey | None = None,
        before: QueueKey | None = None,
    ) -> list[WaitingPod]:
        """At most ``most`` pods whose key is greater than ``after`` and less than ``before``, in order."""
        if standings is not self._standings:
            self._standings = standings
            self._waiting_queue = {
                uid: queue_key(each.pod, ANYWHERE, standings) for uid, each in self._waiting_pods.items()
            }
            self._order = sorted(self._waiting_queue.values())
        start = 0 if after is None else bisect_right(self._order, after)
        end = len(self._order) if before is None else bisect_left(self._order, before)
        return [self._waiting_pods[its[-1]] for its in self._order[start : min(end, start + most)]]

    def _out_of_order(self, uid: str) -> None:
        its = self._waiting_queue.pop(uid, None)
        if its is not None:
            del self._order[bisect_left(self._order, its)]
