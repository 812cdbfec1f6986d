"""The charge of an unsettled session in SQL: `core.ledger.metering.witnessed` a second time, for reports and
balances that the database adds up."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    Text,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from timekeeper.accounts.balance import Rates
from timekeeper.accounts.statements import Part
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import HEARTBEATS, NODES, POSTINGS, SESSIONS
from timekeeper.store.queries.json_rows import json_rows, json_text

Expression = ColumnElement[Any]

_PART = {"namespace": Text, "start_ms": BigInteger, "end_ms": BigInteger}
_IS_OPEN = SESSIONS.c.settled_ms.is_(None)
_NOW_MS: ColumnElement[int] = bindparam("now_ms", type_=BigInteger)


@dataclass(frozen=True, slots=True)
class KnownSessions:
    """Sessions joined with the evidence outside their row: their node's watermark and their latest heartbeat.
    ``start``, ``end``: what an unsettled one is charged for now; a start of NULL, or an end not after the
    start, means no charge."""

    source: FromClause
    start: Expression
    end: Expression


@dataclass(frozen=True, slots=True)
class OpenSums:
    """Of a part, in milli-GPU x milliseconds: what its unsettled sessions owe beyond what is posted, and what
    they reserve of their declared time."""

    pending: int
    declared: int


def known(now_ms: Expression) -> KnownSessions:
    """Sessions with their evidence. A test compares the charge with ``witnessed`` for arbitrary evidence."""
    of_it = HEARTBEATS.c.session_uid == SESSIONS.c.uid
    beat_ms = select(func.max(HEARTBEATS.c.beat_ms)).where(of_it).scalar_subquery()
    source = SESSIONS.outerjoin(NODES, NODES.c.name == SESSIONS.c.node)
    return KnownSessions(source, *_due(now_ms, beat_ms))


def due(now_ms: Expression, columns: Iterable[Expression], *conditions: Expression) -> CTE:
    """The unsettled sessions that meet the conditions: these columns of theirs, and as ``start_ms`` and
    ``end_ms`` what each is charged for now; see `known`. Each expression is computed once for a session."""
    its = known(now_ms)
    found = select(*columns, its.start.label("start_ms"), its.end.label("end_ms")).select_from(its.source)
    return found.where(_IS_OPEN, *conditions).cte("due").prefix_with("MATERIALIZED")


def open_sums(
    connection: Connection, parts: Iterable[Part], now_ms: int
) -> tuple[dict[Part, OpenSums], dict[str, Rates]]:
    """The sums of the unsettled sessions in these parts, and the rates of their namespaces without waiting
    pods; what has no such session is absent. `accounts.balance.figures_of` computes the same from the
    sessions one by one, and a test compares both."""
    parts = sorted(parts)
    given = {"wanted": json_text(parts), "now_ms": now_ms}
    if connection.dialect.name == "postgresql":
        given["namespaces"] = sorted({namespace for namespace, _, _ in parts})
    found: dict[Part, OpenSums] = {}
    rates: dict[str, Rates] = {}
    for namespace, start_ms, end_ms, *each in connection.execute(_sums(connection.dialect.name), given):
        pending, declared, reserving, running = map(int, each)
        found[namespace, start_ms, end_ms] = OpenSums(pending, declared)
        rates[namespace] = Rates(reserving, running)
    return found, rates


@cache
def _sums(dialect: str) -> Select[Any]:
    """The rows of `open_sums`. Made once: to put it together takes longer than to run it."""
    wanted = json_rows(dialect, "wanted", _PART, bindparam("wanted", type_=Text))
    is_theirs = _is_of(dialect, wanted)
    live = _live(_NOW_MS, is_theirs)
    amounts = {
        "owed": live.c.rate_milli * _length(live.c.start_ms, live.c.end_ms, wanted),
        "declared": live.c.rate_milli
        * _length(greatest(live.c.bound_ms, live.c.seen_ms), live.c.until_ms, wanted),
        "reserving": live.c.reserving_milli,
        "running": live.c.running_milli,
    }
    key = (wanted.c.namespace, wanted.c.start_ms, wanted.c.end_ms)
    joined = wanted.join(live, live.c.namespace == wanted.c.namespace)
    added = (func.sum(amount).label(name) for name, amount in amounts.items())
    sums = select(*key, *added).select_from(joined).group_by(*key).subquery("sums")
    posted = _posted(wanted, is_theirs).subquery("posted")
    both = sums.outerjoin(posted, and_(*(sums.c[each.name] == posted.c[each.name] for each in key)))
    pending = sums.c.owed - func.coalesce(posted.c.amount, 0)
    columns = (*(sums.c[each.name] for each in key), pending, *(sums.c[name] for name in [*amounts][1:]))
    return select(*columns).select_from(both)


def _live(now_ms: Expression, *conditions: Expression) -> Subquery:
    """The unsettled sessions that meet the conditions: what each is charged for now, and until when it
    reserves; the rates that it reserves and runs at."""
    names = ("namespace", "rate_milli", "bound_ms", "ended_ms", "vanished_ms", "grace_ms")
    reserving = ("reserves_until_ms", "admitted_in_budget")
    its = due(now_ms, (SESSIONS.c[each] for each in (*names, *reserving)), *conditions).c
    gone_ms = its.vanished_ms + its.grace_ms
    is_closed = or_(its.ended_ms.is_not(None), and_(its.vanished_ms.is_not(None), gone_ms <= now_ms))
    counts = and_(~is_closed, its.reserves_until_ms.is_(None))
    start, end = its.start_ms, its.end_ms
    shown = (
        its.namespace,
        its.rate_milli,
        its.bound_ms,
        func.coalesce(start, 0).label("start_ms"),
        case((start.is_not(None), end), else_=0).label("end_ms"),
        case((start.is_not(None), greatest(start, end)), else_=0).label("seen_ms"),
        case((is_closed, 0), else_=func.coalesce(its.reserves_until_ms, 0)).label("until_ms"),
        case((and_(counts, its.admitted_in_budget), its.rate_milli), else_=0).label("reserving_milli"),
        case((and_(counts, start > 0), its.rate_milli), else_=0).label("running_milli"),
    )
    return select(*shown).subquery("live")


def _is_of(dialect: str, wanted: CTE) -> Expression:
    """Whether a session is of one of the wanted namespaces. PostgreSQL takes any list of JSON for a hundred
    rows, and would read all open sessions for one namespace; it counts an array's."""
    if dialect == "postgresql":
        return SESSIONS.c.namespace == any_(bindparam("namespaces", type_=ARRAY(Text)))
    return SESSIONS.c.namespace.in_(select(wanted.c.namespace))


def _posted(wanted: CTE, is_theirs: Expression) -> Select[Any]:
    """What is posted of unsettled sessions inside the parts."""
    its, key = POSTINGS.c, (wanted.c.namespace, wanted.c.start_ms, wanted.c.end_ms)
    theirs = wanted.join(SESSIONS, and_(_IS_OPEN, SESSIONS.c.namespace == wanted.c.namespace))
    theirs = theirs.join(POSTINGS, its.session_uid == SESSIONS.c.uid)
    amount = func.sum(its.rate_milli * _length(its.from_ms, its.to_ms, wanted)).label("amount")
    return select(*key, amount).select_from(theirs).where(is_theirs).group_by(*key)


def _length(start: Expression, end: Expression, wanted: CTE) -> Expression:
    """How much of the interval lies inside the part."""
    inside = least(end, wanted.c.end_ms) - greatest(start, wanted.c.start_ms)
    return greatest(inside, literal(0))


def _due(now_ms: Expression, beat_ms: Expression) -> tuple[Expression, Expression]:
    """``witnessed`` as SQL: the start and end of the charged interval now."""
    its, latest = SESSIONS.c, SESSIONS.c.bound_ms + SESSIONS.c.start_grace_ms
    start = case(
        (its.charge_from == "bound", its.bound_ms),
        (its.started_ms.is_not(None), least(its.started_ms, latest)),
        (latest <= now_ms, latest),
    )
    is_over = or_(its.ended_ms.is_not(None), its.vanished_ms.is_not(None))
    heard = func.coalesce(case((is_over, its.watermark_ms), else_=NODES.c.watermark_ms), 0)
    seen = greatest(func.coalesce(beat_ms, 0), heard)
    last = greatest(its.bound_ms, greatest(func.coalesce(its.started_ms, 0), seen))
    end = case(
        (its.ended_ms == 0, last),
        (its.ended_ms.is_not(None), its.ended_ms),
        (its.vanished_ms.is_not(None), least(its.vanished_ms + its.grace_ms, now_ms)),
        else_=least(now_ms, seen),
    )
    return start, end


def least(one: Expression, other: Expression) -> Expression:
    """The smaller of two values, of which none is NULL."""
    return _Least(one, other)


def greatest(one: Expression, other: Expression) -> Expression:
    """The larger of two values, of which none is NULL."""
    return _Greatest(one, other)


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
