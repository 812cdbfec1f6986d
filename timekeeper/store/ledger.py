"""Queries that settler and serving workers share: entries, sessions, evidence, grants, sums, the standings
document."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import groupby
from sys import intern
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from timekeeper.accounts.budget_history import BudgetEntry
from timekeeper.accounts.changes import Pulse
from timekeeper.accounts.grants import GrantSums
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session, stored
from timekeeper.accounts.statements import AccountKey
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection, read_together
from timekeeper.store.engine.schema import (
    DAY_MS,
    DAYS,
    ENTRIES,
    ENTRY_ERRORS,
    FOLDED,
    GRANTS,
    HEARTBEATS,
    NODES,
    POSTINGS,
    PULSE,
    SESSIONS,
    STANDINGS,
    WAITING,
)
from timekeeper.store.grants import granted_where

_CHUNK = 500  # names in one IN (...): far below what any database takes
_LATELY = 1000  # grants; concurrent ones have numbers close to each other
_ROWS = 2000  # fetched at a time
_SHORT = 100  # characters
_FEW = 20  # accounts queried by name; above that, all namespaces of the span are summed at once

_SESSION = tuple(each.name for each in fields(Session))
_POSTINGS = select(*(POSTINGS.c[field.name] for field in fields(Posting))).order_by(
    POSTINGS.c.session_uid, POSTINGS.c.sequence
)

V = TypeVar("V")
Expression = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions by pod UID, and each one's postings in order of writing. ``folded``: UIDs of rolled-up
    sessions, so that none is opened a second time. ``beats``: the latest heartbeats, where they were read."""

    sessions: dict[str, Session]
    posted: dict[str, tuple[Posting, ...]]
    folded: set[str] = field(default_factory=set)
    beats: dict[str, int] = field(default_factory=dict)


def entries(connection: Connection, first: int = 0, last: int | None = None) -> Iterator[BudgetEntry]:
    """Every budget entry that ever took effect, in order, or those with these numbers. They are read in
    portions: the transaction does not stand still while its caller parses them."""
    its = ENTRIES.c
    chosen = its.id >= first if last is None else its.id.between(first, last)
    rows = _streamed(connection, select(its.key, its.text, its.from_ms).where(chosen).order_by(its.id))
    return (BudgetEntry(*row) for row in rows)


def entry_errors(connection: Connection) -> dict[str, str]:
    """The present errors of the budget ConfigMaps, by key."""
    return _pairs(connection, select(ENTRY_ERRORS.c.key, ENTRY_ERRORS.c.sentence))


def unsettled(connection: Connection, namespace: str | None = None) -> Sessions:
    """The unsettled sessions of one namespace, or of all."""
    of_it = true() if namespace is None else SESSIONS.c.namespace == namespace
    is_open = and_(SESSIONS.c.settled_ms.is_(None), of_it)
    open_sessions = select(*(SESSIONS.c[name] for name in _SESSION)).where(is_open)
    sessions = _sessions(_streamed(connection, open_sessions))
    of_those = _POSTINGS.join(SESSIONS, SESSIONS.c.uid == POSTINGS.c.session_uid).where(is_open)
    return Sessions(sessions, _by_session(_streamed(connection, of_those)))


def sessions_of(connection: Connection, uids: Iterable[str]) -> Sessions:
    """The ledger's sessions of these pods, settled or not, with their heartbeats."""
    found = Sessions({}, {})
    for chunk in chunks(sorted(uids)):
        sessions, postings, folded, latest = read_together(
            connection,
            (select(*(SESSIONS.c[name] for name in _SESSION)).where(SESSIONS.c.uid.in_(chunk)), None),
            (_POSTINGS.where(POSTINGS.c.session_uid.in_(chunk)), None),
            (select(FOLDED.c.session_uid).distinct().where(FOLDED.c.session_uid.in_(chunk)), None),
            (_latest_beats().where(HEARTBEATS.c.session_uid.in_(chunk)), None),
        )
        found.sessions.update(_sessions(sessions))
        found.posted.update(_by_session(postings))
        found.folded.update(uid for (uid,) in folded)
        found.beats.update(map(tuple, latest))
    return found


def existing(connection: Connection, uids: Iterable[str]) -> frozenset[str]:
    """Those of these UIDs that a session has, or had before it was rolled up."""
    found: set[str] = set()
    for chunk in chunks(sorted(uids)):
        found.update(connection.scalars(select(SESSIONS.c.uid).where(SESSIONS.c.uid.in_(chunk))))
        found.update(connection.scalars(select(FOLDED.c.session_uid).where(FOLDED.c.session_uid.in_(chunk))))
    return frozenset(found)


def names_of_claims(connection: Connection, names: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Those of these namespaces and names that a claim with a session has, or had before it was rolled up."""
    found: set[tuple[str, str]] = set()
    for chunk in chunks(sorted(names)):
        for its in (SESSIONS.c, FOLDED.c):
            of_them = and_(its.kind == "claim", tuple_(its.namespace, its.name).in_(chunk))
            rows = connection.execute(select(its.namespace, its.name).where(of_them))
            found.update((namespace, name) for namespace, name in rows)
    return frozenset(found)


def ends_of_claims(connection: Connection, names: Iterable[tuple[str, str]], since_ms: int) -> dict[str, int]:
    """The last end of each claim with one of these namespaces and names, by its UID, if it has ended since
    then."""
    its, found = SESSIONS.c, dict[str, int]()
    for chunk in chunks(sorted(names)):
        of_them = and_(its.kind == "claim", tuple_(its.namespace, its.name).in_(chunk))
        ended_ms = func.coalesce(its.ended_ms, its.vanished_ms)
        rows = select(its.owner_uid, ended_ms).where(of_them, ended_ms >= since_ms)
        found.update(_pairs(connection, rows.order_by(ended_ms)))
    return found


def watermarks(connection: Connection) -> dict[str, int]:
    """Each node's watermark: the time up to which its reports are known."""
    return _pairs(connection, select(NODES.c.name, NODES.c.watermark_ms))


def leaseless_nodes(connection: Connection) -> set[str]:
    """The nodes with pods that have never had a Lease."""
    return set(connection.scalars(select(NODES.c.name).where(NODES.c.leaseless)))


def gone_nodes(connection: Connection) -> dict[str, int]:
    """Since when the API server has no Node of these names, as the settler saw it."""
    its = NODES.c
    return _pairs(connection, select(its.name, its.gone_ms).where(its.gone_ms.is_not(None)))


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """``heard_ms``: until when the node was heard with a pod on it, None: never; ``gone_ms``: since when the
    API server has no such Node, None: it has it; ``is_held``: a pod on it has not ended."""

    heard_ms: int | None
    gone_ms: int | None
    is_held: bool


def node_times(connection: Connection, name: str) -> NodeTimes:
    """What is known of a node with this name."""
    its, of_it = NODES.c, SESSIONS.c
    row = connection.execute(select(its.watermark_ms, its.gone_ms).where(its.name == name)).first()
    is_over = or_(of_it.ended_ms.is_not(None), of_it.vanished_ms.is_not(None))
    held = select(of_it.uid).where(of_it.settled_ms.is_(None), ~is_over, of_it.node == name).limit(1)
    heard_ms, gone_ms = row or (None, None)
    return NodeTimes(heard_ms, gone_ms, connection.execute(held).first() is not None)


def _latest_beats() -> Select[tuple[str, int]]:
    return select(HEARTBEATS.c.session_uid, func.max(HEARTBEATS.c.beat_ms)).group_by(HEARTBEATS.c.session_uid)


_BEATS = _latest_beats()
# each session's latest heartbeat: those that were received since a moment, and those of unsettled sessions
NEW_BEATS = _BEATS.where(HEARTBEATS.c.received_ms >= bindparam("since_ms"))
ALL_BEATS = _BEATS.join(SESSIONS, SESSIONS.c.uid == HEARTBEATS.c.session_uid).where(
    SESSIONS.c.settled_ms.is_(None)
)


def beats(connection: Connection) -> dict[str, int]:
    """The latest heartbeat of each unsettled session, by pod UID."""
    return _pairs(connection, ALL_BEATS)


def granted(connection: Connection, now_ms: int) -> dict[AccountKey, GrantSums]:
    """The grants of the accounts that have not ended."""
    return granted_where(connection, GRANTS.c.period_end_ms > now_ms)


def _grants_mark() -> Select[Any]:
    newest = select(func.coalesce(func.max(GRANTS.c.id), 0)).scalar_subquery()
    last = func.coalesce(func.max(GRANTS.c.id), 0)
    return select(func.count(), last).where(GRANTS.c.id > newest - _LATELY)


# Two numbers that change with every added grant. A grant with a lower number can become visible later than
# one with a higher number, so the highest number alone is not enough.
GRANTS_MARK = _grants_mark()


def granted_of(connection: Connection, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
    """The grants of these accounts, ended or not. Accounts without a grant are absent."""
    wanted = set(keys)
    subjects = {subject for subject, _, _ in wanted}
    of_them = GRANTS.c.subject.in_(sorted(subjects)) if len(subjects) <= _FEW else true()
    found: dict[AccountKey, GrantSums] = {}
    for ends in chunks(sorted({end for _, _, end in wanted})):
        found |= granted_where(connection, GRANTS.c.period_end_ms.in_(ends), of_them)
    return {key: each for key, each in found.items() if key in wanted}


def last_granted(connection: Connection, before_ms: int) -> dict[str, Interval]:
    """Each subject's latest account that ended by then and has a grant, as a span."""
    subject, start, end = GRANTS.c.subject, GRANTS.c.period_start_ms, GRANTS.c.period_end_ms
    latest = select(subject, func.max(end).label("end")).where(end <= before_ms).group_by(subject).subquery()
    spans = select(subject, func.max(start), end).join(
        latest, and_(subject == latest.c.subject, end == latest.c.end)
    )
    return {name: Interval(*span) for name, *span in connection.execute(spans.group_by(subject, end))}


def newest_periods(connection: Connection) -> dict[str, Interval]:
    """Each subject's last account that its budget gave a grant."""
    subject, start, end = GRANTS.c.subject, GRANTS.c.period_start_ms, GRANTS.c.period_end_ms
    given = GRANTS.c.kind == "period"
    latest = select(subject, func.max(start).label("start")).where(given).group_by(subject).subquery()
    spans = select(subject, start, func.max(end)).join(
        latest, and_(subject == latest.c.subject, start == latest.c.start)
    )
    found = connection.execute(spans.where(given).group_by(subject, start))
    return {name: Interval(*span) for name, *span in found}


def posted_of(connection: Connection, keys: Iterable[AccountKey]) -> dict[AccountKey, int]:
    """The amount posted in each of these accounts. Accounts of the same span are read together."""
    by_span: dict[Interval, list[str]] = {}
    for namespace, start, end in keys:
        by_span.setdefault(Interval(start, end), []).append(namespace)
    asked = [_posted(span, names if len(names) <= _FEW else None) for span, names in by_span.items()]
    totals: dict[AccountKey, int] = {}
    for (span, names), rows in zip(by_span.items(), read_together(connection, *asked), strict=True):
        found = {name: int(total) for name, total in rows}
        totals |= {(name, span.start_ms, span.end_ms): found.get(name, 0) for name in names}
    return totals


def _posted(span: Interval, names: list[str] | None) -> tuple[Executable, dict[str, int]]:
    """Asks for sums by namespace, of these or of all. Whole days come from the stored day totals; rows are
    read only for days that the span cuts."""
    first, last = -(-span.start_ms // DAY_MS) * DAY_MS, span.end_ms // DAY_MS * DAY_MS
    cut = {first - DAY_MS} if span.start_ms < first else set()
    cut |= {last} if last < span.end_ms else set()
    days = {f"day_{place}": day for place, day in enumerate(sorted(cut))}
    given = {
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "first_ms": first,
        "last_ms": last,
        **days,
    }
    return _posted_query(len(days), None if names is None else tuple(names)), given


@lru_cache(64)
def _posted_query(days: int, names: tuple[str, ...] | None) -> Select[Any]:
    """For a span that cuts this number of days. Made once: to put it together takes longer than to run it."""
    start, end, first, last = map(_moment, ("start_ms", "end_ms", "first_ms", "last_ms"))
    whole = select(DAYS.c.namespace, DAYS.c.amount).where(DAYS.c.day_ms >= first, DAYS.c.day_ms < last)
    parts: list[tuple[Table, Select[Any]]] = [(DAYS, whole)]
    for day in (_moment(f"day_{place}") for place in range(days)):
        for table in (POSTINGS, FOLDED):
            in_day = (table.c.from_ms >= day, table.c.to_ms > day, table.c.to_ms <= day + DAY_MS)
            parts.append((table, _clipped(table, start, end).where(*in_day)))
    if names is not None:
        parts = [
            (table, each.where(or_(*(table.c.namespace == name for name in names)))) for table, each in parts
        ]
    every = union_all(*(each for _, each in parts)).subquery("parts")
    namespace, amount = every.c
    return select(namespace, func.sum(amount)).group_by(namespace)


def charges_since(
    connection: Connection, names: Sequence[str], since_ms: int
) -> Iterator[tuple[str, Interval, float]]:
    """The namespace, time and rate of what was posted of these namespaces, a few, since then. Of sessions
    that are rolled up each day's sum, as one rate throughout the day."""
    its, first_ms = POSTINGS.c, since_ms // DAY_MS * DAY_MS
    posted = select(its.namespace, its.from_ms, its.to_ms, its.rate_milli).where(its.namespace.in_(names))
    sums = select(DAYS.c.namespace, DAYS.c.day_ms, DAYS.c.amount).where(DAYS.c.namespace.in_(names))
    rest: dict[tuple[str, int], int] = {}
    # days first: what is rolled up between the two counts once
    for name, day_ms, amount in connection.execute(sums.where(DAYS.c.day_ms >= first_ms)):
        rest[name, day_ms] = amount
    for name, from_ms, to_ms, rate in connection.execute(posted.where(its.to_ms > first_ms)):
        day = name, from_ms // DAY_MS * DAY_MS
        rest[day] = rest.get(day, 0) - rate * (to_ms - from_ms)
        yield name, Interval(from_ms, to_ms), rate
    for (name, day_ms), amount in rest.items():
        if amount:
            yield name, Interval(day_ms, day_ms + DAY_MS), amount / DAY_MS


def _moment(name: str) -> Expression:
    return bindparam(name, type_=BigInteger)


def _clipped(table: Table, start_ms: Expression, end_ms: Expression) -> Select[Any]:
    """The part of each posting's (or rolled-up row's) amount inside the span, with its namespace."""
    start = case((table.c.from_ms < start_ms, start_ms), else_=table.c.from_ms)
    end = case((table.c.to_ms > end_ms, end_ms), else_=table.c.to_ms)
    found = select(table.c.namespace, (table.c.rate_milli * (end - start)).label("amount"))
    return found.where(table.c.to_ms > start_ms, table.c.from_ms < end_ms)


def namespaces(connection: Connection) -> frozenset[str]:
    """Every namespace that ever had a session. Rolled-up sessions leave charges by day."""
    columns = (DAYS.c.namespace, SESSIONS.c.namespace)  # apart: SQLite skips through each index
    return frozenset(name for each in columns for name in connection.scalars(select(each).distinct()))


def open_rates(connection: Connection, names: Iterable[str] | None = None) -> dict[str, int]:
    """The summed rate of each namespace's sessions that have not ended, as far as is known; of these
    namespaces, None: of all."""
    if names is not None:
        listed = chunks(sorted(names))
        found = (_open_rates(connection, SESSIONS.c.namespace.in_(each)) for each in listed)
        return {name: rate for each in found for name, rate in each.items()}
    return _open_rates(connection, true())


def rate_at(connection: Connection, names: Iterable[str], at_ms: int) -> int:
    """The summed rate of the sessions of these namespaces that were open in the second from then on."""
    its, total = SESSIONS.c, 0
    ended_ms = func.coalesce(its.ended_ms, its.vanished_ms, at_ms)
    for some in chunks(sorted(names)):
        open_then = its.namespace.in_(some), its.bound_ms < at_ms + 1000, ended_ms >= at_ms
        total += int(connection.execute(select(func.sum(its.rate_milli)).where(*open_then)).scalar() or 0)
    return total


def granted_since(connection: Connection, subject: str, span: Interval, at_ms: int) -> int:
    """What the account with this span was granted after that time."""
    its = GRANTS.c
    of_it = its.subject == subject, its.period_start_ms == span.start_ms, its.period_end_ms == span.end_ms
    since = select(func.sum(its.amount)).where(*of_it, its.created_ms > at_ms)
    return int(connection.execute(since).scalar() or 0)


def _open_rates(connection: Connection, which: Any) -> dict[str, int]:
    its = SESSIONS.c
    sums = select(its.namespace, func.sum(its.rate_milli)).group_by(its.namespace)
    is_open = which, its.settled_ms.is_(None), its.ended_ms.is_(None), its.vanished_ms.is_(None)
    return {name: int(rate) for name, rate in connection.execute(sums.where(*is_open))}


def waiting(connection: Connection, namespace: str | None = None) -> dict[str, int]:
    """The summed rate of admitted pods without a node, of this namespace, or of each."""
    of_it = true() if namespace is None else WAITING.c.namespace == namespace
    return _pairs(connection, select(WAITING.c.namespace, WAITING.c.rate_milli).where(of_it))


def newest_entry(connection: Connection) -> int:
    """A number that grows with each entry; 0 if there is none."""
    return int(connection.execute(select(func.coalesce(func.max(ENTRIES.c.id), 0))).scalar_one())


# The revision of the standings document, and the document as served, NULL where its revision is ``known``.
NEWEST_STANDINGS = select(
    STANDINGS.c.revision,
    case((STANDINGS.c.revision != bindparam("known", type_=Text), STANDINGS.c.body)).label("body"),
)


def pulse(connection: Connection) -> Pulse | None:
    """The settler's last write; None if it never wrote."""
    names = ("tick_ms", "decided_ms", "state", "claims", "watches", "device_claims")
    columns = [PULSE.c[name] for name in names]
    row = connection.execute(select(*columns)).one_or_none()
    if row is None:
        return None
    tick_ms, decided_ms, state, claims, watches, found = row
    return Pulse(tick_ms, decided_ms, state, claims, watches, found)


def first_ms(connection: Connection) -> int | None:
    """The first moment that is charged; None: nothing was yet."""
    found = (select(func.min(each)).scalar_subquery() for each in (SESSIONS.c.opened_ms, FOLDED.c.from_ms))
    return min((each for each in connection.execute(select(*found)).one() if each is not None), default=None)


def _pairs(connection: Connection, statement: Select[Any]) -> dict[str, Any]:
    return {key: value for key, value in connection.execute(statement)}  # noqa: C416 -- rows, not tuples


def _sessions(rows: Iterable[Any]) -> dict[str, Session]:
    found = (stored(*map(_shared, row)) for row in rows)
    return {session.uid: session for session in found}


def _by_session(rows: Iterable[Any]) -> dict[str, tuple[Posting, ...]]:
    """The rows come as `_POSTINGS` orders them."""
    found = (Posting(*map(_shared, row)) for row in rows)
    return {uid: tuple(each) for uid, each in groupby(found, key=lambda posting: posting.session_uid)}


def _streamed(connection: Connection, statement: Select[Any]) -> Iterator[Any]:
    """The rows in portions, so that a hundred thousand sessions are never in memory twice."""
    return iter(connection.execute(statement, execution_options={"yield_per": _ROWS}))


def _shared(value: Any) -> Any:
    """Intern short texts (UIDs, nodes, namespaces, owners, models): equal ones would otherwise be most of a
    session's memory."""
    return intern(value) if type(value) is str and len(value) < _SHORT else value


def chunks(names: list[V]) -> Iterator[list[V]]:
    """The names in order, in portions small enough for one IN (...)."""
    return (names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK))
