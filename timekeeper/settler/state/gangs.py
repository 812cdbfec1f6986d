"""The gangs of which a member has no node, kept as their pods change."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.held.gangs import BrokenGang, WaitingGang, broken, gang_of_pods, is_unmarked
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.settler.cluster.cluster_state import ClusterState


@dataclass(slots=True)
class GangTable:
    """``waiting``: by key; a new object with each change. ``broken``: those of which a member was preempted,
    and that have too few left."""

    waiting: Mapping[str, WaitingGang] = field(default_factory=dict)
    broken: tuple[BrokenGang, ...] = ()
    _held: Mapping[str, HeldPod] = field(default_factory=dict)

    def update(self, cluster: ClusterState, held: Mapping[str, HeldPod], scheduler: str) -> None:
        """Follow the pods that have changed. ``held``: all pods behind the budget's gate, by UID;
        ``scheduler``: Bursar's, whose pods alone start together here."""
        self._follow_preempted(cluster)
        changed = set(cluster.pods.gang_changes)
        cluster.pods.gang_changes.clear()
        if held is not self._held:  # rates may have changed
            changed.update((each.namespace, each.gang.key) for each in self.waiting.values())
            self._held = held
        if not changed:
            return
        waiting = dict(self.waiting)
        for key in changed:
            pods = [pod for pod in _pods_of(key, cluster) if not pod.has_other_scheduler(scheduler)]
            it = gang_of_pods(key[0], pods, [held[pod.uid] for pod in pods if pod.uid in held])
            waiting.pop("/".join(key), None)
            if it is not None:
                waiting[it.key] = it
        self.waiting = waiting

    def _follow_preempted(self, cluster: ClusterState) -> None:
        """What goes on, or has ended, is no longer followed."""
        found: list[BrokenGang] = []
        for key in sorted(cluster.pods.preempted_gangs):
            pods = _members(key, cluster)
            it = broken(key[0], pods)
            if it is not None:
                found.append(it)
            elif not is_unmarked(pods):  # the mark of a start may come after the preemption
                cluster.pods.preempted_gangs.discard(key)
        self.broken = tuple(found)


def _pods_of(key: tuple[str, str], cluster: ClusterState) -> list[LedgerPod]:
    return [pod for pod in _members(key, cluster) if pod.charge == "cards"]


def _members(key: tuple[str, str], cluster: ClusterState) -> list[LedgerPod]:
    """Also those that hold devices of claims alone."""
    return [cluster.pods[uid] for uid in sorted(cluster.pods.gangs.get(key, ()))]
