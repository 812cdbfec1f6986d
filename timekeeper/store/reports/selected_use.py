"""What pods that a budget entry's ``protect`` selects have used in a period, by controller and labels."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, FromClause, Select, bindparam, func, select, union_all

from timekeeper.accounts.protection import selects
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import FOLDED, POSTINGS, SESSIONS
from timekeeper.store.sessions import greatest, least, owed

PodsAmount = tuple[str, str, int]  # controller as ``Kind/name``, labels as canonical JSON, amount

_START, _END = (bindparam(name, type_=BigInteger) for name in ("start_ms", "end_ms"))


def posted_by_pods(connection: Connection, namespace: str, span: Interval) -> list[PodsAmount]:
    """What is posted for the namespace's time inside the span."""
    return _rows(connection, _POSTED, namespace, span)


def used(connection: Connection, namespace: str, span: Interval, protection: Protection, now_ms: int) -> int:
    """What the selected pods have used inside the span until now: posted and pending."""
    rows = _rows(connection, _USED, namespace, span, now_ms=now_ms)
    return sum(amount for owner, labels, amount in rows if selects(protection, owner, labels))


def rate(connection: Connection, namespace: str, protection: Protection) -> int:
    """The summed rate of the selected pods that hold cards, as far as is known."""
    rows = connection.execute(_RATES, {"namespace": namespace})
    return sum(int(rate) for owner, labels, rate in rows if selects(protection, owner, labels))


def _rows(
    connection: Connection, query: Select[Any], namespace: str, span: Interval, **more: int
) -> list[PodsAmount]:
    given = {"namespace": namespace, "start_ms": span.start_ms, "end_ms": span.end_ms, **more}
    return [(owner, labels, int(amount)) for owner, labels, amount in connection.execute(query, given)]


def _clipped(table: FromClause, owners: FromClause) -> Select[Any]:
    """The part of each row's amount inside the span, with the controller and labels of its pod."""
    inside = least(table.c.to_ms, _END) - greatest(table.c.from_ms, _START)
    found = select(owners.c.owner, owners.c.labels, (table.c.rate_milli * inside).label("amount"))
    is_theirs = table.c.namespace == bindparam("namespace")
    return found.where(is_theirs, table.c.to_ms > _START, table.c.from_ms < _END)


def _summed(parts: Iterable[Select[Any]]) -> Select[Any]:
    every = union_all(*parts).subquery("parts")
    owner, labels, amount = every.c
    return select(owner, labels, func.sum(amount)).group_by(owner, labels)


def _of_sessions(rows: FromClause) -> Select[Any]:
    return _clipped(rows, SESSIONS).where(rows.c.session_uid == SESSIONS.c.uid)


_OWED = owed(_START, _END, SESSIONS.c.namespace == bindparam("namespace"))
_CHARGES = (_of_sessions(POSTINGS), _clipped(FOLDED, FOLDED))
_POSTED = _summed(_CHARGES)
_USED = _summed((*_CHARGES, _of_sessions(_OWED)))
_RATES = (
    select(SESSIONS.c.owner, SESSIONS.c.labels, func.sum(SESSIONS.c.rate_milli))
    .where(
        SESSIONS.c.namespace == bindparam("namespace"),
        SESSIONS.c.settled_ms.is_(None),
        SESSIONS.c.ended_ms.is_(None),
        SESSIONS.c.vanished_ms.is_(None),
    )
    .group_by(SESSIONS.c.owner, SESSIONS.c.labels)
)
