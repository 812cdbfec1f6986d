"""Which sessions open, and what the cluster has proved about the open ones."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import (
    OpenedSession,
    Session,
    evidence,
    last_evidence_ms,
    open_session,
    vanish,
    witness,
)
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold, Vanished
from timekeeper.core.ledger.metering import Evidence
from timekeeper.core.request.host import DOMINANT_HOST
from timekeeper.settler.cluster.cluster_state import ClusterState, DeletedPod
from timekeeper.settler.state.ledger_state import LedgerState

# A pod can arrive before its node, because the watches are independent. Its rate waits this long for the
# inventory.
PATIENCE_MS = 5_000

_LONGEST_UNMARKED_MS = 5_000


@dataclass(slots=True)
class SessionChanges:
    """What a tick changes in the sessions."""

    sessions: dict[str, Session] = field(default_factory=dict)  # UID -> new or changed session
    opened: set[str] = field(default_factory=set)  # UIDs of the new ones
    deferred: dict[str, int] = field(default_factory=dict)  # UID -> since when it waits for its inventory
    doubts: dict[str, str] = field(default_factory=dict)  # UID -> why it is charged by its request

    def open(self, opened: OpenedSession) -> Session:
        """Add a new session, and return it."""
        session = opened.session
        self.sessions[session.uid] = session
        self.opened.add(session.uid)
        if opened.doubt:
            self.doubts[session.uid] = opened.doubt
        return session


def changed_sessions(
    cluster: ClusterState,
    ledger: LedgerState,
    settings: BudgetSettings,
    now_ms: int,
    unseen: Iterable[LedgerPod] = (),
) -> SessionChanges:
    """The sessions of every pod that changed since the last tick. ``unseen``: pods whose Bindings alone were
    reported."""
    tick = _Tick(cluster, ledger, settings, now_ms, SessionChanges())
    for uid, since_ms in cluster.changed_pods.items():
        tick.apply_pod(cluster.pods[uid], since_ms)
    for deleted in cluster.deleted_pods.values():
        tick.apply_deletion(deleted)
    if cluster.pods_relisted:
        tick.end_sessions_without_pod()
    for pod in unseen:
        tick.open_unseen(pod)
    tick.follow_vanished()
    return tick.changes


@dataclass(frozen=True, slots=True)
class _Tick:
    cluster: ClusterState
    ledger: LedgerState
    settings: BudgetSettings
    now_ms: int
    changes: SessionChanges

    def apply_pod(self, pod: LedgerPod, since_ms: int) -> None:
        """An existing pod: open its session once it is bound and its cards are known, then apply its
        status."""
        session = self.ledger.session(pod.uid)
        if session is None:
            if not pod.node or pod.uid in self.ledger.folded:
                return
            opened = self._opened(pod)
            if self._may_come(pod, opened) and self.now_ms - since_ms < PATIENCE_MS:
                self.changes.deferred[pod.uid] = since_ms
                return
            session = self.changes.open(opened)
        self._apply_status(session, pod)

    def _opened(self, pod: LedgerPod) -> OpenedSession:
        cards, allocatable = self.cluster.cards(pod.node), self.cluster.allocatable(pod.node)
        return open_session(pod, cards, self.settings, self.now_ms, allocatable)

    def _may_come(self, pod: LedgerPod, opened: OpenedSession) -> bool:
        """Whether the pod's rate would differ if its node arrived, or arrived with other cards."""
        if opened.doubt and pod.devices:
            return True
        by_host = self.settings.charge_by == DOMINANT_HOST and pod.fixed_host is None
        return by_host and pod.node not in self.cluster.nodes

    def apply_deletion(self, deleted: DeletedPod) -> None:
        """A deleted pod object: ends by its last status if that is terminal, else as a vanished pod."""
        pod, session = deleted.pod, self.ledger.session(deleted.pod.uid)
        if session is None:
            if pod.uid in self.ledger.folded:
                return
            session = self.changes.open(self._opened(pod))
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

    def _vanish(
        self, session: Session, last: PodHold, known: Evidence, at_ms: int, was_watched: bool
    ) -> None:
        most_ms, pods = self.settings.max_grace_period_ms, self.cluster.vanished
        gone = hold.vanished(last, at_ms, last_evidence_ms(known), most_ms, was_watched)
        if session.uid not in pods.holds:
            pods.add(session.uid, session.node, gone, at_ms)
        seen = pods.holds[session.uid]
        gone = pods.holds[session.uid] = replace(seen, removed_ms=gone.removed_ms, grace_ms=gone.grace_ms)
        self.changes.sessions[session.uid] = vanish(session, gone, known)

    def follow_vanished(self) -> None:
        """Vanished pods hold their cards while their node lists them, and until it reports them gone."""
        pods, changed = self.cluster.vanished, self.changes.sessions
        if not pods.is_complete:
            for uid, each in self.ledger.sessions.items():
                if each.is_reserved or each.vanished_ms is None:
                    continue
                if uid not in pods.holds and uid not in changed:
                    gone = Vanished(each.vanished_ms, each.grace_ms)
                    # the Node's report may be older than this process: it counts until its last evidence
                    known_ms = self.cluster.watermark_ms(each.node) or each.vanished_ms
                    pods.add(uid, each.node, gone, known_ms)
            pods.is_complete = True
        for uid in list(pods.holds):
            session = changed.get(uid) or self.ledger.session(uid)
            if session is None or session.vanished_ms is None or session.settled_ms is not None:
                pods.remove(uid)
                continue
            gone = pods.confirm(uid, self.cluster.watermark_ms(session.node))
            if gone.until_ms != session.vanished_ms + session.grace_ms:
                changed[uid] = replace(session, grace_ms=gone.until_ms - session.vanished_ms)
        self.ledger.listed = {uid for uid, gone in pods.holds.items() if gone.is_listed}

    def end_sessions_without_pod(self) -> None:
        """End running sessions whose pods a complete list does not contain."""
        for uid, session in self.ledger.sessions.items():
            if session.is_over or uid in self.cluster.pods or uid in self.cluster.deleted_pods:
                continue
            known = evidence(session, self.ledger.watermarks.get(session.node), self.ledger.beats.get(uid))
            self._vanish(session, PodHold(session.bound_ms), known, self.now_ms, was_watched=False)

    def open_unseen(self, pod: LedgerPod) -> None:
        """A pod that was bound and vanished while no watch ran: it holds its cards from its binding, through
        the longest grace period after the last witness."""
        uid = pod.uid
        if uid in self.cluster.deleted_pods or self.ledger.session(uid) or uid in self.ledger.folded:
            return
        session = self.changes.open(self._opened(pod))
        known = evidence(session, None, self.ledger.beats.get(uid))
        self._vanish(session, pod.hold, known, self.now_ms, was_watched=False)

    def _apply_status(self, session: Session, pod: LedgerPod) -> Session:
        """The session with what the pod's status proves. A session that is over keeps the last witness: the
        watermark that its node had when the end was observed, or the first report of the end without proof.

        A session of the release before this one that was settled by proof is final: a definition that changes
        with a release changes no posting.
        """
        if session.settled_ms is not None and session.ended_ms and session.charge_from == "running":
            return session
        updated = witness(session, pod, self.now_ms)
        if updated.is_over and not session.is_over:
            watermark_ms = self.ledger.watermarks.get(session.node)
            mark_ms = _latest(watermark_ms, self.cluster.end_watermarks.get(pod.uid))
            if not updated.ended_ms:
                mark_ms = min(hold.ends_ms(pod.hold, mark_ms or 0), max(self.now_ms, mark_ms or 0))
            updated = replace(updated, watermark_ms=mark_ms)
        if updated != session:
            # a settled session is settled again, by a correction
            updated = self.changes.sessions[pod.uid] = replace(updated, settled_ms=None)
        return updated


def _latest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def advanced_watermarks(cluster: ClusterState, ledger: LedgerState, now_ms: int) -> dict[str, int]:
    """The watermarks that have advanced, of nodes that run sessions. They never move back.

    In a large cluster they advance together every few seconds: kubelets renew their Leases every 10 s, and
    each advance of thousands of nodes writes the whole table.
    """
    nodes, watermarks = ledger.open_totals.by_node, ledger.watermarks
    if 0 <= now_ms - ledger.watermarks_ms < min(_LONGEST_UNMARKED_MS, len(nodes) // 1000 * 1000):
        return {}
    current = ((node, cluster.watermark_ms(node)) for node in nodes)
    return {node: at_ms for node, at_ms in current if at_ms is not None and at_ms > watermarks.get(node, 0)}
