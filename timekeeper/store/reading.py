"""What the ledger says: everything that settler and serving workers read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from sqlalchemy import Select, and_, case, func, select, true

from timekeeper.accounts.changes import Pulse
from timekeeper.accounts.grants import MANUAL, Granted
from timekeeper.accounts.history import Entry
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.accounts.usage import Charged
from timekeeper.core.ledger import Interval
from timekeeper.store.engine import Connection
from timekeeper.store.schema import (
    ENTRIES,
    ENTRY_ERRORS,
    GRANTS,
    HEARTBEATS,
    NODES,
    POSTINGS,
    PULSE,
    SESSIONS,
    STANDINGS,
    WAITING,
)

_CHUNK = 500  # names in one IN (...): far below what any database takes

_SESSION = tuple(each.name for each in fields(Session))
_POSTING = tuple(each.name for each in fields(Posting))

AccountKey = tuple[str, int, int]  # namespace, start and end of the account


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions by pod UID, and the postings of each in the order they were written."""

    sessions: dict[str, Session]
    posted: dict[str, tuple[Posting, ...]]


def entries(connection: Connection) -> tuple[Entry, ...]:
    """Every entry that ever took effect, in order."""
    rows = connection.execute(select(ENTRIES.c.key, ENTRIES.c.text, ENTRIES.c.from_ms).order_by(ENTRIES.c.id))
    return tuple(Entry(*row) for row in rows)


def entry_errors(connection: Connection) -> dict[str, str]:
    """What is wrong in the budget ConfigMaps, by key."""
    return _pairs(connection, select(ENTRY_ERRORS.c.key, ENTRY_ERRORS.c.sentence))


def unsettled(connection: Connection, namespace: str | None = None) -> Sessions:
    """The sessions that are not settled, of one namespace or of all."""
    of_it = true() if namespace is None else SESSIONS.c.namespace == namespace
    is_open = and_(SESSIONS.c.settled_ms.is_(None), of_it)
    sessions = _sessions(connection, select(*(SESSIONS.c[name] for name in _SESSION)).where(is_open))
    columns = (POSTINGS.c[name] for name in _POSTING)
    of_those = select(*columns).join(SESSIONS, SESSIONS.c.uid == POSTINGS.c.session_uid).where(is_open)
    return Sessions(sessions, _by_session(connection, of_those))


def sessions_of(connection: Connection, uids: Iterable[str]) -> Sessions:
    """The sessions of these pods that the ledger has, settled or not."""
    found = Sessions({}, {})
    for chunk in _chunks(sorted(uids)):
        sessions = select(*(SESSIONS.c[name] for name in _SESSION)).where(SESSIONS.c.uid.in_(chunk))
        found.sessions.update(_sessions(connection, sessions))
        postings = select(*(POSTINGS.c[name] for name in _POSTING)).where(POSTINGS.c.session_uid.in_(chunk))
        found.posted.update(_by_session(connection, postings))
    return found


def watermarks(connection: Connection) -> dict[str, int]:
    """Until when each node was heard."""
    return _pairs(connection, select(NODES.c.name, NODES.c.watermark_ms))


def beats(connection: Connection, since_ms: int = 0, namespace: str | None = None) -> dict[str, int]:
    """The latest heartbeat of each session that has one received since then, by pod UID."""
    latest = func.max(HEARTBEATS.c.beat_ms)
    found = select(HEARTBEATS.c.session_uid, latest).group_by(HEARTBEATS.c.session_uid)
    if since_ms:
        found = found.where(HEARTBEATS.c.received_ms >= since_ms)
    else:
        found = found.join(SESSIONS, SESSIONS.c.uid == HEARTBEATS.c.session_uid)
        found = found.where(SESSIONS.c.settled_ms.is_(None))
    if namespace is not None:
        found = found.where(SESSIONS.c.namespace == namespace)
    return _pairs(connection, found)


def granted(connection: Connection, now_ms: int) -> dict[AccountKey, Granted]:
    """What was granted for the accounts that have not ended."""
    by_hand = func.sum(case((GRANTS.c.kind == MANUAL, GRANTS.c.amount), else_=0))
    by_budget = func.sum(case((GRANTS.c.kind != MANUAL, GRANTS.c.amount)))
    account = (GRANTS.c.subject, GRANTS.c.period_start_ms, GRANTS.c.period_end_ms)
    sums = select(*account, by_budget, by_hand).where(GRANTS.c.period_end_ms > now_ms).group_by(*account)
    return {
        (subject, start, end): Granted(None if budget is None else int(budget), int(hand))
        for subject, start, end, budget, hand in connection.execute(sums)
    }


def posted_within(connection: Connection, namespace: str, span: Interval) -> int:
    """What is posted of the namespace for the time inside the span."""
    total = select(func.coalesce(func.sum(clipped(span)), 0)).where(
        POSTINGS.c.namespace == namespace, *inside(span)
    )
    return int(connection.execute(total).scalar_one())


def namespaces(connection: Connection) -> frozenset[str]:
    """Every namespace that ever had a session."""
    return frozenset(connection.execute(select(SESSIONS.c.namespace).distinct()).scalars())


def waiting(connection: Connection) -> dict[str, int]:
    """The rate of each namespace's admitted pods that have no node yet."""
    return _pairs(connection, select(WAITING.c.namespace, WAITING.c.rate_milli))


def newest_entry(connection: Connection) -> int:
    """A number that grows with each entry; 0 where there is none."""
    return int(connection.execute(select(func.coalesce(func.max(ENTRIES.c.id), 0))).scalar_one())


def revision(connection: Connection) -> str:
    """The revision of the standings document; empty before there is one."""
    return connection.execute(select(STANDINGS.c.revision)).scalar_one_or_none() or ""


def standings(connection: Connection) -> str:
    """The standings document as it is served. Only to be asked for where there is a revision."""
    return str(connection.execute(select(STANDINGS.c.body)).scalar_one())


def posted_by(
    connection: Connection, span: Interval, namespace: str | None, by_pod: bool
) -> list[tuple[Charged, int]]:
    """What was posted for the time inside the span, by namespace or by pod."""
    who = (
        SESSIONS.c.namespace,
        SESSIONS.c.name,
        SESSIONS.c.uid,
        SESSIONS.c.owner,
        SESSIONS.c.node,
        SESSIONS.c.models,
    )
    columns = who if by_pod else (POSTINGS.c.namespace,)
    sums = select(func.sum(clipped(span)), *columns).where(*inside(span)).group_by(*columns)
    if by_pod:
        sums = sums.join(SESSIONS, SESSIONS.c.uid == POSTINGS.c.session_uid)
    if namespace is not None:
        sums = sums.where(POSTINGS.c.namespace == namespace)
    return [(Charged(*who), int(amount)) for amount, *who in connection.execute(sums)]


def pulse(connection: Connection) -> Pulse | None:
    """When the settler last wrote; None where it never did."""
    columns = (PULSE.c.tick_ms, PULSE.c.decided_ms, PULSE.c.state)
    row = connection.execute(select(*columns)).one_or_none()
    return Pulse(*row) if row else None


def clipped(span: Interval) -> Any:
    """The SQL expression for the part of a posting's amount that lies inside the span."""
    start = case((POSTINGS.c.from_ms < span.start_ms, span.start_ms), else_=POSTINGS.c.from_ms)
    end = case((POSTINGS.c.to_ms > span.end_ms, span.end_ms), else_=POSTINGS.c.to_ms)
    return POSTINGS.c.rate_milli * (end - start)


def inside(span: Interval) -> tuple[Any, Any]:
    """The SQL conditions for a posting to meet the span."""
    return POSTINGS.c.to_ms > span.start_ms, POSTINGS.c.from_ms < span.end_ms


def _pairs(connection: Connection, statement: Select[Any]) -> dict[str, Any]:
    return {key: value for key, value in connection.execute(statement)}  # noqa: C416 -- rows, not tuples


def _sessions(connection: Connection, statement: Select[Any]) -> dict[str, Session]:
    return {row.uid: Session(*row) for row in connection.execute(statement)}


def _by_session(connection: Connection, statement: Select[Any]) -> dict[str, tuple[Posting, ...]]:
    ordered = statement.order_by(POSTINGS.c.session_uid, POSTINGS.c.sequence)
    found = (Posting(*row) for row in connection.execute(ordered))
    return {uid: tuple(each) for uid, each in groupby(found, key=lambda posting: posting.session_uid)}


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK))
