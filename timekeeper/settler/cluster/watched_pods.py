"""The one list of pods, as the watches show them."""

from collections import ChainMap
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from timekeeper.accounts.claims.claim_findings import NO_PODS, ClaimingPods, claiming_pods
from timekeeper.accounts.claims.consumers import ClaimPod
from timekeeper.accounts.pods import GangKey, LedgerPod, UnjudgedPod, UnreadablePod, is_bare, metered_view
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import Vanished
from timekeeper.core.tables import GroupTable, Table
from timekeeper.settler.cluster.device_claims import DeviceClaims
from timekeeper.settler.cluster.known_nodes import RENEWED_MS, KnownNodes, NodeLease
from timekeeper.settler.cluster.metered_namespaces import ALL_GOVERNED, MeteredNamespaces
from timekeeper.settler.cluster.pods_without_object import PodsWithoutObject
from timekeeper.settler.cluster.pods_without_request import PodsWithoutRequest

# Limits on memory while the database is unreachable.
MAX_DELETED = 100_000  # deleted pods whose end is not written yet
MAX_UNREADABLE = 10_000  # unreadable pods that are not reported yet
_RENEWALS_MS = 3 * RENEWED_MS  # after a pod's end they may still show that the clock had been set before it

PodItem = LedgerPod | UnreadablePod | UnjudgedPod


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod that uses claims. ``read``: as any pod; ``rest``: without the extended resources that a claim
    serves; None: nothing of it concerns the ledger."""

    pod: ClaimPod
    read: PodItem | None
    rest: PodItem | None


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
    read: LedgerPod | UnreadablePod | None = None  # as `WatchedPods.as_read` had it


class WatchedPods(Table[str, LedgerPod]):
    """Each by its UID as it counts: as admission wrote it, or as it is metered, without what a claim serves.
    ``current_ms``: until when they are known to be complete."""

    def __init__(self, nodes: KnownNodes, claims: DeviceClaims) -> None:
        super().__init__()
        self._nodes, self._claims = nodes, claims
        self.current_ms = 0
        self.metered: MeteredNamespaces = ALL_GOVERNED
        # what else is known of a pod, by its UID
        # as read, where it counts otherwise, or would if it were metered
        self.as_read: dict[str, LedgerPod | UnreadablePod] = {}
        # without the extended resources that a claim serves
        self.rest: dict[str, LedgerPod | UnreadablePod] = {}
        self.without_request = PodsWithoutRequest()  # those whose claims are not known yet
        # namespace of one that holds what its resource claims alone give it
        self.claiming: dict[str, str] = {}
        self._claiming: ClaimingPods | None = None  # of them; None: to be counted anew
        # what they have in common
        self.without_node: set[str] = set()  # UIDs of those that wait for a node
        self.gangs: GroupTable[GangKey, str] = GroupTable()  # the UIDs of those that start together
        self.preempted_gangs: set[GangKey] = set()  # of which a member was preempted
        self.namespaces: GroupTable[str, str] = GroupTable()  # namespace -> UIDs of its pods
        # what changed since the last written tick
        self.changed: dict[str, int] = {}  # UID -> since when the pod waits for a tick
        # UIDs of those that changed while unbound, or became or ceased to be so
        self.without_node_changes: set[str] = set()
        self.gang_changes: set[GangKey] = set()
        self.deleted: dict[str, DeletedPod] = {}  # UID -> pod whose end is not written yet
        self.deleted_waiting: dict[
            str, DeletedPod
        ] = {}  # UID -> waiting pod whose removal is not written yet
        self.most_deleted, self.deletions_dropped = MAX_DELETED, 0
        self.is_relisted = False  # they were listed anew: sessions without a pod lost theirs unobserved
        self.listed: Set[str] = frozenset()  # UIDs of that list
        self.unreadable: dict[str, UnreadablePod] = {}  # UID -> pod to report
        self.unreadable_omitted = 0  # number of those beyond `MAX_UNREADABLE`
        # their ends
        self.recent_ends: dict[str, dict[str, RecentEnd]] = {}  # by node and UID
        self.dated_again: dict[str, LedgerPod] = {}  # of these, by UID, until that is written
        self._ends_dropped_ms = 0  # when the older ones were last dropped
        # UID of an ended pod -> its node's watermark when the end was observed
        self.end_watermarks: dict[str, int | None] = {}
        self.without_object = PodsWithoutObject()  # what became of pods without an object

    def without_served(self, uid: str) -> LedgerPod | None:
        """The pod without what a claim serves; None: nothing of it is charged."""
        rest = self.rest.get(uid)
        return None if rest is None else self._view(rest)

    def uncharged_claims(self) -> ClaimingPods:
        """Those pods that hold what nothing charges, because claims are not followed: of metered namespaces,
        for elsewhere admission judges claims."""
        if self._claims.is_followed:
            return NO_PODS
        if self._claiming is None:
            self._claiming = claiming_pods(filter(self.metered.meters, self.claiming.values()))
        return self._claiming

    def follow(self, metered: MeteredNamespaces, at_ms: int) -> None:
        """Other namespaces are metered from now on, or other devices known: look at their pods anew. Pods
        that hold cards stay in the ledger until they end."""
        before, self.metered = self.metered, metered
        if metered == before:
            return
        self._claiming = None
        others = (pod for uid, pod in self.items() if uid not in self.as_read)
        changed = [*(replace(pod, is_metered=False) for pod in others), *self.as_read.values()]
        for each in changed:
            if metered.differs(before, each.namespace):
                self._put_read(each, False, at_ms)
        for uid, gone in self.deleted.items():
            read = gone.read or replace(gone.pod, is_metered=False)
            view = self._view(read) if metered.differs(before, read.namespace) else None
            if view is not None:
                self.deleted[uid] = replace(gone, pod=_with_earlier(gone.pod, view))

    def judge_again(self, at_ms: int) -> None:
        """Look anew at the pods that are not judged and may be by now: once in a tick, for each may have
        many, and many objects may have come."""
        for item in self.without_request.take_due(self.keys()):
            self._put_without_request(item, False, at_ms)

    def may_change(self) -> Container[str]:
        """The UIDs of pods whose sessions may still change: they are there, or may be dated again."""
        recent: dict[str, Any] = {uid: end for ends in self.recent_ends.values() for uid, end in ends.items()}
        return ChainMap(recent, self)

    def see(self, item: PodItem | PodWithClaims, deleted: bool, at_ms: int) -> None:
        """The pod as it is now, or its last state if it was deleted."""
        if not isinstance(item, PodWithClaims):
            self._claims.waits_no_more(item.pod.uid if isinstance(item, UnjudgedPod) else item.uid)
            self._put_counted(self._with_report(item, at_ms), deleted, at_ms)
            return
        self._see_using(item, deleted, at_ms)
        counted = self._counted(item)
        if counted is not None:
            self._put_counted(counted, deleted, at_ms)
        else:
            self.without_request.pods.pop(item.pod.uid, None)
            self._forget_pod(item.pod.uid)

    def relist(self, all_items: tuple[object, ...], at_ms: int) -> None:
        """The pods that exist."""
        using = {item.pod.uid: item for item in all_items if isinstance(item, PodWithClaims)}
        self._claims.relist_pods(using.keys(), at_ms)
        for each in using.values():
            self._see_using(each, deleted=False, at_ms=at_ms)
        of_those = (self._counted(each) for each in using.values())
        others = (item for item in all_items if isinstance(item, PodItem))
        items = (*others, *(item for item in of_those if item is not None))
        there = {item.uid for item in items if isinstance(item, LedgerPod)}
        there |= {item.pod.uid for item in items if isinstance(item, UnjudgedPod)}
        there |= {item.uid for item in items if isinstance(item, UnreadablePod) and item.pod is not None}
        bound = {item.uid for item in items if isinstance(item, UnreadablePod) and item.is_allocated}
        for uid in bound - there:  # it waited, and its claims are charged from now on
            self._forget_pod(uid)
        self.listed = there | bound | using.keys()
        for uid in [uid for uid in self if uid not in there]:
            self._remove_pod(self[uid], at_ms, seen=False)
        self.as_read = _only(self.as_read, there)
        self.claiming.clear()
        self.without_request.pods.clear()
        self._claiming = None
        for item in items:
            self._put_counted(item, deleted=False, at_ms=at_ms)
        self.is_relisted = True

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
        self.without_request.changed.clear()
        self.without_object.changed.clear()
        if not withheld:
            self.is_relisted, self.listed = False, frozenset()

    def _with_report(self, item: PodItem, at_ms: int) -> PodItem:
        """The pod with the time of this event as the receipt of its end, and as the first report of it if
        nothing in its object dates it."""
        if isinstance(item, UnreadablePod) and item.pod is not None:
            reported = self._with_report(item.pod, at_ms)
            return replace(item, pod=reported) if isinstance(reported, LedgerPod) else item
        if not isinstance(item, LedgerPod) or not item.hold.over:
            return item
        before, reported_ms = self.get(item.uid), item.hold.reported_ms
        is_first = before is None or not before.hold.over
        if before is not None and not is_first and before.hold.finishes == item.hold.finishes:
            return item
        if is_first and item.ended_ms == 0 and reported_ms is None:
            reported_ms = at_ms
        return replace(item, hold=replace(item.hold, reported_ms=reported_ms, received_ms=at_ms))

    def _put_without_request(self, item: UnjudgedPod, deleted: bool, at_ms: int) -> None:
        """A pod of which it is not known yet what it asks for holds nothing, and is not released."""
        uid = item.pod.uid
        before = self.get(uid)
        if deleted:
            self.without_request.pods.pop(uid, None)
        else:
            self.without_request.pods[uid] = item
        pod = self.without_request.judged(item, before)
        if pod is None and not deleted:
            self.without_request.changed.add(uid)
        elif pod is not None and (before is not None or not deleted):
            self._put_read(pod, deleted, at_ms)

    def _put_counted(self, item: PodItem, deleted: bool, at_ms: int) -> None:
        if isinstance(item, UnjudgedPod):
            self._put_without_request(item, deleted, at_ms)
            return
        self.without_request.pods.pop(item.uid, None)
        self._put_read(item, deleted, at_ms)

    def _see_using(self, item: PodWithClaims, deleted: bool, at_ms: int) -> None:
        known = self._claims.users.get(item.pod.uid)
        self._follow_preemption(known.pod if known is not None else None, item.pod.pod)
        self._claims.see_pod(item.pod, deleted, at_ms)
        if item.pod.uid in self.without_node:
            self.without_node_changes.add(item.pod.uid)  # of its claims others may be allocated
        if item.rest is None or isinstance(item.rest, UnjudgedPod) or not item.pod.served_by:
            self.rest.pop(item.pod.uid, None)
        else:
            self.rest[item.pod.uid] = item.rest

    def _counted(self, item: PodWithClaims) -> PodItem | None:
        """What of the pod counts: all, until a claim serves some of it."""
        return item.rest if item.pod.uid in self._claims.served else item.read

    def _serve(self, uid: str) -> None:
        """A claim serves the pod's extended resources from now on."""
        if uid in self._claims.served:
            return
        self._claims.served.add(uid)
        rest = self.rest.get(uid)
        if uid not in self:
            return
        self._forget_pod(uid)
        if rest is not None:
            self._put_read(rest, False, self.current_ms)

    def _forget_pod(self, uid: str) -> None:
        self.as_read.pop(uid, None)
        self._forget_waiting(uid)

    def _forget_waiting(self, uid: str) -> None:
        """A pod that waited and is read in another way now holds nothing that is charged."""
        pod = self.pop(uid, None)
        if pod is not None:
            self._unlist_pod(pod)
            self.changed.pop(uid, None)
            self._set_without_node(uid, waits=False)

    def _put_read(self, item: LedgerPod | UnreadablePod, deleted: bool, at_ms: int) -> None:
        """The pod as it counts in its namespace: as admission wrote it, or as it is metered."""
        view = self._view(item)
        if isinstance(item, UnreadablePod):
            self._see_claims(item, deleted)
            if view is None and item.problem:
                self._add_unreadable(item)
        self._remember(item, view, deleted)
        if view is None:
            self._forget_waiting(item.uid)
        else:
            self.unreadable.pop(item.uid, None)
            self._put_pod(view, deleted, at_ms)

    def _view(self, item: LedgerPod | UnreadablePod) -> LedgerPod | None:
        """None: it holds nothing that is charged. A pod that was charged before is charged to its end."""
        if isinstance(item, UnreadablePod) and item.is_allocated and item.pod is None:
            return None
        read = item if isinstance(item, LedgerPod) else item.pod
        is_static = read is not None and read.is_static  # admission changes none, so it is metered everywhere
        if not (is_static or self.metered.meters(item.namespace)):
            view = item if isinstance(item, LedgerPod) else None
        else:
            view = None if read is None else metered_view(read, self.metered.models)
            if view is not None and isinstance(item, UnreadablePod) and not is_static:
                view = replace(view, is_only_metered=True)
        before = self.get(item.uid)
        if view is not None or read is None:
            return view or before
        if before is None:  # after a restart the ledger has its session
            is_known = isinstance(item, UnreadablePod) and item.requests_nothing
            return replace(read, is_metered=True) if is_known else None
        return replace(before, hold=read.hold, others_ended=read.others_ended) if before.node else None

    def _remember(self, item: LedgerPod | UnreadablePod, view: LedgerPod | None, deleted: bool) -> None:
        """Keep what cannot be had from the view again."""
        is_known = view is item or (isinstance(item, LedgerPod) and is_bare(item))
        is_nothing = isinstance(item, UnreadablePod) and item.pod is None
        if is_known or is_nothing or (deleted and view is None):
            self.as_read.pop(item.uid, None)
        else:
            self.as_read[item.uid] = item

    def _see_claims(self, item: UnreadablePod, deleted: bool) -> None:
        if item.claims and not deleted:
            self.claiming[item.uid] = item.namespace
        elif self.claiming.pop(item.uid, None) is None:
            return
        self._claiming = None

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
        known = self.get(pod.uid)
        if known is not None:
            later = replace(known.hold, ended_ms=pod.hold.ended_ms, doubt=pod.hold.doubt)
            self[pod.uid] = replace(known, hold=later)

    def _add_unreadable(self, item: UnreadablePod) -> None:
        if item.uid in self.unreadable or len(self.unreadable) < MAX_UNREADABLE:
            self.unreadable[item.uid] = item
        else:
            self.unreadable_omitted += 1

    def _put_pod(self, pod: LedgerPod, deleted: bool, at_ms: int) -> None:
        before = self.get(pod.uid)
        pod = self._dated(before, _with_earlier(before, pod), at_ms)
        if pod.node and pod.ended_ms is not None and (before is None or before.ended_ms is None):
            self.end_watermarks.setdefault(pod.uid, self._nodes.alive_ms(pod.node, self.current_ms))
        self._follow_preemption(before, pod)
        if deleted:
            self._remove_pod(pod, at_ms, seen=True)
            return
        if pod == before:
            return
        self.changed.setdefault(pod.uid, at_ms)
        self[pod.uid] = pod
        if pod.gang_key is not None:
            self.gangs.add(pod.gang_key, pod.uid)
            self.gang_changes.add(pod.gang_key)
        if before is None:
            self.namespaces.add(pod.namespace, pod.uid)
        self._set_without_node(pod.uid, pod.can_be_bound)

    def _follow_preemption(self, before: LedgerPod | None, pod: LedgerPod) -> None:
        if pod.gang_key is not None and pod.leaves_for_another and not (before and before.leaves_for_another):
            self.preempted_gangs.add(pod.gang_key)

    def _set_without_node(self, uid: str, waits: bool) -> None:
        if waits or uid in self.without_node:
            self.without_node_changes.add(uid)
        if waits:
            self.without_node.add(uid)
        else:
            self.without_node.discard(uid)

    def _unlist_pod(self, pod: LedgerPod) -> None:
        if pod.gang_key is not None:
            self.gangs.leave(pod.gang_key, pod.uid)
            self.gang_changes.add(pod.gang_key)
        self.namespaces.leave(pod.namespace, pod.uid)

    def _remove_pod(self, pod: LedgerPod, at_ms: int, seen: bool) -> None:
        read = self.as_read.pop(pod.uid, None)
        if self.pop(pod.uid, None) is not None:
            self._unlist_pod(pod)
        self.changed.pop(pod.uid, None)
        self._set_without_node(pod.uid, waits=False)
        if not pod.node:
            if len(self.deleted_waiting) < self.most_deleted:
                last_ms = at_ms if seen else self.current_ms
                self.deleted_waiting.setdefault(pod.uid, DeletedPod(pod, last_ms, seen))
            return
        known = self.deleted.get(pod.uid)
        if known is not None:  # the first report counts: a clock that was set back may date a later one
            self.deleted[pod.uid] = replace(known, pod=_with_earlier(known.pod, pod), read=read or known.read)
            return
        if len(self.deleted) >= self.most_deleted:
            self.deletions_dropped += 1
            self.end_watermarks.pop(pod.uid, None)
            return
        alive_ms = self._nodes.alive_ms(pod.node, self.current_ms)
        self.deleted[pod.uid] = DeletedPod(pod, at_ms, seen, alive_ms, read)
        if pod.ended_ms is None and pod.uid not in self.without_object.holds:  # else it is reported again
            self.without_object.add(pod.uid, pod.node, Vanished(at_ms, 0), at_ms)


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
