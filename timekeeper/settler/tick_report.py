"""Reports a tick as log lines and metrics."""

from collections import Counter
from collections.abc import Callable

from timekeeper import metrics
from timekeeper.accounts.changes import Changes
from timekeeper.core.budgets.policy import MODES
from timekeeper.runtime.log import log
from timekeeper.settler.budget_entries import BudgetNotice, EntryChanges
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.decide import TickDecision
from timekeeper.settler.state.ledger_state import LedgerState

_WORDS = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED")


def report(
    cluster: ClusterState,
    ledger: LedgerState,
    decision: TickDecision,
    read: EntryChanges,
    notify: Callable[[BudgetNotice], None],
    current_mode: str,
) -> None:
    """Log and count what was written. Called before the ledger state takes the changes in. ``current_mode``:
    the cluster's mode of admission after them."""
    for notice in read.notices:
        notify(notice)
    _sessions(decision)
    _postings(decision.changes)
    for grant in decision.changes.grants:
        log("granted", namespace=grant.subject, amount=grant.amount, kind=grant.kind, reason=grant.reason)
    for pod in cluster.unreadable.values():
        metrics.UNREADABLE_PODS.inc()
        log("pod-not-charged", level="warning", namespace=pod.namespace, pod=pod.name, problem=pod.problem)
    if cluster.unreadable_omitted:
        metrics.UNREADABLE_PODS.inc(cluster.unreadable_omitted)
        log(
            "pods-not-charged",
            level="warning",
            count=cluster.unreadable_omitted,
            reason="too many unreadable pods to name each",
        )
    if cluster.deletions_dropped:
        metrics.LOST_ENDS.inc(cluster.deletions_dropped)
        log(
            "pod-ends-lost",
            level="error",
            count=cluster.deletions_dropped,
            reason="the database was unreachable for too long",
        )
        cluster.deletions_dropped = 0
    if decision.statement_cache is not ledger.statement_cache:
        _standings(ledger, decision)
    metrics.EVIDENCE.set(len(ledger.sessions))
    metrics.BROKEN.set(len(ledger.errors))
    for mode in MODES:
        metrics.MODE.labels(mode).set(mode == current_mode)


def _sessions(decision: TickDecision) -> None:
    by: Counter[str] = Counter()
    for session in decision.changes.opened:
        doubt = decision.session_changes.doubts.get(session.uid)
        by["request" if doubt else "placement"] += 1
        log(
            "session-opened",
            namespace=session.namespace,
            pod=session.name,
            uid=session.uid,
            node=session.node,
            rate_milli=session.rate_milli,
            by_request_because=doubt or None,
        )
    for word, count in by.items():
        metrics.SESSIONS_OPENED.labels(word).inc(count)


def _postings(changes: Changes) -> None:
    by: Counter[str] = Counter()
    for posting in changes.postings:
        by[posting.kind] += 1
        log(
            "posted",
            namespace=posting.namespace,
            uid=posting.session_uid,
            kind=posting.kind,
            from_ms=posting.from_ms,
            to_ms=posting.to_ms,
            amount=posting.amount,
            reason=posting.reason,
        )
    for kind, count in by.items():
        metrics.POSTINGS.labels(kind).inc(count)


def _standings(ledger: LedgerState, decision: TickDecision) -> None:
    """Standings that changed. Only statements that were recomputed are compared: a few of thousands."""
    cache, standings = decision.statement_cache, ledger.standings
    made = cache.statements.namespaces
    for name in standings.keys() - made.keys():
        del standings[name]
    for name in sorted(cache.fresh & made.keys()):
        standing = made[name].standing
        if standings.get(name, standing) != standing:
            log("standing-changed", namespace=name, now=standing, before=standings[name])
        standings[name] = standing
    counts = Counter(standings.values())
    for word in _WORDS:
        metrics.STANDINGS.labels(word).set(counts[word])
