"""What a tick did, as lines in the log and as figures."""

from collections import Counter
from collections.abc import Callable

from timekeeper import metrics
from timekeeper.accounts.changes import Changes
from timekeeper.runtime.log import log
from timekeeper.settler.budget_entries import BudgetNotice, EntryChanges
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.decide import TickDecision
from timekeeper.settler.state.ledger_state import LedgerState

_WORDS = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED")


def report(
    world: ClusterState,
    book: LedgerState,
    decision: TickDecision,
    read: EntryChanges,
    tell: Callable[[BudgetNotice], None],
) -> None:
    """Log and count what was written, before the book takes it in."""
    for notice in read.notices:
        tell(notice)
    _sessions(decision)
    _postings(decision.changes)
    for grant in decision.changes.grants:
        log("granted", namespace=grant.subject, amount=grant.amount, kind=grant.kind, reason=grant.reason)
    for pod in world.unreadable.values():
        metrics.UNREADABLE_PODS.inc()
        log("pod-not-charged", level="warning", namespace=pod.namespace, pod=pod.name, problem=pod.problem)
    if world.unnamed:
        metrics.UNREADABLE_PODS.inc(world.unnamed)
        log(
            "pods-not-charged",
            level="warning",
            count=world.unnamed,
            reason="more than are named at once cannot be read",
        )
    if world.lost:
        metrics.LOST_ENDS.inc(world.lost)
        log("pod-ends-lost", level="error", count=world.lost, reason="the database was away for too long")
        world.lost = 0
    if decision.kept is not book.kept:
        _standings(book, decision)
    metrics.EVIDENCE.set(len(book.sessions))
    metrics.BROKEN.set(len(book.errors))


def _sessions(decision: TickDecision) -> None:
    by: Counter[str] = Counter()
    for session in decision.changes.opened:
        doubt = decision.moved.doubts.get(session.uid)
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


def _standings(book: LedgerState, decision: TickDecision) -> None:
    """Of thousands of namespaces, those whose statements were made anew."""
    kept, standings = decision.kept, book.standings
    made = kept.statements.namespaces
    for name in standings.keys() - made.keys():
        del standings[name]
    for name in sorted(kept.fresh & made.keys()):
        standing = made[name].standing
        if standings.get(name, standing) != standing:
            log("standing-changed", namespace=name, now=standing, before=standings[name])
        standings[name] = standing
    counts = Counter(standings.values())
    for word in _WORDS:
        metrics.STANDINGS.labels(word).set(counts[word])
