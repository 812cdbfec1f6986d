"""Which sessions of CPU and memory open as pods are bound and resized, and when they end."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace

from timekeeper.accounts.host_sessions import ended_with, host_uid, recorded_host, resized
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reserved import pod_uid
from timekeeper.accounts.session import Session, host_share
from timekeeper.core.rating.nodes import NO_CARDS
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.request.host import HostAmount, HostShare
from timekeeper.settler.decide.stages import PodChanges, SessionChanges, TickFacts


def host_changes(facts: TickFacts, pods: PodChanges) -> SessionChanges:
    """The sessions of CPU and memory that open or end with those of the pods' cards."""
    cluster, changes = facts.cluster, SessionChanges()
    tick = _HostTick(cluster, facts.ledger, facts.settings, facts.now_ms, pods=pods, changes=changes)
    for uid, pod in pods.bound.items():
        tick.open(pods.sessions[uid], pod)
    for uid in cluster.changed_pods.keys() & pods.sessions.keys():
        tick.resize(pods.sessions[uid], cluster.pods[uid])
    for uid in [uid for uid in pods.sessions if uid in facts.ledger.of_host or uid in pods.bound]:
        tick.end_with(pods.sessions[uid])
    for uid in cluster.dated_again.keys() & pods.sessions.keys():
        tick.date_again(pods.sessions[uid])
    return changes


@dataclass(frozen=True, slots=True)
class _HostTick(TickFacts):
    _: KW_ONLY
    pods: PodChanges
    changes: SessionChanges
    opened: dict[str, set[str]] = field(default_factory=dict)  # UID of a pod -> of its new ones

    def open(self, own: Session, pod: LedgerPod) -> None:
        """Of a pod that is charged from its binding on."""
        self._put(resized(own, (), self._rate(self._share(pod)), own.bound_ms, self.now_ms))

    def resize(self, own: Session, pod: LedgerPod) -> None:
        """Of a pod whose CPU or memory has changed, by the settings now."""
        known, share = self.ledger.session(pod.uid), self._share(pod)
        if pod.uid in self.pods.bound:
            before: HostAmount | None = share.requested
        else:
            before = None if known is None else recorded_host(known)
        if before is None or before == recorded_host(own):
            return
        rate_milli = self._rate(replace(share, requested=pod.host))
        others = [session for session in self._others(own) if not session.is_over]
        self._put(resized(own, others, rate_milli, self._from_ms(own), self.now_ms))

    def end_with(self, own: Session) -> None:
        """The sessions of CPU and memory of a pod whose own session has changed end when that ends."""
        for other in self._others(own):
            before = self.ledger.session(other.uid)
            if own.is_over or (before is not None and before.is_over):
                self._put([ended_with(own, other)])

    def date_again(self, own: Session) -> None:
        """Those that have settled with the pod's former end have the same new end."""
        before = self.ledger.session(own.uid)
        for uid, other in self.ledger.settled.items():
            is_its = other.is_of_host and pod_uid(uid) == own.uid
            if is_its and before is not None and other.ended_ms == before.ended_ms:
                self._put([ended_with(own, other)])

    def _rate(self, share: HostShare) -> int:
        return rated(Demand(host=share), NO_CARDS, self.settings).rate_milli

    def _share(self, pod: LedgerPod) -> HostShare:
        return host_share(pod, self.cluster.cards(pod.node), self.cluster.allocatable(pod.node))

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
                self.changes.put(replace(session, settled_ms=None))
