"""kube-scheduler's preempt verb: to kube-scheduler's victims, which free its totals, add those that free the
cards.

Of a gang that would not go on, all pods leave: the node is returned with those that are on it, and not at all
if one of them may not be preempted. An answer cannot name pods of other nodes, so these count as violated
PodDisruptionBudgets do: kube-scheduler takes other nodes first. The timekeeper evicts them afterwards.

kube-scheduler calls it when a node's totals are short, and has chosen its victims by totals alone. Its choice
stays: a node is returned with all of those victims and any others that the cards need, or not at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.victims import Choice, PreemptionContext, choose, may_leave, overstays
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """The victims on a node by UID, and how many of them violate a PodDisruptionBudget."""

    uids: tuple[str, ...]
    violations: int


def with_cards(
    waiting: Pod,
    offered: Mapping[str, NodeVictims],
    snapshot: Snapshot,
    context: PreemptionContext,
    policy: Policy,
) -> Iterator[tuple[str, NodeVictims | None]]:
    """For each candidate node all victims needed for the waiting pod's cards. None if no victims help, if
    kube-scheduler chose a pod that may not be preempted, or if no victim is needed (kube-scheduler treats
    that answer as an error).

    An unknown victim requests no GPU; it is kube-scheduler's choice.
    """
    for name, leaving in offered.items():
        given = [pod for uid in leaving.uids if (pod := context.pods.get(uid)) is not None]
        yield name, _on(waiting, name, leaving, given, snapshot, context, policy)


def _on(
    waiting: Pod,
    name: str,
    leaving: NodeVictims,
    given: list[Pod],
    snapshot: Snapshot,
    context: PreemptionContext,
    policy: Policy,
) -> NodeVictims | None:
    if context.is_capped(waiting, name):
        return None
    if not all(_may_be_asked(waiting, pod, name, snapshot, context) for pod in given):
        return None
    # kube-scheduler's victims, among them pods without GPUs, free the CPU, memory and other resources
    for_cards = replace(waiting, cpu_milli=0, others=())
    choice = choose(for_cards, snapshot.node(name), context, policy, given)
    if choice is None or _breaks_a_promise(waiting, choice):
        return None
    if any(pod.deleting for pod in choice.victims):
        return None  # kube-scheduler does not shorten a grace period; the preemptor does
    rest = context.leave_with([*given, *choice.victims])
    if not all(_may_be_asked(waiting, pod, pod.node, snapshot, context) for pod in rest):
        return None
    others = {pod.uid: pod for pod in (*choice.victims, *rest)}
    uids = (*leaving.uids, *(uid for uid, pod in others.items() if pod.node == name))
    elsewhere = sum(pod.node != name for pod in others.values())
    return NodeVictims(uids, leaving.violations + choice.violations + elsewhere) if uids else None


def _breaks_a_promise(waiting: Pod, choice: Choice) -> bool:
    """kube-scheduler deletes its victims at once and ignores PodDisruptionBudgets. For victims of lower
    priority that is Kubernetes' rule. A victim that only its standing ranks lower has been promised that its
    budget is honoured for a while, which only the preemptor can keep."""
    by_standing = any(victim.priority >= waiting.priority for victim in choice.victims)
    return by_standing and choice.violations > 0


def _may_be_asked(waiting: Pod, pod: Pod, name: str, snapshot: Snapshot, context: PreemptionContext) -> bool:
    if name not in (pod.node, snapshot.allocated_on.get(pod.uid)):
        return False
    return not overstays(pod, context.now_ms) and may_leave(waiting, pod, context)
