"""Which sessions open, and what the cluster has proved about the open ones."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace

from timekeeper.accounts.claims.claim_sessions import user_uids
from timekeeper.accounts.ends import ReportedEnd, pod_of
from timekeeper.accounts.pods import LedgerPod, charged_pod
from timekeeper.accounts.session import (
    BEFORE,
    CLAIMS,
    CLAIMS_SEEN,
    Session,
    evidence,
    last_evidence_ms,
    moved_placement,
    open_session,
    vanish,
    with_cards_of,
    within,
    witness,
)
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold, Vanished
from timekeeper.core.ledger.metering import Evidence, witnessed
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.cluster.pods_without_object import NOTHING_SEEN
from timekeeper.settler.cluster.watched_pods import DeletedPod
from timekeeper.settler.decide.payers import Payers
from timekeeper.settler.decide.stages import PATIENCE_MS, PodChanges, TickFacts
from timekeeper.settler.state.ledger_state import LedgerState

MAX_REPORT_ERROR_MS = 60_000  # of an extender's clock

_LONGEST_UNMARKED_MS = 5_000


def changed_sessions(
    facts: TickFacts,
    payers: Payers,
    unseen: Iterable[LedgerPod] = (),
    ends: Iterable[ReportedEnd] = (),
    since_ms: int = 0,
    only_metered_since: Callable[[str], int] = lambda _namespace: 0,
) -> PodChanges:
    """The sessions of every pod that changed since the last tick. ``unseen``: pods whose Bindings alone were
    reported. ``ends``: what extenders saw of removals. ``since_ms``: metered pods are charged from then on at
    the earliest; ``only_metered_since``: by namespace, those that only metering charges."""
    cluster = facts.cluster
    tick = _PodTick(
        cluster,
        facts.ledger,
        facts.settings,
        facts.now_ms,
        changes=PodChanges(),
        payers=payers,
        since_ms=since_ms,
        only_metered_since=only_metered_since,
    )
    gone = {
        uid: deleted for uid, deleted in cluster.pods.deleted.items() if not charged_pod(cluster.pods, uid)
    }
    for uid in sorted(cluster.pods.deleted.keys() - gone.keys()):  # removed, and there again
        tick.apply_deletion(cluster.pods.deleted[uid])
    for uid in sorted(cluster.pods.changed, key=lambda uid: (cluster.pods[uid].created_ms, uid)):
        tick.apply_pod(cluster.pods[uid], cluster.pods.changed[uid])
    tick.apply_sights()
    for deleted in gone.values():
        tick.apply_deletion(deleted)
    for pod in cluster.pods.dated_again.values():
        tick.date_again(pod)
    if cluster.pods.relisted_ms is not None:
        tick.end_sessions_without_pod(cluster.pods.relisted_ms)
    reported = {each.uid: each for each in ends}
    for pod in unseen:
        tick.open_unseen(pod, reported.get(pod.uid))
    tick.adopt_vanished()
    for end in reported.values():
        tick.apply_end(end)
    tick.follow_vanished()
    return tick.changes


def _lives_again(session: Session, pod: LedgerPod) -> bool:
    """Whether the pod had ended or was removed, and runs again under its UID, or is on another node: etcd was
    restored from a backup. One that only waits again has taken back nothing that was proved."""
    if not pod.node or pod.ended_ms is not None or pod.hold.unconfirmed:
        return False
    if pod.is_static and session.ended_ms is None:  # its mirror was made again, and its containers may run on
        return session.vanished_ms is not None and (pod.started_ms or 0) > session.vanished_ms
    has_ended = session.ended_ms is not None or (session.vanished_ms is not None and not session.was_unseen)
    return (has_ended and pod.started_ms is not None) or pod.node != session.node


def _says_nothing(session: Session, pod: LedgerPod) -> bool:
    """Whether the mirror of a static pod was made again, and its kubelet has not said yet since when the
    containers run."""
    is_silent = pod.started_ms is None and pod.ended_ms is None
    return pod.is_static and session.vanished_ms is not None and is_silent


def _is_of_a_report(session: Session, end: ReportedEnd) -> bool:
    """Whether the session was opened by the report of its Binding alone, which has neither owner nor labels
    and is dated by the extender's clock: the object's own time, a little beside it, is the right one."""
    is_bare = session.owner == "" and session.labels == "{}"
    error_ms = abs((end.hold.bound_ms or session.bound_ms) - session.bound_ms)
    return is_bare and error_ms <= MAX_REPORT_ERROR_MS


@dataclass(frozen=True, slots=True)
class _PodTick(TickFacts):
    _: KW_ONLY
    changes: PodChanges
    payers: Payers
    since_ms: int
    only_metered_since: Callable[[str], int]

    def apply_pod(self, pod: LedgerPod, since_ms: int) -> None:
        """An existing pod: open its session once it is bound and its cards are known, then apply its
        status."""
        session = self.changes.sessions.get(pod.uid) or self.ledger.session(pod.uid)
        if session is None:
            if not pod.node or pod.uid in self.ledger.folded or self._was_charged(pod):
                return
            if self.payers.get(pod.uid) == "unknown":
                self.changes.deferred[pod.uid] = since_ms
                return
            rest = self._paying(pod)
            if rest is None:
                return
            pod = rest
            opened = self._opened(pod)
            # whether its rate would differ if its node arrived, or arrived with other cards
            by_spec = pod.is_charged_by_spec(self.settings.scheduler_name)
            may_come = opened.doubt and (pod.devices or (by_spec and pod.node not in self.cluster.nodes))
            if may_come and self.now_ms - since_ms < PATIENCE_MS:
                self.changes.deferred[pod.uid] = since_ms
                return
            session = self.changes.bind(self._after_former(opened, pod), pod)
        elif _says_nothing(session, pod):
            return
        elif _lives_again(session, pod) or self._lost_its_cards(session, pod):
            session = self._begin_again(session, pod, since_ms)
        self._apply_status(self._on_given_cards(session, pod), pod)

    def _was_charged(self, pod: LedgerPod) -> bool:
        """Whether a static pod that has ended was charged by its mirror's UID, as releases before did."""
        former = self.ledger.session(pod.mirror_uid)
        is_known = pod.mirror_uid in self.ledger.folded or (former is not None and former.is_over)
        return is_known and pod.ended_ms is not None

    def _after_former(self, opened: Session, pod: LedgerPod) -> Session:
        """The new session of a static pod, from the end of one by its mirror's UID, which ends now at the
        latest."""
        former = self.ledger.session(pod.mirror_uid)
        if former is None:
            return opened
        if not former.is_over:
            former = replace(former, ended_ms=self.now_ms, settled_ms=None)
            self.changes.sessions[former.uid] = former
        ends_ms = witnessed(self._known(former), self.now_ms).interval.end_ms
        return replace(opened, bound_ms=max(opened.bound_ms, ends_ms))

    def _begin_again(self, session: Session, pod: LedgerPod, since_ms: int) -> Session:
        """The session of a pod's next life, from when it was seen again, or from its start if that is
        earlier. The life before keeps its charge, in a session of its own."""
        watermark_ms = self.ledger.watermarks.get(session.witness)
        known = evidence(session, watermark_ms, self.ledger.beats.get(session.uid))
        ended_ms = witnessed(known, self.now_ms).interval.end_ms
        past = replace(session, uid=f"{session.uid}{BEFORE}{session.bound_ms}", opened_ms=self.now_ms)
        past = replace(past, is_earlier=True, ended_ms=ended_ms, vanished_ms=None, settled_ms=None)
        self.changes.open(past)
        self.ledger.table.index_witness(replace(past, uid=session.uid))  # its node does not extend it
        said_ms = pod.created_ms if pod.is_static else pod.started_ms or 0
        starts = [at_ms for at_ms in (since_ms, said_ms) if at_ms >= ended_ms]
        again = replace(
            self._opened(pod), bound_ms=min(starts, default=ended_ms), opened_ms=session.opened_ms
        )
        self.changes.sessions[pod.uid], self.changes.bound[pod.uid] = again, pod
        return again

    def _on_given_cards(self, session: Session, pod: LedgerPod) -> Session:
        """The session on the cards that the node's plugin gave the pod, which heeds no placement."""
        given = () if session.is_over else self.cluster.given(pod.node).get(pod.uid, ())
        if not given:
            return session
        cards = self.cluster.nodes.cards(pod.node)
        devices = moved_placement(session, given, cards)
        moved = self._opened(replace(pod, devices=devices)) if devices else None
        if moved is not None and moved.devices:
            session = self.changes.sessions[pod.uid] = with_cards_of(session, moved, cards)
        return session

    def _paying(self, pod: LedgerPod) -> LedgerPod | None:
        """What of the pod pays by its cards; None: nothing, for a claim serves all of it."""
        if self.payers.get(pod.uid) != "claim":
            return pod
        self.changes.served.add(pod.uid)
        return self.cluster.pods.without_served(pod.uid)

    def _opened(self, pod: LedgerPod) -> Session:
        since_ms = self.only_metered_since(pod.namespace) if pod.is_only_metered else self.since_ms
        session = open_session(pod, self.cluster.nodes.rated(pod.node), self.settings, self.now_ms, since_ms)
        return within(session, self._left_milli(pod)) if pod.is_static else session

    def _lost_its_cards(self, session: Session, pod: LedgerPod) -> bool:
        """Whether other static pods have the cards of its node that this one had before it was gone."""
        was_gone = pod.is_static and session.vanished_ms is not None
        return was_gone and session.requested_milli > self._left_milli(pod)

    def _left_milli(self, pod: LedgerPod) -> int:
        """What other static pods leave of the cards of its node."""
        changed = self.changes.sessions
        uids = {*self.ledger.table.by_witness.get(pod.node, ()), *changed} - {pod.uid}
        sessions = [changed.get(uid) or self.ledger.session(uid) for uid in uids]
        held = sum(
            session.requested_milli
            for session in sessions
            if session and session.is_static and session.node == pod.node and not session.is_over
        )
        return max(0, self.cluster.nodes.most_milli(pod.node) - held)

    def apply_sights(self) -> None:
        """Pods on nodes of which something else is known now, such as another boot."""
        for node in self.cluster.pods.without_object.changed:
            for uid in sorted(self.ledger.table.by_witness.get(node, ())):
                pod, session = charged_pod(self.cluster.pods, uid), self.ledger.session(uid)
                if pod is not None and session is not None and uid not in self.cluster.pods.changed:
                    self._apply_status(session, pod)

    def apply_deletion(self, deleted: DeletedPod) -> None:
        """A deleted pod object: ends by its last status if that is terminal, else as a vanished pod."""
        pod, session = deleted.pod, self.ledger.session(deleted.pod.uid)
        if session is None:
            rest = self._paying(pod)
            if pod.uid in self.ledger.folded or rest is None:
                return
            pod, session = rest, self.changes.bind(self._opened(rest), rest)
        if session.vanished_ms is not None and pod.ended_ms is None:
            return  # reported again: the first report counts
        session = self._apply_status(session, pod)
        if session.is_over:
            return
        written_ms = self.ledger.watermarks.get(pod.node)
        # events that arrive late together would date each other's evidence: only what was written counts
        watermark_ms = written_ms if deleted.seen else _latest(deleted.watermark_ms, written_ms)
        known = evidence(session, watermark_ms, self.ledger.beats.get(pod.uid))
        longest = replace(pod.hold, grace_ms=max(pod.hold.grace_ms, session.grace_ms))
        self._vanish(session, longest, known, deleted.at_ms, deleted.seen)

    def date_again(self, pod: LedgerPod) -> None:
        """The end of a pod is dated by another clock: its session ends then."""
        session = self.changes.sessions.get(pod.uid) or self.ledger.session(pod.uid)
        if session is None or session.ended_ms is None:
            return
        self._apply_status(session, pod)

    def _vanish(
        self, session: Session, last: PodHold, known: Evidence, at_ms: int, was_watched: bool
    ) -> None:
        # a kubelet ends a static pod before it removes the mirror for good
        most_ms = 0 if session.is_static else self.settings.max_grace_period_ms
        pods = self.cluster.pods.without_object
        last_ms, moved_ms = last_evidence_ms(known), self.cluster.nodes.moved_ms.get(session.node)
        gone = hold.vanished(last, at_ms, last_ms, most_ms, was_watched)
        if moved_ms is not None and last_ms <= moved_ms < gone.until_ms:  # its host went on as another Node
            gone = Vanished(moved_ms, 0)
        pods.add(session.uid, session.node, gone, at_ms)
        seen = pods.holds[session.uid]
        gone = replace(seen, removed_ms=gone.removed_ms, grace_ms=gone.grace_ms, quick_ms=gone.quick_ms)
        pods.holds[session.uid] = gone
        unseen = replace(vanish(session, gone, known), was_unseen=not was_watched)
        self.changes.sessions[session.uid] = replace(unseen, settled_ms=None)

    def adopt_vanished(self) -> None:
        """Follow the vanished pods that an earlier settler left."""
        pods, changed = self.cluster.pods.without_object, self.changes.sessions
        if pods.is_complete:
            return
        for uid, each in self.ledger.sessions.items():
            if each.charge in ("reserved", "host") or each.vanished_ms is None:
                continue
            if uid not in pods.holds and uid not in changed:
                users = user_uids(each) if each.is_claim else ()
                gone = Vanished(each.vanished_ms, each.grace_ms, users=users)
                # the Node's report may be older than this process: it counts until its last evidence
                known_ms = self.cluster.watermark_ms(each.node) or each.vanished_ms
                pods.add(uid, each.node, gone, known_ms)
        pods.is_complete = True

    def follow_vanished(self) -> None:
        """Vanished pods hold their cards and devices while their node lists them, and until it reports them
        gone. One that uses claims alone has no session: theirs ask for its hold once they are released."""
        pods, changed = self.cluster.pods.without_object, self.changes.sessions
        known_ms = self.ledger.watermarks.get(CLAIMS_SEEN, self.now_ms)
        for uid, node in list(pods.nodes.items()):
            session = changed.get(uid) or self.ledger.session(uid)
            gone = pods.confirm(uid, self.cluster.watermark_ms(node))
            if session is None and gone.is_held(known_ms):
                continue  # a claim may have been released while it lasted
            if session is None or session.vanished_ms is None or session.settled_ms is not None:
                pods.remove(uid)
            elif gone.until_ms != session.vanished_ms + session.grace_ms:
                changed[uid] = replace(session, grace_ms=gone.until_ms - session.vanished_ms)
        self.ledger.listed = {uid for uid, gone in pods.holds.items() if gone.is_listed}

    def end_sessions_without_pod(self, listed_ms: int) -> None:
        """End running sessions whose pods a complete list does not contain. Its time counts: that of the tick
        is later where the clock was set back (`Settler.tick`)."""
        for uid, session in self.ledger.sessions.items():
            if session.charge in ("claim", "host") or session.is_over:
                continue
            if (
                charged_pod(self.cluster.pods, uid)
                or uid in self.cluster.pods.deleted
                or uid in self.changes.sessions
            ):
                continue
            known = evidence(session, self.ledger.watermarks.get(session.node), self.ledger.beats.get(uid))
            self._vanish(session, PodHold(session.bound_ms), known, listed_ms, was_watched=False)

    def open_unseen(self, pod: LedgerPod, end: ReportedEnd | None) -> None:
        """A pod that was bound and vanished while no watch ran: it holds its cards from its binding, through
        the longest grace period after the last witness; or as an extender saw it."""
        uid = pod.uid
        if uid in self.cluster.pods.deleted or self.ledger.session(uid) or uid in self.ledger.folded:
            return
        if end is not None and end.hold.bound_ms is not None:
            pod = replace(pod, hold=end.hold)
        session = self.changes.bind(self._opened(pod), pod)
        known = evidence(session, None, self.ledger.beats.get(uid))
        self._vanish(session, pod.hold, known, self.now_ms, was_watched=False)

    def apply_end(self, end: ReportedEnd) -> None:
        """What an extender saw of a removal, where no process of the ledger saw it: it replaces the estimate
        as if the watch had shown it. While the watch shows the pod, it will show the removal as well."""
        session = self.changes.sessions.get(end.uid) or self.ledger.session(end.uid)
        if session is None or session.ended_ms or charged_pod(self.cluster.pods, end.uid):
            return
        if session.was_unseen and _is_of_a_report(session, end):
            session = replace(session, bound_ms=end.hold.bound_ms or session.bound_ms)
        if end.hold.over:
            self._apply_reported_end(session, end)
            return
        if session.ended_ms is not None:
            return
        if session.vanished_ms is None or session.was_unseen:
            before = self.ledger.session(end.uid)
            requested_ms = before.grace_ms if before is not None and before.vanished_ms is None else 0
            last = replace(end.hold, grace_ms=max(end.hold.grace_ms, requested_ms))
            self._vanish(session, last, self._known(session), end.removed_ms, was_watched=True)
        self._complete(self.changes.sessions.get(end.uid) or session, end)

    def _apply_reported_end(self, session: Session, end: ReportedEnd) -> None:
        if session.ended_ms is not None and end.hold.ended_ms is None:
            return
        ahead_ms = self.cluster.nodes.clock_ahead_ms(end.node)
        received = replace(end.hold, received_ms=end.removed_ms + MAX_REPORT_ERROR_MS)
        end = replace(end, hold=hold.dated(received, () if ahead_ms is None else (ahead_ms,)))
        mark_ms = self._known(session).watermark_ms
        updated = replace(witness(session, pod_of(end), self.now_ms), was_unseen=False)
        if not updated.ended_ms:
            mark_ms = min(hold.ends_ms(end.hold, mark_ms or 0), max(self.now_ms, mark_ms or 0))
        self.changes.sessions[end.uid] = replace(updated, watermark_ms=mark_ms, settled_ms=None)

    def _complete(self, session: Session, end: ReportedEnd) -> None:
        """A vanished pod's hold with what another replica knew: a longer grace period, or that the node's
        agent ceased to list the pod, which ends the hold."""
        holds, most_ms = self.cluster.pods.without_object.holds, self.settings.max_grace_period_ms
        gone = holds.get(session.uid)
        if gone is None or gone.left_ms is not None:
            return
        longest_ms = max(gone.grace_ms, min(end.hold.grace_ms, most_ms))
        is_listed = gone.is_listed and end.left_ms is None
        completed = replace(gone, grace_ms=longest_ms, left_ms=end.left_ms, is_listed=is_listed)
        if completed != gone:
            holds[session.uid] = completed
            self.changes.sessions[session.uid] = vanish(session, completed, self._known(session))

    def _known(self, session: Session) -> Evidence:
        watermark_ms = self.ledger.watermarks.get(session.node)
        return evidence(session, watermark_ms, self.ledger.beats.get(session.uid))

    def _apply_status(self, session: Session, pod: LedgerPod) -> Session:
        """The session with what the pod's status proves. A session that is over keeps the last witness: the
        watermark that its node had when the end was observed, or the first report of the end without proof.
        """
        updated = witness(session, pod, self.now_ms)
        if updated.is_over and not session.is_over:
            watermark_ms = self.ledger.watermarks.get(session.node)
            mark_ms = _latest(watermark_ms, self.cluster.pods.end_watermarks.get(pod.uid))
            if not updated.ended_ms:
                mark_ms = min(hold.ends_ms(pod.hold, mark_ms or 0), max(self.now_ms, mark_ms or 0))
            updated = replace(updated, watermark_ms=mark_ms)
        elif not updated.is_over:
            updated = self._in_boot(updated, pod)
        if updated != session:
            # a settled session is settled again, by a correction
            updated = self.changes.sessions[pod.uid] = replace(updated, settled_ms=None)
        return updated

    def _in_boot(self, session: Session, pod: LedgerPod) -> Session:
        """The open session with the boot of its node. While its pod's end is unconfirmed that stays, and what
        was known until then. Once the node has another boot the hold is over: it ended with that evidence and
        the pod's grace."""
        sight = self.cluster.pods.without_object.sights.get(pod.node, NOTHING_SEEN)
        if not pod.hold.unconfirmed:
            return replace(session, boot=sight.boot or session.boot, watermark_ms=None)
        known = self._known(session)
        if session.watermark_ms is None:
            boot, mark_ms = session.boot or sight.boot or None, last_evidence_ms(known)
            session = replace(session, boot=boot, watermark_ms=mark_ms)
        if not hold.is_left_behind(pod.hold, pod.uid, session.boot or "", sight):
            return session
        last_ms = last_evidence_ms(replace(known, watermark_ms=session.watermark_ms))
        ends_ms = last_ms + min(pod.hold.grace_ms, self.settings.max_grace_period_ms)
        return replace(session, ended_ms=0, watermark_ms=min(ends_ms, max(self.now_ms, last_ms)))


def _latest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def advanced_watermarks(cluster: ClusterState, ledger: LedgerState, now_ms: int) -> dict[str, int]:
    """The watermarks that have advanced, of nodes that run sessions. They never move back.

    In a large cluster they advance together every few seconds: kubelets renew their Leases every 10 s, and
    each advance of thousands of nodes writes the whole table. The last look at all claims does not wait.
    """
    nodes, watermarks = {*ledger.table.by_witness, CLAIMS, CLAIMS_SEEN}, ledger.watermarks
    if 0 <= now_ms - ledger.watermarks_ms < min(_LONGEST_UNMARKED_MS, len(nodes) // 1000 * 1000):
        nodes = {CLAIMS_SEEN}
    current = ((node, cluster.watermark_ms(node)) for node in nodes)
    return {node: at_ms for node, at_ms in current if at_ms is not None and at_ms > watermarks.get(node, 0)}
