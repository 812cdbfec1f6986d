"""The ledger's rows as stored, ordered and streamed for the audit. Nothing here computes what the audit
checks."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Column, Select, func, select, union_all

from timekeeper.accounts.budget_history import BudgetEntry
from timekeeper.accounts.session import CLAIMS, kind_of
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import (
    DAY_MS,
    DAYS,
    FOLDED,
    GRANTS,
    HEARTBEATS,
    NODES,
    POSTINGS,
    PULSE,
    SESSIONS,
)
from timekeeper.store.engine.upgrade import by_bytes, streamed
from timekeeper.store.ledger import entries


class StoredSession(NamedTuple):
    """The columns of a session's row that determine its charge, and its placement."""

    uid: str
    namespace: str
    name: str
    node: str
    rate_milli: int
    bound_ms: int
    started_ms: int | None
    ended_ms: int | None
    vanished_ms: int | None
    grace_ms: int
    watermark_ms: int | None
    settled_ms: int | None
    folded_ms: int | None
    devices: str
    kind: str
    owner_uid: str

    @property
    def witness(self) -> str:
        """Whose watermark is its evidence: the node's, or that of all claims."""
        return CLAIMS if self.kind == "claim" else self.node


class StoredPosting(NamedTuple):
    """A posting's row with its stored amount."""

    session_uid: str
    sequence: int
    namespace: str
    from_ms: int
    to_ms: int
    rate_milli: int
    amount: int
    kind: str
    created_ms: int


class StoredRollup(NamedTuple):
    """A rolled-up row."""

    session_uid: str
    namespace: str
    from_ms: int
    to_ms: int
    rate_milli: int
    amount: int


class StoredGrant(NamedTuple):
    """A grant's row."""

    id: int
    subject: str
    period_start_ms: int
    period_end_ms: int
    amount: int
    kind: str
    actor: str
    idempotency_key: str
    created_ms: int
    group_key: str | None
    group_start_ms: int | None
    group_end_ms: int | None


class StoredDay(NamedTuple):
    """A namespace's day: the stored total, and the sum of its postings and rolled-up rows."""

    namespace: str
    day_ms: int
    kept: int
    summed: int


@dataclass(frozen=True, slots=True)
class PodRows:
    """All rows under one pod UID. ``beat_ms``: the latest heartbeat. ``doubtful_beats``: heartbeats dated
    after their receipt."""

    uid: str
    session: StoredSession | None
    postings: tuple[StoredPosting, ...]
    folded: tuple[StoredRollup, ...]
    beat_ms: int | None
    doubtful_beats: int


def pod_rows(connection: Connection) -> Iterator[PodRows]:
    """All rows, one pod UID at a time."""
    streams = (
        _stream(connection, 0, SESSIONS.c.uid, select(*_columns(SESSIONS, StoredSession))),
        _stream(
            connection,
            1,
            POSTINGS.c.session_uid,
            select(*_columns(POSTINGS, StoredPosting)),
            POSTINGS.c.sequence,
        ),
        _stream(
            connection, 2, FOLDED.c.session_uid, select(*_columns(FOLDED, StoredRollup)), FOLDED.c.from_ms
        ),
        _stream(
            connection,
            3,
            HEARTBEATS.c.session_uid,
            select(HEARTBEATS.c.session_uid, HEARTBEATS.c.beat_ms, HEARTBEATS.c.received_ms),
        ),
    )
    merged = heapq.merge(*streams, key=itemgetter(0, 1))
    for uid, found in groupby(merged, key=itemgetter(0)):
        rows: tuple[list[Any], ...] = ([], [], [], [])
        for _, kind, row in found:
            rows[kind].append(row)
        session = StoredSession._make(rows[0][0]) if rows[0] else None
        if session and not session.owner_uid:
            session = session._replace(owner_uid=kind_of(uid).owner_uid)
        yield PodRows(
            uid,
            session,
            tuple(map(StoredPosting._make, rows[1])),
            tuple(map(StoredRollup._make, rows[2])),
            _beat_ms(connection, session.owner_uid)
            if session and session.kind == "host"
            else max((row.beat_ms for row in rows[3]), default=None),
            sum(row.beat_ms > row.received_ms for row in rows[3]),
        )


def _beat_ms(connection: Connection, uid: str) -> int | None:
    """The latest heartbeat of the pod."""
    its = HEARTBEATS.c.session_uid == uid
    beat_ms: int | None = connection.scalar(select(func.max(HEARTBEATS.c.beat_ms)).where(its))
    return beat_ms


def _columns(table: Any, kind: Any) -> Iterator[Column[Any]]:
    return (table.c[name] for name in kind._fields)


def _stream(
    connection: Connection, kind: int, uid: Column[str], statement: Select[Any], *then: Column[Any]
) -> Iterator[tuple[str, int, Any]]:
    """Rows with their UID first, ordered by its bytes, which is Python's order too."""
    ordered = statement.order_by(by_bytes(connection, uid), *then)
    return ((row[0], kind, row) for row in streamed(connection, ordered))


def days(connection: Connection) -> Iterator[StoredDay]:
    """Each day that has a total or a charge, with both."""
    charges = union_all(*(_with_day(table) for table in (POSTINGS, FOLDED))).subquery()
    summed = select(charges.c.namespace, charges.c.day_ms, func.sum(charges.c.amount)).group_by(
        charges.c.namespace, charges.c.day_ms
    )
    kept = select(DAYS.c.namespace, DAYS.c.day_ms, DAYS.c.amount)
    merged = heapq.merge(
        _by_day(connection, 0, kept, DAYS.c), _by_day(connection, 1, summed, charges.c), key=itemgetter(0, 1)
    )
    for (namespace, day_ms), found in groupby(merged, key=itemgetter(0)):
        amounts = {kind: amount for _, kind, amount in found}
        yield StoredDay(namespace, day_ms, amounts.get(0, 0), amounts.get(1, 0))


def _with_day(table: Any) -> Select[Any]:
    """Each charge with its day's midnight."""
    day_ms = table.c.from_ms - table.c.from_ms % DAY_MS
    return select(table.c.namespace, day_ms.label("day_ms"), table.c.amount)


def _by_day(
    connection: Connection, kind: int, statement: Select[Any], columns: Any
) -> Iterator[tuple[tuple[str, int], int, int]]:
    ordered = statement.order_by(by_bytes(connection, columns.namespace), columns.day_ms)
    return (((row[0], int(row[1])), kind, int(row[2])) for row in streamed(connection, ordered))


def grants(connection: Connection) -> Iterator[StoredGrant]:
    """Every grant, account by account, in order of creation."""
    account = (by_bytes(connection, GRANTS.c.subject), GRANTS.c.period_start_ms, GRANTS.c.period_end_ms)
    statement = select(*_columns(GRANTS, StoredGrant)).order_by(*account, GRANTS.c.id)
    return map(StoredGrant._make, streamed(connection, statement))


def nodes(connection: Connection) -> dict[str, int]:
    """Each node's watermark."""
    rows = connection.execute(select(NODES.c.name, NODES.c.watermark_ms))
    return {row.name: row.watermark_ms for row in rows}


def newest_tick_ms(connection: Connection) -> int:
    """The settler's clock at its last tick; 0 if none ever wrote."""
    return connection.execute(select(PULSE.c.tick_ms)).scalar_one_or_none() or 0


def every_entry(connection: Connection) -> tuple[BudgetEntry, ...]:
    """Every entry that ever took effect, in order."""
    return tuple(entries(connection))


def posted_in(connection: Connection, namespace: str, from_ms: int, to_ms: int) -> int:
    """The amount posted and rolled up for a namespace between the two times."""
    total = 0
    for table in (POSTINGS, FOLDED):
        columns = (table.c.from_ms, table.c.to_ms, table.c.rate_milli)
        meets = (table.c.namespace == namespace, table.c.to_ms > from_ms, table.c.from_ms < to_ms)
        for row in streamed(connection, select(*columns).where(*meets)):
            total += row.rate_milli * (min(row.to_ms, to_ms) - max(row.from_ms, from_ms))
    return total
