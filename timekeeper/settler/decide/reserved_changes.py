"""Which sessions for reserved cards open, and when they end."""

from collections.abc import Iterator, Set
from dataclasses import KW_ONLY, dataclass

from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.pods import LedgerPod, charged_pod, claim_user
from timekeeper.accounts.reserved import (
    end_reserved,
    open_reserved,
    reserved_end_ms,
    reserved_uid,
)
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.stages import PATIENCE_MS, PodChanges, SessionChanges, TickFacts
from timekeeper.settler.state.ledger_state import DeclaredReservations, LedgerState


def reserved_changes(facts: TickFacts, pods: PodChanges) -> SessionChanges:
    """The sessions for reserved cards that open or end. The pods' own sessions say when they were bound."""
    cluster, now_ms, changes = facts.cluster, facts.now_ms, SessionChanges()
    tick = _ReservedTick(cluster, facts.ledger, facts.settings, now_ms, pods=pods, changes=changes)
    for uid, since_ms in cluster.pods.changed.items():
        tick.follow(cluster.pods[uid], min(since_ms, now_ms), since_ms)
    for gone in (*cluster.pods.deleted.values(), *cluster.pods.deleted_waiting.values()):
        tick.follow(gone.pod, gone.at_ms, gone.at_ms, is_gone=True)
    if cluster.pods.relisted_ms is not None:
        tick.end_without_pod()
    return changes


@dataclass(frozen=True, slots=True)
class _ReservedTick(TickFacts):
    _: KW_ONLY
    pods: PodChanges
    changes: SessionChanges

    def follow(self, pod: LedgerPod, seen_ms: int, since_ms: int, is_gone: bool = False) -> None:
        own = self.pods.sessions.get(pod.uid) or self.ledger.session(pod.uid)
        bound_ms = pod.hold.bound_ms if own is None else own.bound_ms
        for session in self._sessions(pod, since_ms):
            end_ms = reserved_end_ms(session.uid, pod, bound_ms if pod.node else None, seen_ms)
            is_later = end_ms is None or seen_ms < end_ms
            self._end(session, seen_ms if is_gone and is_later else end_ms)

    def _sessions(self, pod: LedgerPod, since_ms: int) -> Iterator[Session]:
        """The pod's unsettled sessions for reserved cards, and the one that its object shows."""
        for uid in tuple(self.ledger.reserved.get(pod.uid, ())):
            yield self.ledger.sessions[uid]
        uid = reserved_uid(pod)
        if not uid or uid in self.ledger.reserved.get(pod.uid, ()) or uid in self.ledger.folded:
            return
        session = self.ledger.session(uid)
        if session is not None:
            yield session
            return
        node = pod.reserved.node if pod.reserved else ""
        opened = open_reserved(pod, self.cluster.nodes.cards(node), self.settings, self.now_ms)
        if opened is None:
            return
        if not opened.doubt:
            yield self.changes.open(opened)
        elif self.now_ms - since_ms < PATIENCE_MS and pod.uid in self.cluster.pods.changed:
            self.changes.deferred[pod.uid] = since_ms

    def end_without_pod(self) -> None:
        """A complete list does not contain the pod: the earlier settler saw it last."""
        for uid in [each for uids in self.ledger.reserved.values() for each in uids]:
            session = self.ledger.sessions[uid]
            pods, uid = self.cluster.pods, session.owner_uid
            if not (charged_pod(pods, uid) or uid in pods.deleted or uid in pods.deleted_waiting):
                self._end(session, self.ledger.pulse.decided_ms)

    def _end(self, session: Session, end_ms: int | None) -> None:
        ended = end_reserved(session, end_ms)
        if ended != session:
            self.changes.put(ended)


@dataclass(frozen=True, slots=True)
class DeclaredChanges:
    """``added``: of pods without the gate that have none, because something else than a release removed it;
    ``removed``: UIDs of pods that have a session now, or do not exist any more."""

    known: DeclaredReservations
    added: tuple[DeclaredReservation, ...]
    removed: Set[str]

    @property
    def namespaces(self) -> set[str]:
        """Those whose sums change."""
        gone = {self.known.rows[uid].namespace for uid in self.removed}
        return {each.namespace for each in self.added} | gone | self.known.changed

    def within(self, namespace: str, span: Interval) -> int:
        """What the namespace's pods without a session reserve of the span after these changes."""
        return self.known.within(namespace, span, self.removed, self.added)


def changed_reservations(
    cluster: ClusterState, ledger: LedgerState, session_changes: SessionChanges, now_ms: int
) -> DeclaredChanges:
    """Call it after sessions were opened and the pods without a node were counted."""

    def has_session(uid: str) -> bool:
        return uid in session_changes.sessions or uid in ledger.folded or ledger.session(uid) is not None

    using = {each for new in session_changes.sessions.values() for each in new.consumers.split()}

    def is_over(uid: str) -> bool:
        pod, user = charged_pod(cluster.pods, uid), claim_user(cluster.pods, uid)
        if pod is None and user is not None and user.node and user.uses.gone_ms is None:
            # its claims reserve from now on, once they are seen: the watches are independent
            is_early = now_ms - (user.hold.bound_ms or 0) < PATIENCE_MS
            return user.hold.over or not is_early or uid in using or uid in ledger.claim_users
        return pod is None or not (pod.node or pod.can_be_bound)

    rows, waits = ledger.declared.rows, ledger.without_node
    removed = frozenset(uid for uid in rows if has_session(uid) or is_over(uid))

    def added() -> Iterator[DeclaredReservation]:
        for uid in waits.declaring - rows.keys():
            pod = charged_pod(cluster.pods, uid)
            if pod is not None and not has_session(uid) and not is_over(uid):
                rate_milli = waits.most_rate(pod)
                yield DeclaredReservation(
                    uid, pod.namespace, pod.name, rate_milli, pod.length_ms, now_ms // 1000 * 1000
                )

    return DeclaredChanges(ledger.declared, tuple(added()), removed)
