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
    FromClause,
    Select,
    Text,
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
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

from timekeeper.accounts.session import CLAIMS, Session, stored
from timekeeper.accounts.statements import Part
from timekeeper.core.ledger.charged import NEVER, ChargedColumns, EvidenceColumns, charged
from timekeeper.core.ledger.metering import Interval, charge
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

_PART = {"namespace": Text, "start_ms": BigInteger, "end_ms": BigInteger}
_IS_OPEN = SESSIONS.c.settled_ms.is_(None)
_NOW_MS: ColumnElement[int] = bindparam("now_ms", type_=BigInteger)


@dataclass(frozen=True, slots=True)
class KnownSessions:
    """Sessions joined with the evidence outside their row: their node's watermark and their latest heartbeat.
    ``charged``: what an unsettled one is charged for now, from its binding."""

    source: FromClause
    charged: ChargedColumns


def known(now_ms: Expression) -> KnownSessions:
    """Sessions with their evidence, and their charges by `core.ledger.charged`."""
    its = SESSIONS.c
    beats = select(func.max(HEARTBEATS.c.beat_ms)).where(HEARTBEATS.c.session_uid == shown_uid(its, its.uid))
    witness = case((its.kind == "claim", literal(CLAIMS)), else_=its.node)
    is_over = or_(its.ended_ms.is_not(None), its.vanished_ms.is_not(None))
    evidences = EvidenceColumns(
        bound_ms=its.bound_ms,
        started_ms=func.coalesce(its.started_ms, 0),
        ended_ms=func.coalesce(its.ended_ms, NEVER),
        beat_ms=func.coalesce(beats.scalar_subquery(), 0),
        watermark_ms=func.coalesce(case((is_over, its.watermark_ms), else_=NODES.c.watermark_ms), 0),
        vanished_ms=func.coalesce(its.vanished_ms, NEVER),
        grace_ms=its.grace_ms,
        is_listed=false(),
    )
    source = SESSIONS.outerjoin(NODES, NODES.c.name == witness)
    return KnownSessions(source, charged(evidences, now_ms, least, greatest, _where))


def _where(condition: Expression, one: Expression, other: Expression) -> Expression:
    return case((condition, one), else_=other)


def due(now_ms: Expression, columns: Iterable[Expression], *conditions: Expression) -> CTE:
    """The unsettled sessions that meet the conditions: these columns of theirs; as ``start_ms`` and
    ``end_ms`` what each is charged for now; see `known`. Each expression is computed once for a session."""
    its = known(now_ms)
    now = [SESSIONS.c.bound_ms.label("start_ms"), its.charged.end_ms.label("end_ms")]
    found = select(*columns, *now).select_from(its.source)
    return found.where(_IS_OPEN, *conditions).cte("due").prefix_with("MATERIALIZED")


def pending(connection: Connection, part: Part, now_ms: int) -> int:
    """What the namespace's unsettled sessions owe for time inside the part beyond what is posted, in
    milli-GPU x milliseconds."""
    namespace, span, own = part[0], Interval(*part[1:]), POSTINGS.c
    its = due(literal(now_ms), (SESSIONS.c.uid, SESSIONS.c.rate_milli), SESSIONS.c.namespace == namespace).c
    charged = connection.execute(select(its.rate_milli, its.start_ms, its.end_ms))
    of_them = own.session_uid.in_(select(its.uid))
    posted = connection.execute(select(-own.rate_milli, own.from_ms, own.to_ms).where(of_them))
    found = ((rate_milli, Interval(*interval)) for rate_milli, *interval in (*charged, *posted))
    return sum(charge(rate_milli, interval.within(span)) for rate_milli, interval in found)


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


_HEARD_MS = 15_000  # a kubelet renews its Lease every ten seconds, and its agent's list counts until then


def _holds(now_ms: int) -> Expression:
    """Whether the pod holds its cards now: nothing says that it ended, and if its object was removed, its
    grace is not over, or its node's agent lists it."""
    its = SESSIONS.c
    is_there = or_(its.vanished_ms.is_(None), its.vanished_ms + its.grace_ms > now_ms - _HEARD_MS)
    return and_(_IS_OPEN, its.ended_ms.is_(None), is_there)


_COLUMNS = tuple(SESSIONS.c[each.name] for each in fields(Session))


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter of sessions; an empty field matches any. ``state``: open or settled; of the open ones held, or
    ended; or all. ``span``: sessions that held cards at some time within it. ``after``: the UID after which
    the page begins."""

    namespace: str = ""
    node: str = ""
    state: str = "all"
    span: Interval | None = None
    after: str = ""


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
    if which.node:
        found = found.where(SESSIONS.c.node == which.node)
    holds = _holds(now_ms)
    states = {"open": _IS_OPEN, "settled": ~_IS_OPEN, "held": holds, "ended": and_(_IS_OPEN, ~holds)}
    if which.state in states:
        found = found.where(states[which.state])
    if which.span is not None:
        its = known(literal(now_ms))
        is_after = or_(~its.charged.closed, its.charged.end_ms > which.span.start_ms)
        found = found.select_from(its.source).where(SESSIONS.c.bound_ms < which.span.end_ms, is_after)
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
    is_running = and_(_IS_OPEN, its.ended_ms.is_(None), its.vanished_ms.is_(None))
    found = select(its.doubt, count, func.sum(count).over()).where(is_running, its.doubt.is_not(None))
    ordered = found.group_by(its.doubt).order_by(count.desc(), its.doubt).limit(most)
    rows = connection.execute(ordered).all()
    return int(rows[0][2]) if rows else 0, [(doubt, number) for doubt, number, _ in rows]


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
    end_ms = all_known.charged.end_ms
    owed = case((_IS_OPEN, SESSIONS.c.rate_milli * (end_ms - SESSIONS.c.bound_ms)), else_=literal(0))
    of_it = POSTINGS.c.session_uid == SESSIONS.c.uid
    posted = select(func.coalesce(func.sum(POSTINGS.c.amount), 0)).where(of_it).scalar_subquery()
    return select(*_COLUMNS, owed, posted, end_ms).select_from(all_known.source).where(these)


def _charged(*row: Any) -> ChargedSession:
    *columns, owed, posted, until_ms = row
    session = stored(*columns)
    pending = int(owed) - int(posted) if session.settled_ms is None else 0
    return ChargedSession(session, int(posted), pending, int(until_ms))


_CHARGED = _charged_query()
