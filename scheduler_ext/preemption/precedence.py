"""Rank: which pods may be evicted for which. The only definition of it.

1. A **debtor** is a governed pod of a namespace that is over budget now and whose budget says ``reclaim``.
   It ranks below every pod of a namespace that is in budget now, whatever priority either was stamped with. A
   namespace that is back in budget has no debtors, whatever class its pods were given before. A pod that its
   budget protects is no debtor. A pod that the timekeeper has marked as idle is one.
2. Otherwise the priority in the pod's spec alone decides, as for kube-scheduler. That holds for namespaces
   that are UNLIMITED or UNKNOWN, and for one over budget whose budget says anything else: there the class
   that the webhook stamped is the whole effect. But a pod that was created in budget and got its cards over
   it, as behind a gate of its own, has while its namespace is over at most the priority of pods over budget.

Only strictly lower rank is evicted; equals never are. No pod is evicted for a pod of a namespace over budget,
nor for one whose priority class forbids preemption. So no chain of evictions returns to its start: priority
rises along it until a debtor ends it.
"""

from collections.abc import Iterable

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings

Rank = tuple[int, int, int]


def owes(standing: NamespaceStanding) -> bool:
    """True if the pods of a namespace with this standing are debtors."""
    return standing.over and standing.on_exhausted == "reclaim"


def is_debtor(pod: Pod, standings: NamespaceStandings) -> bool:
    """True for a governed pod of a namespace that is over budget and whose budget says ``reclaim``, unless it
    protects the pod; and for an idle pod. A pod that admission did not govern was created without
    enforcement."""
    return pod.is_idle or (pod.governed and owes(standings.of_pod(pod)))


def rank_of(pod: Pod, standings: NamespaceStandings) -> Rank:
    """Sort key of victims, least first: debtors before others, then by priority; then those whose account
    would go last among waiting ones."""
    tier = 0 if is_debtor(pod, standings) else 1
    return tier, standings.priority_of(pod), -standings.of(pod.namespace).rank


def set_key(ranks: Iterable[Rank]) -> tuple[list[tuple[int, int]], list[int]]:
    """Sort key of sets of victims of one size: all priorities, the highest first, then the accounts."""
    known = sorted(ranks, reverse=True)
    return [rank[:2] for rank in known], sorted((rank[2] for rank in known), reverse=True)


def may_preempt(pod: Pod, standings: NamespaceStandings) -> bool:
    """True if pods of lower rank may be evicted for this pod."""
    return pod.preempts and not standings.of(pod.namespace).over


def outranks(waiting: Pod, other: Pod, standings: NamespaceStandings) -> bool:
    """True if the other pod is of strictly lower rank and may be evicted for the waiting one. A static pod
    may not: its kubelet runs on with it."""
    if other.is_static or not may_preempt(waiting, standings):
        return False
    return waiting.priority > standings.priority_of(other) or is_reclaim(waiting, other, standings)


def is_reclaim(waiting: Pod, other: Pod, standings: NamespaceStandings) -> bool:
    """True if the other pod ranks lower because of the standings."""
    return is_debtor(other, standings) and standings.of(waiting.namespace).status == "IN_BUDGET"
