"""Sessions in pages, with their charges."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, bindparam, case, func, literal, or_, select

from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import HEARTBEATS, POSTINGS, SESSIONS
from timekeeper.store.queries.unsettled import greatest, known

_COLUMNS = tuple(SESSIONS.c[each.name] for each in fields(Session))


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter of sessions; an empty field matches any. ``state``: open, settled or all. ``span``: sessions
    that held cards at some time within it. ``after``: the UID after which the page begins."""

    namespace: str = ""
    node: str = ""
    state: str = "all"
    span: Interval | None = None
    after: str = ""


@dataclass(frozen=True, slots=True)
class ChargedSession:
    """A session with its posted amount and its pending amount beyond that."""

    session: Session
    posted: int
    pending: int


def page(connection: Connection, which: SessionFilter, now_ms: int, limit: int) -> list[ChargedSession]:
    """Sessions ordered by UID."""
    found = select(SESSIONS.c.uid).where(SESSIONS.c.uid > which.after).order_by(SESSIONS.c.uid).limit(limit)
    if which.namespace:
        found = found.where(SESSIONS.c.namespace == which.namespace)
    if which.node:
        found = found.where(SESSIONS.c.node == which.node)
    if which.state != "all":
        is_open = SESSIONS.c.settled_ms.is_(None)
        found = found.where(is_open if which.state == "open" else ~is_open)
    if which.span is not None:
        known = func.coalesce(SESSIONS.c.ended_ms, SESSIONS.c.vanished_ms + SESSIONS.c.grace_ms)
        ended = case((SESSIONS.c.ended_ms == 0, _last_evidence()), else_=known)
        is_after = or_(ended.is_(None), ended > which.span.start_ms)
        found = found.where(SESSIONS.c.bound_ms < which.span.end_ms, is_after)
    return _charged_of(connection, found, now_ms)


def of_pods(
    connection: Connection,
    namespace: str,
    name: str,
    owners: Sequence[str],
    uid: str,
    now_ms: int,
    limit: int,
) -> list[ChargedSession]:
    """The newest sessions of a namespace's pods with this name, one of these owners, and this UID (empty:
    any), oldest first."""
    wanted = {SESSIONS.c.name: name, SESSIONS.c.uid: uid}
    found = select(SESSIONS.c.uid).where(SESSIONS.c.namespace == namespace)
    found = found.where(*(column == value for column, value in wanted.items() if value))
    if owners:
        found = found.where(SESSIONS.c.owner.in_(owners))
    newest = found.order_by(SESSIONS.c.bound_ms.desc(), SESSIONS.c.uid.desc()).limit(limit)
    return _charged_of(connection, newest, now_ms)[::-1]


def _charged_of(connection: Connection, found: Select[Any], now_ms: int) -> list[ChargedSession]:
    """The sessions with these UIDs, in this order. Evidence is read of these alone."""
    uids = connection.execute(found).scalars().all()
    if not uids:
        return []
    charged = (_charged(*row) for row in connection.execute(_CHARGED, {"uids": uids, "now_ms": now_ms}))
    by_uid = {each.session.uid: each for each in charged}
    return [by_uid[uid] for uid in uids]


def _charged_query() -> Select[Any]:
    """The columns of sessions, each with the charge of an unsettled one until now, and what is posted."""
    these = SESSIONS.c.uid.in_(bindparam("uids", expanding=True))
    all_known = known(bindparam("now_ms", type_=BigInteger))
    start, end = all_known.start, all_known.end
    is_owed = and_(SESSIONS.c.settled_ms.is_(None), end > start)
    owed = case((is_owed, SESSIONS.c.rate_milli * (end - start)), else_=literal(0))
    of_it = POSTINGS.c.session_uid == SESSIONS.c.uid
    posted = select(func.coalesce(func.sum(POSTINGS.c.amount), 0)).where(of_it).scalar_subquery()
    return select(*_COLUMNS, owed, posted).select_from(all_known.source).where(these)


def _last_evidence() -> ColumnElement[int]:
    """The end of a session that ended at an unknown time: its last evidence, as in
    `core.ledger.metering.witnessed`."""
    its = SESSIONS.c
    beats = select(func.max(HEARTBEATS.c.beat_ms)).where(HEARTBEATS.c.session_uid == its.uid)
    last: ColumnElement[int] = its.bound_ms
    for each in (its.started_ms, its.watermark_ms, beats.scalar_subquery()):
        last = greatest(last, func.coalesce(each, 0))
    return last


def _charged(*row: Any) -> ChargedSession:
    *columns, owed, posted = row
    session = Session(*columns)
    return ChargedSession(session, int(posted), int(owed) - int(posted) if session.settled_ms is None else 0)


_CHARGED = _charged_query()
