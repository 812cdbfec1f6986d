"""Ends of holds that extenders reported, kept for a day."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, and_, bindparam, delete, or_, select, text

from timekeeper.accounts.ends import ReportedEnd
from timekeeper.core.ledger.hold import PodHold
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import ENDS, SESSIONS
from timekeeper.store.ledger import chunks

KEPT_MS = 86_400_000

# The same SQL on both databases. Every replica reports what it saw: the first report of a removal counts,
# with the longest grace period that any of them knew, and the first word that the pod has left.
_ADD = text(
    "INSERT INTO ends (uid, namespace, name, node, bound_ms, is_over, ended_ms, reported_ms, witnessed_ms,"
    " grace_ms, deletion_ms, removed_ms, left_ms, received_ms)"
    " VALUES (:uid, :namespace, :name, :node, :bound_ms, :is_over, :ended_ms, :reported_ms, :witnessed_ms,"
    " :grace_ms, :deletion_ms, :removed_ms, :left_ms, :received_ms)"
    " ON CONFLICT (uid) DO UPDATE SET left_ms = COALESCE(ends.left_ms, excluded.left_ms),"
    " grace_ms = CASE WHEN excluded.grace_ms > ends.grace_ms THEN excluded.grace_ms ELSE ends.grace_ms END,"
    " received_ms = excluded.received_ms"
    " WHERE excluded.grace_ms > ends.grace_ms OR (ends.left_ms IS NULL AND excluded.left_ms IS NOT NULL)"
)
_COLUMNS = tuple(
    ENDS.c[name]
    for name in (
        *("uid", "namespace", "name", "node", "bound_ms", "is_over", "ended_ms", "reported_ms"),
        *("witnessed_ms", "grace_ms", "deletion_ms", "removed_ms", "left_ms"),
    )
)


def record(connection: Connection, ends: Iterable[ReportedEnd], received_ms: int) -> None:
    """Keep these, and drop what is older than `KEPT_MS`. A repeated report changes nothing."""
    rows = [_row(each, received_ms) for each in sorted(ends, key=lambda each: each.uid)]
    connection.execute(_ADD, rows)
    before = {"before": received_ms - KEPT_MS}
    connection.execute(delete(ENDS).where(ENDS.c.received_ms < bindparam("before")), before)


def _news() -> Select[Any]:
    its = SESSIONS.c
    is_unproved = or_(its.ended_ms.is_(None), its.ended_ms == 0)
    says_more = or_(ENDS.c.left_ms.is_not(None), ENDS.c.grace_ms > its.grace_ms)
    may_change = or_(its.vanished_ms.is_(None), its.was_unseen, and_(its.settled_ms.is_(None), says_more))
    within = ENDS.c.received_ms.between(bindparam("from_ms"), bindparam("to_ms"))
    return select(*_COLUMNS).join(SESSIONS, its.uid == ENDS.c.uid).where(within, is_unproved, may_change)


# The reports that were received in a span and may change a session: it has no proved end, and either no
# process of the ledger saw its removal, or its hold after that is only known now.
NEWS = _news()


def of(connection: Connection, uids: Iterable[str]) -> dict[str, ReportedEnd]:
    """The reports about these pods, by UID."""
    found: dict[str, ReportedEnd] = {}
    for chunk in chunks(sorted(uids)):
        found |= reported(connection.execute(select(*_COLUMNS).where(ENDS.c.uid.in_(chunk))))
    return found


def reported(rows: Iterable[Any]) -> dict[str, ReportedEnd]:
    """Such rows, by UID."""
    return {row.uid: _end(row) for row in rows}


def _end(row: Any) -> ReportedEnd:
    held = PodHold(
        bound_ms=row.bound_ms,
        over=row.is_over,
        ended_ms=row.ended_ms,
        reported_ms=row.reported_ms,
        witnessed_ms=row.witnessed_ms,
        grace_ms=row.grace_ms,
        asked_ms=row.grace_ms,  # perhaps: no column says for how long a deletion was requested
        deletion_ms=row.deletion_ms,
    )
    return ReportedEnd(row.uid, row.namespace, row.name, row.node, held, row.removed_ms, row.left_ms)


def _row(end: ReportedEnd, received_ms: int) -> dict[str, Any]:
    held = end.hold
    return {
        "uid": end.uid,
        "namespace": end.namespace,
        "name": end.name,
        "node": end.node,
        "bound_ms": held.bound_ms,
        "is_over": held.over,
        "ended_ms": held.ended_ms,
        "reported_ms": held.reported_ms,
        "witnessed_ms": held.witnessed_ms,
        "grace_ms": held.grace_ms,
        "deletion_ms": held.deletion_ms,
        "removed_ms": end.removed_ms,
        "left_ms": end.left_ms,
        "received_ms": received_ms,
    }
