"""The one list of pods, as the watches show them."""

from collections import ChainMap
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from timekeeper.accounts.claims.claim_findings import ClaimingPods, claiming_pods
from timekeeper.accounts.pods import (
    NO_REQUEST,
    GangKey,
    LedgerPod,
    charged_pod,
    is_bare,
    metered_view,
)
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import RENEWED_MS, Vanished
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.tables import GroupTable, Table
from timekeeper.settler.cluster.claim_requests import ClaimRequests
from timekeeper.settler.cluster.known_nodes import KnownNodes, NodeLease
from timekeeper.settler.cluster.metered_namespaces import ALL_GOVERNED, MeteredNamespaces
from timekeeper.settler.cluster.pods_without_object import PodsWithoutObject

# Limits on memory while the database is unreachable.
MAX_DELETED = 100_000  # deleted pods whose end is not written yet
MAX_UNREADABLE = 10_000  # unreadable pods that are not reported yet
SIDECAR_PATIENCE_MS = 300_000  # after which new pods of the namespace get no sidecar
_RENEWALS_MS = 3 * RENEWED_MS  # after a pod's end they may still show that the clock had been set before it


@dataclass(frozen=True, slots=True)
class RecentEnd:
    """A pod whose end was learnt at ``at_ms``. ``leases_ms``: what the Leases of its node showed then and
    since (`hold.dated`): the clock may have been set after the last one before the end."""

    pod: LedgerPod
    at_ms: int
    leases_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeletedPod:
    """A pod whose object is gone."""

    pod: LedgerPod  # its last state
    at_ms: int  # when its removal was seen
    seen: bool  # False if it was deleted while no watch was running
    watermark_ms: int | None = None  # its node's watermark at that time


class WatchedPods(Table[str, LedgerPod]):
    """Each by its UID, in one row: as it is charged in its namespace, with how it uses claims, and as it was
    read where that is otherwise. One that uses claims stays until its removal is written. ``current_ms``:
    until when they are known to be complete."""

    def __init__(self, nodes: KnownNodes) -> None:
        super().__init__()
        self._nodes = nodes
        self.current_ms = 0
        self.metered: MeteredNamespaces = ALL_GOVERNED
        self.claim_requests = ClaimRequests()
        self._claiming: tuple[object, ClaimingPods] | None = None
        # by namespace the UIDs of those that are charged by their cards, and of those that use claims
        self.namespaces: GroupTable[str, str] = GroupTable()
        self.users: GroupTable[str, str] = GroupTable()
        self.gangs: GroupTable[GangKey, str] = GroupTable()  # of both that start together
        self.without_sidecar: GroupTable[str, str] = GroupTable()  # of those that wait for their sidecar
        self._indexes: tuple[tuple[GroupTable[Any, str], Callable[[LedgerPod], Any]], ...] = (
            (self.namespaces, lambda pod: pod.namespace if pod.charge == "cards" else None),
            (self.users, lambda pod: pod.namespace if pod.uses_claims else None),
            (self.without_sidecar, lambda pod: pod.namespace if pod.sidecar_waits else None),
            (self.gangs, lambda pod: pod.gang_key if pod.charge == "cards" or pod.uses_claims else None),
        )
        self.unknown: set[str] = set()  # UIDs of those whose charge is unknown
        self.preempted_gangs: set[GangKey] = set()  # of which a member was preempted
        # what changed since the last written tick
        self.changed: dict[str, int] = {}  # UID -> since when the pod waits for a tick
        # UIDs of those that changed while unbound, or became or ceased to be so
        self.without_node_changes: set[str] = set()
        self.gang_changes: set[GangKey] = set()
        self.short: set[str] = set()  # UIDs of those that wait for devices of claims since then
        # UID of a pod that has no node for another reason -> since when that is its reason
        self.obstructed: dict[str, int] = {}
        self.deleted: dict[str, DeletedPod] = {}  # UID -> pod whose end is not written yet
        # UID -> waiting pod whose removal is not written yet
        self.deleted_waiting: dict[str, DeletedPod] = {}
        self.most_deleted, self.deletions_dropped = MAX_DELETED, 0
        # when they were first listed anew since then: sessions without a pod lost theirs unobserved before
        self.relisted_ms: int | None = None
        self.listed: Set[str] = frozenset()  # UIDs of that list
        self.unreadable: dict[str, LedgerPod] = {}  # UID -> pod to report
        self.unreadable_omitted = 0  # number of those beyond `MAX_UNREADABLE`
        # their ends
        self.recent_ends: dict[str, dict[str, RecentEnd]] = {}  # by node and UID
        self.dated_again: dict[str, LedgerPod] = {}  # of these, by UID, until that is written
        self._ends_dropped_ms = 0  # when the older ones were last dropped
        # UID of an ended pod -> its node's watermark when the end was observed
        self.end_watermarks: dict[str, int | None] = {}
        self.without_object = PodsWithoutObject()  # what became of pods without an object

    def __setitem__(self, uid: str, pod: LedgerPod) -> None:
        self._index(uid, pod)
        super().__setitem__(uid, pod)

    def pop(self, uid: str, default: Any = None) -> Any:
        """As of any dictionary."""
        self._index(uid, None)
        return super().pop(uid, default)

    def _index(self, uid: str, pod: LedgerPod | None) -> None:
        before = self.get(uid)
        for index, key_of in self._indexes:
            was, now = before and key_of(before), pod and key_of(pod)
            if was != now and was is not None:
                index.leave(was, uid)
            if was != now and now is not None:
                index.add(now, uid)
        if pod is not None and pod.charge == "unknown":
            self.unknown.add(uid)
        else:
            self.unknown.discard(uid)

    def _users(self) -> Iterator[LedgerPod]:
        return (self[uid] for uids in self.users.values() for uid in uids)

    def lacking_sidecars(self, now_ms: int) -> Set[str]:
        """The namespaces of those that have waited for their sidecar for `SIDECAR_PATIENCE_MS`."""
        last_ms, waiting = now_ms - SIDECAR_PATIENCE_MS, self.without_sidecar.items()
        bound_ms = {name: min(self[uid].hold.bound_ms or now_ms for uid in uids) for name, uids in waiting}
        return {name for name, since_ms in bound_ms.items() if since_ms <= last_ms}

    def without_served(self, uid: str) -> LedgerPod | None:
        """The pod without what a claim serves; None: nothing of it is charged."""
        pod = self.get(uid)
        rest = pod.uses.rest if pod is not None else None
        return None if rest is None or rest.charge == "unknown" else self._view(rest)

    def uncharged_claims(self) -> ClaimingPods:
        """Those that hold what their claims alone give them: of metered namespaces, for elsewhere admission
        judges claims."""
        of = self.version, self.metered
        if self._claiming is None or self._claiming[0] != of:
            holding = (pod for pod in self._users() if pod.uses.is_holding)
            alone = (pod.namespace for pod in holding if _as_read(pod).charge != "cards")
            self._claiming = of, claiming_pods(filter(self.metered.meters, alone))
        return self._claiming[1]

    def follow(self, metered: MeteredNamespaces, at_ms: int) -> None:
        """Other namespaces are metered from now on, or other devices known: look at their pods anew. Pods
        that hold cards stay in the ledger until they end."""
        before, self.metered = self.metered, metered
        if metered == before:
            return
        for pod in [pod for pod in self.values() if metered.differs(before, pod.namespace)]:
            read = _as_read(pod)
            if read.charge != "unknown" and not read.is_charged_nothing and pod.uses.gone_ms is None:
                self._put_read(read, False, at_ms)
        for uid, gone in self.deleted.items():
            is_other = metered.differs(before, gone.pod.namespace)
            view = self._view(_as_read(gone.pod)) if is_other else None
            if view is not None:
                self.deleted[uid] = replace(gone, pod=_with_earlier(gone.pod, view))

    def judge_again(self, at_ms: int) -> None:
        """Look anew at the pods whose charge may be known by now: once in a tick, for each may have many, and
        many objects may have come."""
        for pod in self.claim_requests.take_due(self[uid] for uid in self.unknown):
            self._put_read(pod, False, at_ms)

    def may_change(self) -> Container[str]:
        """The UIDs of pods whose sessions may still change: they are there, or may be dated again."""
        recent: dict[str, Any] = {uid: end for ends in self.recent_ends.values() for uid, end in ends.items()}
        return ChainMap(recent, self)

    def see(self, pod: LedgerPod, deleted: bool, at_ms: int) -> None:
        """The pod as it is now, or its last state if it was deleted."""
        if pod.uses_claims:
            self._see_user(pod, at_ms)
        else:
            pod = self._with_report(pod, at_ms)
        self._put_read(pod, deleted, at_ms)

    def relist(self, pods: Collection[LedgerPod], at_ms: int) -> None:
        """The pods that exist."""
        there = {pod.uid for pod in pods if pod.charge != "none" or pod.metered is not None}
        all_uids = {pod.uid for pod in pods}
        self.listed = there | {pod.uid for pod in pods if pod.uses_claims}
        for pod in list(self.values()):
            if pod.charge == "cards" and pod.uid not in there:
                self._remove_pod(pod, at_ms, seen=False)
            elif pod.uid not in all_uids and pod.uses.gone_ms is None:
                self._remove_object(pod, at_ms, seen=False)
        for pod in pods:
            if pod.uses_claims:
                self._see_user(pod, at_ms)
            self._put_read(pod, False, at_ms)
        self.relisted_ms = at_ms if self.relisted_ms is None else self.relisted_ms

    def mark_written(
        self,
        deferred: Mapping[str, int],
        served: Iterable[str] = (),
        withheld: Set[str] = frozenset(),
    ) -> None:
        """As `ClusterState.mark_written`, before claims are."""
        for uid in served:
            self._serve(uid)
        changed = self.changed if withheld else ()  # nearly always none is kept
        kept = {uid for uid in changed if self[uid].namespace in withheld}
        gone = {uid for uid, deleted in self.deleted.items() if deleted.pod.namespace in withheld}
        self.changed = {uid: self.changed[uid] for uid in kept} | dict(deferred)
        self.end_watermarks = _only(self.end_watermarks, self.changed.keys() | gone)
        self.deleted = _only(self.deleted, gone)
        self.dated_again = {uid: pod for uid, pod in self.dated_again.items() if pod.namespace in withheld}
        self.deleted_waiting.clear()
        self.unreadable.clear()
        self.unreadable_omitted = 0
        self.short.clear()
        self.claim_requests.changed.clear()
        self.without_object.changed.clear()
        for pod in [pod for pod in self._users() if pod.uses.gone_ms is not None]:
            self.pop(pod.uid)
        if not withheld:
            self.relisted_ms, self.listed = None, frozenset()

    def _with_report(self, pod: LedgerPod, at_ms: int) -> LedgerPod:
        """The pod with the time of this event as the receipt of its end, and as the first report of it if
        nothing in its object dates it."""
        if not pod.hold.over or pod.is_charged_nothing or pod.charge == "unknown":
            return pod
        before, reported_ms = charged_pod(self, pod.uid), pod.hold.reported_ms
        is_first = before is None or not before.hold.over
        if before is not None and not is_first and before.hold.finishes == pod.hold.finishes:
            return pod
        if is_first and pod.ended_ms == 0 and reported_ms is None:
            reported_ms = at_ms
        return replace(pod, hold=replace(pod.hold, reported_ms=reported_ms, received_ms=at_ms))

    def _see_user(self, pod: LedgerPod, at_ms: int) -> None:
        before = self.get(pod.uid)
        self._follow_preemption(before, pod)
        if pod.uses.waits is not None and (before is None or before.uses.waits is None):
            self.short.add(pod.uid)
        if before is not None and before.charge == "cards" and before.can_be_bound:
            self.without_node_changes.add(pod.uid)  # of its claims others may be allocated
        if not _is_obstructed(pod):
            self.obstructed.pop(pod.uid, None)
        elif before is None or not _is_obstructed(before) or before.uses.obstacle != pod.uses.obstacle:
            self.obstructed[pod.uid] = at_ms

    def _serve(self, uid: str) -> None:
        """A claim serves the pod's extended resources from now on."""
        pod = self.get(uid)
        if pod is None or pod.uses.is_served:
            return
        is_charged, uses = pod.charge == "cards", replace(pod.uses, is_served=True)
        self[uid] = replace(pod, charge="claims" if is_charged else pod.charge, uses=uses)
        if is_charged:
            self._cease(pod)
            self._put_read(_as_read(pod), False, self.current_ms)

    def _cease(self, before: LedgerPod) -> None:
        """The pod waits for no tick and no cards any more."""
        self.changed.pop(before.uid, None)
        if before.gang_key is not None:
            self.gang_changes.add(before.gang_key)
        if before.can_be_bound:
            self.without_node_changes.add(before.uid)

    def _put_read(self, read: LedgerPod, deleted: bool, at_ms: int) -> None:
        """The pod as it is charged in its namespace: as admission wrote it, or as it is metered."""
        known = self.get(read.uid)
        if read.uses.hold is not None and known is not None and known.uses.gone_ms is None:
            read = replace(read, uses=replace(read.uses, hold=hold.later(known.uses.hold, read.uses.hold)))
        if read.uses.hold is not None and not deleted:
            self.without_object.remove(read.uid)  # it may live again
        if known is not None and known.uses.is_served:
            read = _served(read)
        before = charged_pod(self, read.uid)
        if read.charge == "unknown":
            judged = self.claim_requests.judged(read, before)
            if judged is None and not deleted:
                self.claim_requests.changed.add(read.uid)
            if judged is None and before is not None:
                judged = replace(_as_read(before), uses=read.uses)
            read = read if judged is None or (deleted and before is None) else judged
        view = self._view(read)
        if view is not None:
            self.unreadable.pop(read.uid, None)
            self._put_pod(view, deleted, at_ms)
            return
        if read.doubt and (read.uid in self.unreadable or len(self.unreadable) < MAX_UNREADABLE):
            self.unreadable[read.uid] = read
        elif read.doubt:
            self.unreadable_omitted += 1
        if before is not None:
            self._cease(before)
        if deleted:
            self._remove_object(read, at_ms, seen=True)
        else:
            self[read.uid] = replace(read, charge="none", as_read=read) if read.charge == "cards" else read

    def _view(self, read: LedgerPod) -> LedgerPod | None:
        """None: it holds nothing that is charged. A pod that was charged before is charged to its end."""
        # admission changes no static pod, so it is metered everywhere
        is_metered = read.is_static or self.metered.meters(read.namespace)
        if read.charge == "cards" and not is_metered:
            return read
        before = charged_pod(self, read.uid)
        if read.charge == "unknown" or (read.charge == "claims" and read.metered is None):
            return None
        if read.is_charged_nothing:
            return None if before is None else replace(before, uses=read.uses)
        view = metered_view(read, self.metered.models) if is_metered else None
        if view is None and before is None:  # after a restart the ledger has its session
            view = replace(read, is_metered=True, charge="cards") if read.requests_nothing else None
        elif view is None and before is not None and before.node:
            view = replace(before, hold=read.hold, others_ended=read.others_ended)
        if view is None or (read.charge == "cards" and is_bare(read)):
            return view
        return replace(view, uses=read.uses, as_read=read)

    def _dated(self, before: LedgerPod | None, pod: LedgerPod, at_ms: int) -> LedgerPod:
        """The pod with its start and its end by the API server's clock, as its node's Lease shows it now."""
        ahead_ms = self._nodes.clock_ahead_ms(pod.node)
        if ahead_ms and ahead_ms > 0 and pod.started_ms is not None:
            pod = replace(pod, started_ms=min(pod.started_ms, at_ms))
        if not pod.ended_ms or (before is not None and before.hold.finishes == pod.hold.finishes):
            return pod
        leases_ms = () if ahead_ms is None else (ahead_ms,)
        self.recent_ends.setdefault(pod.node, {})[pod.uid] = RecentEnd(pod, at_ms, leases_ms)
        self._drop_ends(at_ms)
        return replace(pod, hold=hold.dated(pod.hold, leases_ms))

    def _drop_ends(self, at_ms: int) -> None:
        """Once a minute: what is older than three renewals."""
        if 0 <= at_ms - self._ends_dropped_ms < 2 * _RENEWALS_MS:
            return
        for node, ends in list(self.recent_ends.items()):
            young = {uid: end for uid, end in ends.items() if 0 <= at_ms - end.at_ms <= _RENEWALS_MS}
            self.recent_ends[node] = young
            if not young:
                del self.recent_ends[node]
        self._ends_dropped_ms = at_ms

    def date_again(self, lease: NodeLease, at_ms: int) -> None:
        """The ends that were just learnt, now that the next Lease says how their node's clock went."""
        for uid, recent in self.recent_ends.get(lease.name, {}).items():
            is_recent = 0 <= at_ms - recent.at_ms <= _RENEWALS_MS
            if lease.ahead_ms is None or lease.ahead_ms in recent.leases_ms or not is_recent:
                continue
            leases_ms = (*recent.leases_ms, lease.ahead_ms)
            self.recent_ends[lease.name][uid] = replace(recent, leases_ms=leases_ms)
            before = hold.dated(recent.pod.hold, recent.leases_ms)
            now = hold.dated(recent.pod.hold, leases_ms)
            if now != before:
                self._put_end(replace(recent.pod, hold=now))

    def _put_end(self, pod: LedgerPod) -> None:
        """The end of this pod is dated otherwise, whether or not its object is still there."""
        self.dated_again[pod.uid] = pod
        known = charged_pod(self, pod.uid)
        if known is not None:
            later = replace(known.hold, ended_ms=pod.hold.ended_ms, doubt=pod.hold.doubt)
            self[pod.uid] = replace(known, hold=later)

    def _put_pod(self, pod: LedgerPod, deleted: bool, at_ms: int) -> None:
        before = charged_pod(self, pod.uid)
        pod = self._dated(before, _with_earlier(before, pod), at_ms)
        if pod.node and pod.ended_ms is not None and (before is None or before.ended_ms is None):
            self.end_watermarks.setdefault(pod.uid, self._nodes.alive_ms(pod.node, self.current_ms))
        self._follow_preemption(before, pod)
        if deleted:
            self._remove_pod(pod, at_ms, seen=True)
            return
        if pod == before:
            if pod.uses is not before.uses or pod.as_read is not before.as_read:
                self[pod.uid] = pod
            return
        self.changed.setdefault(pod.uid, at_ms)
        self[pod.uid] = pod
        if pod.gang_key is not None:
            self.gang_changes.add(pod.gang_key)
        if pod.can_be_bound or (before is not None and before.can_be_bound):
            self.without_node_changes.add(pod.uid)

    def _follow_preemption(self, before: LedgerPod | None, pod: LedgerPod) -> None:
        had_left = before is not None and before.membership.leaves_for_another
        if pod.gang_key is not None and pod.membership.leaves_for_another and not had_left:
            self.preempted_gangs.add(pod.gang_key)

    def _remove_object(self, pod: LedgerPod, at_ms: int, seen: bool) -> None:
        """Its object is gone."""
        self.obstructed.pop(pod.uid, None)
        last = pod.uses.hold
        if seen and pod.node and last is not None and not last.over:
            gone = hold.vanished(last, at_ms, at_ms, FOREVER_MS)
            self.without_object.add(pod.uid, pod.node, gone, at_ms)
        if pod.uses_claims:
            uses = replace(pod.uses, gone_ms=at_ms, is_holding=False)
            self[pod.uid] = replace(_as_read(pod), charge="claims", uses=uses)
        else:
            self.pop(pod.uid)

    def _remove_pod(self, pod: LedgerPod, at_ms: int, seen: bool) -> None:
        before = charged_pod(self, pod.uid)
        if before is not None:
            self._cease(before)
        self._remove_object(pod, at_ms, seen)
        if not pod.node:
            if len(self.deleted_waiting) < self.most_deleted:
                last_ms = at_ms if seen else self.current_ms
                self.deleted_waiting.setdefault(pod.uid, DeletedPod(pod, last_ms, seen))
            return
        known = self.deleted.get(pod.uid)
        if known is not None:  # the first report counts: a clock that was set back may date a later one
            self.deleted[pod.uid] = replace(known, pod=_with_earlier(known.pod, pod))
            return
        if len(self.deleted) >= self.most_deleted:
            self.deletions_dropped += 1
            self.end_watermarks.pop(pod.uid, None)
            return
        alive_ms = self._nodes.alive_ms(pod.node, self.current_ms)
        self.deleted[pod.uid] = DeletedPod(pod, at_ms, seen, alive_ms)
        if pod.ended_ms is None:
            self.without_object.add(pod.uid, pod.node, Vanished(at_ms, 0), at_ms)


def _as_read(pod: LedgerPod) -> LedgerPod:
    """The pod as its object says it."""
    return pod.as_read or (replace(pod, is_metered=False) if pod.is_metered else pod)


def _served(read: LedgerPod) -> LedgerPod:
    """The pod without the extended resources that a claim serves."""
    rest = read.uses.rest if read.uses.served_by else read
    if rest is None:
        rest = replace(read, request=NO_REQUEST, metered=None, charge="claims")
    return replace(rest, uses=replace(read.uses, part=rest.uses.part, is_served=True))


def _is_obstructed(pod: LedgerPod) -> bool:
    """Whether it was admitted, and something but a scheduling gate or its devices keeps it from a node."""
    is_free = pod.uses.obstacle != "" and pod.can_be_bound and not (pod.is_gated or pod.has_other_gate)
    return is_free and pod.is_governed and pod.uses.gone_ms is None


def _with_earlier(before: LedgerPod | None, pod: LedgerPod) -> LedgerPod:
    """The pod with what only earlier versions of its object said: a status forgets the first start after a
    few restarts, a second deletion overwrites the grace period of the first. A pod that had ended, or has
    another node, lives again after a restore of etcd: of that they say nothing."""
    if before is None or (before.hold.over and not pod.hold.over) or before.node not in ("", pod.node):
        return pod
    starts = [each for each in (before.started_ms, pod.started_ms) if each is not None]
    return replace(pod, started_ms=min(starts, default=None), hold=hold.later(before.hold, pod.hold))


Value = TypeVar("Value")


def _only(known: dict[str, Value], uids: Set[str]) -> dict[str, Value]:
    return {uid: each for uid, each in known.items() if uid in uids}
