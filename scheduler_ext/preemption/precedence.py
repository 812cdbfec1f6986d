"""Rank: who may ask whom to leave. The one definition of it.

1. A **debtor** is a pod of a namespace that is over budget now and whose budget says ``reclaim``. It ranks
   below every pod of a namespace that is in budget now, whatever priority either was stamped with. A
   namespace that is back in budget has no debtors, whatever class its pods were given while it had none.
2. Otherwise the priority in the pod's spec decides alone: it is what kube-scheduler goes by. So it does
   wherever a namespace is UNLIMITED or UNKNOWN, and for one over budget whose budget says anything else:
   there the class that the webhook stamped is all that is done.

Strictly lower rank is needed; equals never leave for each other. A pod of a namespace over budget never has
anybody leave for it, nor has one whose priority class says so. Therefore no chain of pods that drive each
other out comes back to its beginning: along it the priority rises, until a debtor ends it.
"""

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings

Rank = tuple[int, int]


def is_debtor(pod: Pod, standings: NamespaceStandings) -> bool:
    """True for a pod of a namespace that is over budget and whose budget says ``reclaim``."""
    standing = standings.of(pod.namespace)
    return standing.over and standing.on_exhausted == "reclaim"


def rank_of(pod: Pod, standings: NamespaceStandings) -> Rank:
    """In which order pods are asked to leave, least first: debtors before the others, then by priority."""
    return 0 if is_debtor(pod, standings) else 1, pod.priority


def may_preempt(pod: Pod, standings: NamespaceStandings) -> bool:
    """True where others of lower rank may be asked to leave for the pod."""
    return pod.preempts and not standings.of(pod.namespace).over


def outranks(waiting: Pod, other: Pod, standings: NamespaceStandings) -> bool:
    """True where the other is of strictly lower rank, and so may be asked to leave for the waiting pod."""
    if not may_preempt(waiting, standings):
        return False
    return waiting.priority > other.priority or is_reclaim(waiting, other, standings)


def is_reclaim(waiting: Pod, other: Pod, standings: NamespaceStandings) -> bool:
    """True where it is the standing that puts the other below the waiting pod."""
    return is_debtor(other, standings) and standings.of(waiting.namespace).word == "IN_BUDGET"
