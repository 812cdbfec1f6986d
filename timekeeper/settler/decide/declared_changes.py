"""Which reservations of declared time begin and end in a tick."""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.session_changes import SessionChanges
from timekeeper.settler.state.declared import DeclaredReservations
from timekeeper.settler.state.ledger_state import LedgerState


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

    def is_over(uid: str) -> bool:
        pod = cluster.pods.get(uid)
        return pod is None or not (pod.node or pod.can_be_bound)

    rows, waits = ledger.declared.rows, ledger.unbound_pods
    removed = frozenset(uid for uid in rows if has_session(uid) or is_over(uid))

    def added() -> Iterator[DeclaredReservation]:
        for uid in waits.declaring - rows.keys():
            pod = cluster.pods.get(uid)
            if pod is not None and not has_session(uid) and not is_over(uid):
                rate_milli = waits.most_rate(pod)
                yield DeclaredReservation(
                    uid, pod.namespace, pod.name, rate_milli, pod.length_ms, now_ms // 1000 * 1000
                )

    return DeclaredChanges(ledger.declared, tuple(added()), removed)
