"""Which sessions of CPU and memory open as pods are bound and resized, and when they end."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from timekeeper.accounts.host_sessions import ended_with, host_uid, recorded_host, recording, resized
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reserved import pod_uid
from timekeeper.accounts.session import Session, charged_host, host_share
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.request.host import DOMINANT_HOST
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.session_changes import SessionChanges
from timekeeper.settler.state.ledger_state import LedgerState


def follow_host(
    cluster: ClusterState,
    ledger: LedgerState,
    settings: BudgetSettings,
    now_ms: int,
    changes: SessionChanges,
) -> None:
    """Add to ``changes`` the sessions of CPU and memory that open or end. Call it after the sessions of the
    pods' cards have changed."""
    tick = _HostTick(cluster, ledger, settings, now_ms, changes)
    for uid, pod in changes.bound.items():
        tick.open(changes.sessions[uid], pod)
    for uid in cluster.changed_pods:
        tick.resize(cluster.pods[uid])
    for uid in [uid for uid in changes.sessions if uid in ledger.of_host or uid in changes.bound]:
        tick.end_with(changes.sessions[uid])


@dataclass(frozen=True, slots=True)
class _HostTick:
    cluster: ClusterState
    ledger: LedgerState
    settings: BudgetSettings
    now_ms: int
    changes: SessionChanges
    opened: dict[str, set[str]] = field(default_factory=dict)  # UID of a pod -> of its new ones

    def open(self, own: Session, pod: LedgerPod) -> None:
        """Of a pod that is charged from its binding on."""
        share = host_share(pod, self.cluster.cards(pod.node), self.cluster.allocatable(pod.node))
        self.changes.sessions[own.uid] = own = recording(own, share.requested)
        self._put(resized(own, (), charged_host(share, self.settings), own.bound_ms, self.now_ms))

    def resize(self, pod: LedgerPod) -> None:
        """Of a pod whose CPU or memory has changed, by the settings now. A pod whose session does not say
        what it requested, because another release opened it, is charged as it was until then."""
        own = self._session(pod.uid)
        if own is None or own.is_over or pod.ended_ms is not None:
            return
        before = recorded_host(own)
        is_charged = before is not None or self.settings.charge_by == DOMINANT_HOST
        is_known = pod.fixed_host is not None or pod.node in self.cluster.nodes
        if before == pod.host or not is_charged or not is_known:
            return
        self.changes.sessions[own.uid] = own = recording(own, pod.host)
        if before is None:
            return
        share = host_share(pod, self.cluster.cards(pod.node), self.cluster.allocatable(pod.node))
        rate_milli = charged_host(replace(share, requested=pod.host), self.settings)
        others = [session for session in self._others(own) if not session.is_over]
        self._put(resized(own, others, rate_milli, self._from_ms(own), self.now_ms))

    def end_with(self, own: Session) -> None:
        """The sessions of CPU and memory of a pod whose own session has changed end when that ends."""
        for other in self._others(own):
            before = self.ledger.session(other.uid)
            if own.is_over or (before is not None and before.is_over):
                self._put([ended_with(own, other)])

    def _others(self, own: Session) -> list[Session]:
        """The pod's sessions of CPU and memory, the oldest first."""
        mine = {*self.ledger.of_host.get(own.uid, ()), *self.opened.get(own.uid, ())}
        found = map(self._session, mine)
        return sorted((session for session in found if session), key=lambda session: session.bound_ms)

    def _from_ms(self, own: Session) -> int:
        """Now, at a moment at which no other session of the pod's CPU and memory began."""
        at_ms = max(self.now_ms, own.bound_ms)
        while self._session(host_uid(own.uid, at_ms)) is not None:
            at_ms += 1
        return at_ms

    def _session(self, uid: str) -> Session | None:
        return self.changes.sessions.get(uid) or self.ledger.session(uid)

    def _put(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if self._session(session.uid) is None:
                self.changes.open(session)
                self.opened.setdefault(pod_uid(session.uid), set()).add(session.uid)
            elif session != self._session(session.uid):
                self.changes.sessions[session.uid] = replace(session, settled_ms=None)
