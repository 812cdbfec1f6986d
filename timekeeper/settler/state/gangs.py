"""The gangs of which a member has no node, kept as their pods change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from timekeeper import metrics
from timekeeper.accounts.held.gangs import (
    BrokenGang,
    WaitingGang,
    as_one_pod,
    broken,
    conflict_of,
    is_starting,
    late_milli,
    member_of,
)
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.gangs import MAX_SIZE
from timekeeper.settler.cluster.cluster_state import ClusterState

SIZES = ((8, "1-8"), (64, "9-64"), (512, "65-512"), (MAX_SIZE, "513-1024"))


def observe_start(size: int, waited_ms: int) -> None:
    """A gang of this number of pods has started. A label that another scheduler reads may say any number."""
    pods = next((name for most, name in SIZES if size <= most), SIZES[-1][1])
    metrics.GANG_STARTS.labels(pods).observe(waited_ms / 1000)


@dataclass(slots=True)
class GangTable:
    """``waiting``: by key; a new object with each change. ``broken``: those of which a member was preempted,
    and that have too few left. ``started`` is called for each gang that waited and has started: with its
    number of pods, and how many milliseconds after the creation of the first."""

    started: Callable[[int, int], object] = lambda _size, _waited_ms: None
    waiting: Mapping[str, WaitingGang] = field(default_factory=dict)
    broken: tuple[BrokenGang, ...] = ()
    _held: Mapping[str, HeldPod] = field(default_factory=dict)
    _whole: set[tuple[str, str]] = field(default_factory=set)  # gangs that had started

    def update(self, cluster: ClusterState, held: Mapping[str, HeldPod], now_ms: int, scheduler: str) -> None:
        """Follow the pods that have changed. ``held``: all pods behind the gate, by UID; ``scheduler``:
        Bursar's, which starts gangs of its own pods alone."""
        self._follow_preempted(cluster, now_ms)
        changed = set(cluster.gang_changes)
        cluster.gang_changes.clear()
        if held is not self._held:  # rates may have changed
            changed.update((each.namespace, each.gang.key) for each in self.waiting.values())
            self._held = held
        if not changed:
            return
        waiting = dict(self.waiting)
        for key in changed:
            it = self._gang(key, cluster, held, now_ms, scheduler)
            waiting.pop("/".join(key), None)
            if it is not None:
                waiting[it.key] = it
        self.waiting = waiting

    def _follow_preempted(self, cluster: ClusterState, now_ms: int) -> None:
        """What goes on, or has ended, is no longer followed."""
        found: list[BrokenGang] = []
        for key in sorted(cluster.preempted_gangs):
            pods = [*_pods_of(key, cluster), *_users_of(key, cluster)]
            it = broken(key[0], pods)
            if it is None:
                cluster.preempted_gangs.discard(key)
            elif key in self._whole or not is_starting(pods, now_ms):
                found.append(it)
        self.broken = tuple(found)

    def _gang(
        self,
        key: tuple[str, str],
        cluster: ClusterState,
        held: Mapping[str, HeldPod],
        now_ms: int,
        scheduler: str,
    ) -> WaitingGang | None:
        its = [pod for pod in _pods_of(key, cluster) if not pod.has_other_scheduler(scheduler)]
        found = [(member, pod.gang) for pod in its if (member := member_of(pod)) is not None and pod.gang]
        members = tuple(sorted((each for each, _ in found), key=lambda each: (each.created_ms, each.uid)))
        if not members:
            self._whole.discard(key)
            return None
        gang = max((each for _, each in found), key=lambda each: (each.size, each.minimum))
        bound = sum(each.is_bound for each in members)
        if not bound:
            self._whole.discard(key)  # its next start is whole or none
        if bound >= gang.minimum:
            if key not in self._whole and "/".join(key) in self.waiting:
                self.started(gang.size, max(0, now_ms - members[0].created_ms))
            self._whole.add(key)
            if bound == len(members):
                return None
        gated = [held[each.uid] for each in members if each.uid in held]
        rate_milli = 0 if bound else late_milli(gated, _followers_of(key, cluster))
        return WaitingGang(
            key[0],
            gang,
            members,
            as_one_pod(key[0], gang, gated, rate_milli),
            conflict_of(each for _, each in found),
            was_whole=key in self._whole,
        )


def _pods_of(key: tuple[str, str], cluster: ClusterState) -> list[LedgerPod]:
    return [pod for pod in _all_of(key, cluster) if pod.gang_key == key]


def _users_of(key: tuple[str, str], cluster: ClusterState) -> Iterator[LedgerPod]:
    """The gang's pods that hold devices of claims alone."""
    known = cluster.claims.pods
    there = [known[uid].pod for uid in sorted(cluster.claims.gangs.get(key, ())) if uid in known]
    return (pod for pod in there if pod.gang_key == key and pod.uid not in cluster.pods)


def _followers_of(key: tuple[str, str], cluster: ClusterState) -> Iterator[LedgerPod]:
    """The pods of the gang's name that are none of its members and stay."""
    found = (pod for pod in _all_of(key, cluster) if pod.gang is None and pod.group_key == key)
    return (pod for pod in found if pod.ended_ms is None and pod.hold.deletion_ms is None)


def _all_of(key: tuple[str, str], cluster: ClusterState) -> list[LedgerPod]:
    return [cluster.pods[uid] for uid in sorted(cluster.gangs.get(key, ())) if uid in cluster.pods]
