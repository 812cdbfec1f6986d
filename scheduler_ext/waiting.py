"""Who waits for a card, and which of them should go next: the pure part of waking.

kube-scheduler tries a pod that only the extender refused again when some event tells it to, and else after
five minutes. An event may reach it before the same event has reached us: then the pod is refused once more
by what is no longer true, and nothing tells kube-scheduler when it has become so. So when a card frees, the
pod that should go next is woken by a condition on its status, and no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_ext.fit import fit
from scheduler_ext.nodes import Node
from scheduler_ext.pods import Pod
from scheduler_ext.policy import Policy
from scheduler_ext.refusal import Refusal

MOST_NODES = 1_000


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod that was refused, by which policy, and the nodes that kube-scheduler had offered; None where they
    were too many to remember."""

    pod: Pod
    policy: Policy
    offered: frozenset[str] | None


def waiter(pod: Pod, policy: Policy, offered: Iterable[str]) -> Waiter:
    """The pod as one that waits for any of the nodes offered."""
    nodes = frozenset(offered)
    return Waiter(pod, policy, nodes if len(nodes) <= MOST_NODES else None)


def next_to_wake(node: Node, waiters: Iterable[Waiter]) -> Waiter | None:
    """Of those that wait for this node and now fit there, the one of the highest priority, then the
    oldest."""
    for each in sorted(waiters, key=_turn):
        if each.offered is not None and node.name not in each.offered:
            continue
        if each.pod.request is not None and not isinstance(fit(each.pod.request, node, each.policy), Refusal):
            return each
    return None


def _turn(each: Waiter) -> tuple[int, int, str]:
    return -each.pod.priority, each.pod.asked_ms, each.pod.uid
