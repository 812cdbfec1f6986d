"""Sessions in pages, with their charges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    cast,
    column,
    false,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

from timekeeper.accounts.session import CLAIMS, Session, stored
from timekeeper.accounts.statements import Part
from timekeeper.core.ledger.charged import NEVER, EvidenceColumns, charged
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import HEARTBEATS, NODES, POSTINGS, SESSIONS


def json_text(rows: Iterable[Any]) -> str:
    """The rows as the text of one parameter."""
    return orjson.dumps(list(rows)).decode()


def json_rows(
    dialect: str, name: str, columns: Mapping[str, type[TypeEngine[Any]]], document: ColumnElement[str]
) -> CTE:
    """The rows of a `json_text` as the table ``name``; each is a tuple in the order of the columns, which are
    given with their types. Each value is read once, and not for each row that it is compared with."""
    if dialect == "postgresql":
        given = func.json_array_elements(cast(document, JSON)).table_valued(column("value", JSON))
        values: list[ColumnElement[Any]] = [given.c.value.op("->>")(place) for place in range(len(columns))]
    else:
        given = func.json_each(document).table_valued("value")
        values = [func.json_extract(given.c.value, f"$[{place}]") for place in range(len(columns))]
    pairs = zip(columns.items(), values, strict=True)
    named = [cast(value, kind).label(each) for (each, kind), value in pairs]
    return select(*named).cte(name).prefix_with("MATERIALIZED")


Expression = ColumnElement[Any]

IS_OPEN = SESSIONS.c.settled_ms.is_(None)


def _evidences() -> EvidenceColumns:
    its = SESSIONS.c
    beats = select(func.max(HEARTBEATS.c.beat_ms)).where(HEARTBEATS.c.session_uid == shown_uid(its, its.uid))
    is_over = or_(its.ended_ms.is_not(None), its.vanished_ms.is_not(None))
    return EvidenceColumns(
        bound_ms=its.bound_ms,
        started_ms=func.coalesce(its.started_ms, 0),
        ended_ms=func.coalesce(its.ended_ms, NEVER),
        beat_ms=func.coalesce(beats.scalar_subquery(), 0),
        watermark_ms=func.coalesce(case((is_over, its.watermark_ms), else_=NODES.c.watermark_ms), 0),
        vanished_ms=func.coalesce(its.vanished_ms, NEVER),
        grace_ms=its.grace_ms,
        is_listed=false(),
    )


def _where(condition: Expression, one: Expression, other: Expression) -> Expression:
    return case((condition, one), else_=other)


def least(one: Expression, other: Expression) -> Expression:
    """The smaller of two values, of which none is NULL."""
    return _Least(one, other)


def greatest(one: Expression, other: Expression) -> Expression:
    """The larger of two values, of which none is NULL."""
    return _Greatest(one, other)


def shown_uid(rows: Any, uid: Expression) -> Expression:
    """The UID of a session; of one for a pod's CPU and memory, that of the pod's own: its heartbeats are of
    both, and reports show them as one pod. ``rows``: the columns of sessions, or of rolled-up ones."""
    return case((rows.kind == "host", func.coalesce(rows.owner_uid, uid)), else_=uid)


class _Least(GenericFunction[int]):
    """SQLite calls it min. As a CASE it would have each operand twice, and a nest of them grows without
    bound."""

    name, type, inherit_cache = "least", BigInteger(), True


class _Greatest(GenericFunction[int]):
    """SQLite calls it max."""

    name, type, inherit_cache = "greatest", BigInteger(), True


@compiles(_Least, "sqlite")
def _min(element: _Least, compiler: SQLCompiler, **more: Any) -> str:
    return f"min({compiler.process(element.clause_expr.element, **more)})"


@compiles(_Greatest, "sqlite")
def _max(element: _Greatest, compiler: SQLCompiler, **more: Any) -> str:
    return f"max({compiler.process(element.clause_expr.element, **more)})"


WITNESSED = SESSIONS.outerjoin(
    NODES, NODES.c.name == case((SESSIONS.c.kind == "claim", literal(CLAIMS)), else_=SESSIONS.c.node)
)
"""Sessions, each with its node's watermark, which `CHARGED` reads."""
CHARGED = charged(_evidences(), bindparam("now_ms", type_=BigInteger), least, greatest, _where)
"""What each is charged for at parameter ``now_ms``, if it is not settled."""


def open_charges(names: Iterable[str], *conditions: Expression) -> Select[Any]:
    """What open sessions that meet the conditions are charged for until parameter ``now_ms``, posted or not,
    as rows like those of postings, with these columns of the sessions."""
    its = SESSIONS.c
    interval = (its.bound_ms.label("from_ms"), CHARGED.end_ms.label("to_ms"))
    columns = (its.uid.label("session_uid"), its.namespace, its.rate_milli, *interval)
    return select(*columns, *(its[name] for name in names)).select_from(WITNESSED).where(IS_OPEN, *conditions)


def owed(start_ms: Expression, end_ms: Expression, *conditions: Expression) -> CTE:
    """What such sessions owe beyond what is posted, as rows like those of postings, with all that meet the
    time: their charges, and at the opposite rate what is posted of them."""
    its, charges = POSTINGS.c, open_charges((), *conditions).cte("charges").prefix_with("MATERIALIZED")
    taken_back = select(its.session_uid, its.namespace, -its.rate_milli, its.from_ms, its.to_ms)
    taken_back = taken_back.where(its.session_uid.in_(select(charges.c.session_uid)))
    taken_back = taken_back.where(its.from_ms < end_ms, its.to_ms > start_ms)
    return union_all(select(charges), taken_back).cte("owed")


def pending(connection: Connection, part: Part, now_ms: int) -> int:
    """What a namespace's open sessions owe for time inside the part beyond what is posted, in milli-GPU x
    milliseconds."""
    start_ms, end_ms = map(literal, part[1:])
    rows = owed(start_ms, end_ms, SESSIONS.c.namespace == part[0]).c
    length = greatest(least(rows.to_ms, end_ms) - greatest(rows.from_ms, start_ms), literal(0))
    found = select(func.coalesce(func.sum(rows.rate_milli * length), 0))
    return int(connection.execute(found, {"now_ms": now_ms}).scalar_one())


_HEARD_MS = 15_000  # a kubelet renews its Lease every ten seconds, and its agent's list counts until then


def _holds(now_ms: int) -> Expression:
    """Whether the pod holds its cards now: nothing says that it ended, and if its object was removed, its
    grace is not over, or its node's agent lists it."""
    its = SESSIONS.c
    is_there = or_(its.vanished_ms.is_(None), its.vanished_ms + its.grace_ms > now_ms - _HEARD_MS)
    return and_(IS_OPEN, its.ended_ms.is_(None), is_there)


_COLUMNS = tuple(SESSIONS.c[each.name] for each in fields(Session))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """A filter of sessions; an empty field matches any. ``state``: open or settled; of the open ones held, or
    ended; or all. ``span``: sessions that held cards at some time within it. ``after``: the UID after which
    the page begins. ``members``: those of these namespaces; None: of any."""

    namespace: str = ""
    node: str = ""
    state: str = "all"
    span: Interval | None = None
    after: str = ""
    members: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChargedSession:
    """A session with its posted amount and its pending amount beyond that. ``until_ms``: until when it is
    charged, as far as is known now; before its beginning: it is not charged."""

    session: Session
    posted: int
    pending: int
    until_ms: int

    @property
    def amount(self) -> int:
        """The charge, in milli-GPU x ms."""
        return self.posted + self.pending


def page(connection: Connection, which: SessionFilter, now_ms: int, limit: int) -> list[ChargedSession]:
    """Sessions ordered by UID."""
    found = select(SESSIONS.c.uid).where(SESSIONS.c.uid > which.after).order_by(SESSIONS.c.uid).limit(limit)
    if which.namespace:
        found = found.where(SESSIONS.c.namespace == which.namespace)
    if which.members is not None:
        found = found.where(SESSIONS.c.namespace.in_(which.members))
    if which.node:
        found = found.where(SESSIONS.c.node == which.node)
    holds = _holds(now_ms)
    states = {"open": IS_OPEN, "settled": ~IS_OPEN, "held": holds, "ended": and_(IS_OPEN, ~holds)}
    if which.state in states:
        found = found.where(states[which.state])
    if which.span is not None:
        is_after = or_(~CHARGED.closed, CHARGED.end_ms > which.span.start_ms)
        found = found.select_from(WITNESSED).where(SESSIONS.c.bound_ms < which.span.end_ms, is_after)
    return _charged_of(connection, found, now_ms)


def nodes_of(connection: Connection, namespace: str, now_ms: int) -> set[str]:
    """The nodes where pods of the namespace hold cards."""
    held = select(SESSIONS.c.node).where(SESSIONS.c.namespace == namespace, _holds(now_ms)).distinct()
    return set(connection.scalars(held))


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


def of_claim(
    connection: Connection, namespace: str, name: str, now_ms: int, most: int
) -> list[ChargedSession]:
    """The newest sessions of the namespace's claims with this name, oldest first."""
    return _claims(connection, namespace, SESSIONS.c.name == name, now_ms, most)


def used_by(connection: Connection, namespace: str, pod: str, now_ms: int, most: int) -> list[ChargedSession]:
    """The newest sessions of claims that were reserved for pods of this name, oldest first."""
    is_its = (literal(" ") + SESSIONS.c.users + literal(" ")).contains(f"/{pod} ", autoescape=True)
    return _claims(connection, namespace, is_its, now_ms, most)


def _claims(
    connection: Connection, namespace: str, which: ColumnElement[bool], now_ms: int, most: int
) -> list[ChargedSession]:
    its = SESSIONS.c
    found = select(its.uid).where(its.namespace == namespace, its.kind == "claim", which)
    newest = found.order_by(its.bound_ms.desc(), its.uid.desc()).limit(most)
    return _charged_of(connection, newest, now_ms)[::-1]


def doubts(connection: Connection, most: int) -> tuple[int, list[tuple[str, int]]]:
    """How many running sessions have a doubt, and the number of each, the most frequent first."""
    its, count = SESSIONS.c, func.count()
    is_running = and_(IS_OPEN, its.ended_ms.is_(None), its.vanished_ms.is_(None))
    found = select(its.doubt, count, func.sum(count).over()).where(is_running, its.doubt.is_not(None))
    ordered = found.group_by(its.doubt).order_by(count.desc(), its.doubt).limit(most)
    rows = connection.execute(ordered).all()
    return int(rows[0][2]) if rows else 0, [(doubt, number) for doubt, number, _ in rows]


def _charged_of(connection: Connection, found: Select[Any], now_ms: int) -> list[ChargedSession]:
    """The sessions with these UIDs, in this order. Evidence is read of these alone."""
    uids = connection.scalars(found, {"now_ms": now_ms}).all()
    if not uids:
        return []
    rows = connection.execute(_PAGE, {"uids": uids, "now_ms": now_ms})
    made = (
        ChargedSession(stored(*columns), int(posted), int(pending), int(until_ms))
        for *columns, posted, pending, until_ms in rows
    )
    by_uid = {charged_session.session.uid: charged_session for charged_session in made}
    return [by_uid[uid] for uid in uids]


def _page_query() -> Select[Any]:
    """The columns of sessions, what is posted of each, what it owes beyond that, and until when."""
    these = SESSIONS.c.uid.in_(bindparam("uids", expanding=True))
    rows = owed(literal(0), literal(FOREVER_MS), these).c
    pending = func.sum(rows.rate_milli * (rows.to_ms - rows.from_ms)).label("pending")
    owes = select(rows.session_uid, pending).group_by(rows.session_uid).subquery("owes")
    of_it = POSTINGS.c.session_uid == SESSIONS.c.uid
    posted = select(func.coalesce(func.sum(POSTINGS.c.amount), 0)).where(of_it).scalar_subquery()
    columns = (*_COLUMNS, posted, func.coalesce(owes.c.pending, 0), CHARGED.end_ms)
    every = WITNESSED.outerjoin(owes, owes.c.session_uid == SESSIONS.c.uid)
    return select(*columns).select_from(every).where(these)


_PAGE = _page_query()
