"""A usage report as one SELECT: postings and rolled-up rows, the pending part of open sessions, and measured
use.

Every part has the report's columns and all sums, clipped to one time range; the report is their union,
grouped. If the report needs a session's columns, rows are first summed by session, so each session is looked
up once and not once per row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
    union_all,
)

from timekeeper.accounts.usage import DATED, LABEL, ReportQuery, UsageSums
from timekeeper.store.engine.schema import (
    DAY_MS,
    FIGURES,
    FOLDED,
    MAP_HOURS,
    POSTINGS,
    SESSIONS,
    STRANDED,
)
from timekeeper.store.reports.columns import label_of, ordered, without_index
from timekeeper.store.sessions import due, greatest, least

_SUMS = tuple(each.name for each in fields(UsageSums) if each.name not in ("stranded", "known_ms"))
_ATTRIBUTES = {"pod": "name", "owner": "owner", "node": "node", "models": "models"}
_MEASURED = ("covered", "used", "by_node", "by_tenant")

# Written exactly like the partial index's condition: SQLite uses the index only then.
OVER_DAYS = text(f"postings.from_ms / {DAY_MS} <> (postings.to_ms - 1) / {DAY_MS}")
IN_ONE_DAY = text(f"postings.from_ms / {DAY_MS} = (postings.to_ms - 1) / {DAY_MS}")

Expression = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of statement that a time range needs, or several (``spans``).

    ``by_day``: stored day totals suffice, see `totals`. ``is_cut``: budget entries changed within the range,
    so rows are cut there. ``has_long``: it may contain postings longer than a day. ``is_some``: only
    namespaces in parameters ``some_0`` and on. ``has_after``: only lines after the key in parameters
    ``after_0`` and on. ``has_limit``: at most parameter ``most``. ``passed``: tables that SQLite scans row by
    row, without an index.
    """

    by_day: bool
    is_cut: bool
    has_long: bool
    is_some: bool
    has_after: bool
    has_limit: bool
    passed: frozenset[str]
    spans: int = 1


def needs_sessions(asked: ReportQuery) -> bool:
    """True if charges alone do not contain all requested columns."""
    return asked.with_use or asked.with_stranded or not set(asked.columns) <= {"namespace", *DATED}


def statement(dialect: str, asked: ReportQuery, dated: CTE, shape: Shape) -> Select[Any]:
    """The ordered lines, each with 0 (see `totals`), its columns and sums. The bounds are parameters, so one
    statement serves all steps of the same shape."""
    every = union_all(*_Parts(dialect, asked, dated, shape).parts()).subquery("parts")
    keys = [ordered(dialect, every.c[name]) for name in asked.columns]
    sums = {name: func.sum(every.c[name]) for name in _sums(asked)}
    by_amount = _ordered_by(asked, sums["posted"] + sums["pending"], sums.get("stranded"))
    known = [_known_ms()] if asked.with_stranded else []
    found = select(*[literal(0), *keys, *sums.values(), *known]).group_by(*keys).order_by(*by_amount, *keys)
    said = ("posted", "pending", "used", "stranded")
    found = found.having(or_(*(sums[name] != 0 for name in said if name in sums)))
    if shape.has_after:
        place = (bindparam(f"after_{number}", type_=Text) for number in range(len(keys)))
        found = found.where(tuple_(*keys) > tuple_(*place))
    return found.limit(bindparam("most")) if shape.has_limit else found


def _sums(asked: ReportQuery) -> tuple[str, ...]:
    return (*_SUMS, "stranded") if asked.with_stranded else _SUMS


def _ordered_by(asked: ReportQuery, amount: Expression, stranded: Expression | None) -> Iterable[Expression]:
    if asked.order == "-stranded" and stranded is not None:
        return (stranded.desc(),)
    return {"gpuHours": [amount.asc()], "-gpuHours": [amount.desc()]}.get(asked.order, ())


def _known_ms() -> Expression:
    """How much is known of the hours that begin in the range."""
    its = MAP_HOURS.c
    known = select(func.coalesce(func.sum(its.known_ms), 0)).where(its.hour_ms >= _START, its.hour_ms < _END)
    return known.scalar_subquery()


def _moment(name: str) -> Expression:
    return bindparam(name, type_=BigInteger)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of the time range in SQL; ``end_day``: the end of the day in which it ends."""

    start: Expression
    end: Expression
    end_day: Expression


_START, _END = map(_moment, ("start_0", "end_0"))
_WHOLE = _Stretch(_START, _END, _moment("end_day_0"))


@dataclass(frozen=True, slots=True)
class _Clip:
    """The part of a row's time inside the range and inside its price interval."""

    length: Expression
    meets: tuple[Expression, ...]


@dataclass(frozen=True)
class _Parts:
    dialect: str
    asked: ReportQuery
    dated: CTE
    shape: Shape

    def parts(self) -> list[Select[Any]]:
        """The selects whose union is the report."""
        if needs_sessions(self.asked):
            parts = [self._by_session(IN_ONE_DAY, _WHOLE), self._folded(_WHOLE), self._due()]
            parts += [self._by_session(OVER_DAYS, None)] if self.shape.has_long else []
            parts += self._figures() if self.asked.with_use else []
            return [*parts, self._stranded()] if self.asked.with_stranded else parts
        charged = [self._postings(IN_ONE_DAY, _WHOLE), self._folded(_WHOLE)]
        charged += [self._postings(OVER_DAYS, None)] if self.shape.has_long else []
        return [*charged, self._due(), self._owed_no_more()]

    # Which charges

    def _postings(self, which: Any, stretch: _Stretch | None) -> Select[Any]:
        """``stretch`` None: postings of any length, so no index bounds them from above."""
        clip = self._clip_of(POSTINGS, stretch)
        found = self._select(POSTINGS, {"posted": POSTINGS.c.rate_milli * clip.length}, POSTINGS)
        return self._narrow(found.where(which, *clip.meets), POSTINGS, stretch)

    def _by_session(self, which: Any, stretch: _Stretch | None) -> Select[Any]:
        """The same with the columns of their sessions. The posted part of an unsettled session is not pending
        any more: `_due` covers its whole time."""
        clip = self._clip_of(POSTINGS, stretch)
        amount = cast(func.sum(POSTINGS.c.rate_milli * clip.length), BigInteger).label("amount")
        source = self._with_terms(POSTINGS, POSTINGS, self.shape.is_cut)
        since = [self.dated.c.from_ms.label("since")] if self.shape.is_cut else []
        keys = [self._without_index(POSTINGS.c.session_uid), *since]
        sums = select(*keys, amount).select_from(source).where(which, *clip.meets).group_by(*keys)
        charged = self._narrow(sums, POSTINGS, stretch).subquery("charged")
        is_settled = SESSIONS.c.settled_ms.is_not(None)
        requested = charged.c.amount / SESSIONS.c.rate_milli * SESSIONS.c.requested_milli
        told = {
            "posted": charged.c.amount,
            "pending": case((is_settled, 0), else_=-charged.c.amount),
            "requested": case((is_settled, requested), else_=0),
        }
        both = charged.join(SESSIONS, SESSIONS.c.uid == charged.c.session_uid)
        found = self._select(SESSIONS, told, both)
        return found.where(self.dated.c.from_ms == charged.c.since) if self.shape.is_cut else found

    def _folded(self, stretch: _Stretch) -> Select[Any]:
        clip = self._clip_of(FOLDED, stretch)
        sums = {
            "posted": FOLDED.c.rate_milli * clip.length,
            "requested": FOLDED.c.requested_milli * clip.length,
        }
        return self._narrow(self._select(FOLDED, sums, FOLDED).where(*clip.meets), FOLDED, stretch)

    def _due(self) -> Select[Any]:
        """The whole charge of unsettled sessions."""
        its = SESSIONS.c
        bound_ms = least(its.bound_ms, func.coalesce(its.started_ms, its.bound_ms))
        theirs = [*self._of_namespaces(its.namespace), bound_ms < _END]  # evidence of later ones is not read
        named = {_ATTRIBUTES.get(each, each) for each in self.asked.columns if each not in DATED}
        named = {"labels" if each.startswith(LABEL) else each for each in named}
        columns = (its[each] for each in sorted({"namespace", "rate_milli", "requested_milli", *named}))
        sessions = due(literal(self.asked.now_ms), columns, its.rate_milli > 0, *theirs)
        start, end = sessions.c.start_ms, sessions.c.end_ms
        clip = self._clip(start, end, _WHOLE)
        sums = {
            "pending": sessions.c.rate_milli * clip.length,
            "requested": sessions.c.requested_milli * clip.length,
        }
        return self._select(sessions, sums, sessions).where(end > start, *clip.meets)

    def _owed_no_more(self) -> Select[Any]:
        """The posted part of unsettled sessions: it is not pending any more."""
        clip = self._clip(POSTINGS.c.from_ms, self._without_index(POSTINGS.c.to_ms), _WHOLE)
        found = self._select(POSTINGS, {"pending": -POSTINGS.c.rate_milli * clip.length}, POSTINGS)
        is_open = select(SESSIONS.c.uid).where(SESSIONS.c.settled_ms.is_(None))
        theirs = POSTINGS.c.session_uid.in_(self._narrow(is_open, SESSIONS, None))
        return found.where(theirs, *clip.meets)

    # Measured use

    def _figures(self) -> list[Select[Any]]:
        """Measured use of the hours that begin in the range, of present and rolled-up sessions."""
        measured = self._by_word()
        names = ("namespace", "name", "owner", "node", "models", "labels", "requested_milli")
        once = (func.min(FOLDED.c[name]).label(name) for name in names)
        both = measured.join(FOLDED, FOLDED.c.session_uid == measured.c.session_uid)
        theirs = self._narrow(select(*measured.c, *once).select_from(both), FOLDED, None)
        gone = theirs.group_by(*measured.c).subquery("gone")
        its = SESSIONS.join(measured, SESSIONS.c.uid == measured.c.session_uid)
        return [self._used(SESSIONS, measured, its), self._used(gone, gone, gone)]

    def _used(self, rows: FromClause, measured: FromClause, source: FromClause) -> Select[Any]:
        sums = {
            "measured": measured.c.covered * rows.c.requested_milli,
            "used": measured.c.used,
            "by_node_ms": measured.c.by_node,
            "by_tenant_ms": measured.c.by_tenant,
        }
        found = self._narrow(self._select(rows, sums, source), rows, None)
        if not self.shape.is_cut:
            return found
        clip = self._clip(measured.c.hour_ms, measured.c.hour_ms + 1, _WHOLE)
        return found.where(*clip.meets)

    def _by_word(self) -> CTE:
        """By session, and by hour if needed: the node agent's figures take precedence over the tenant's."""
        node = FIGURES.alias("by_node")
        same = and_(node.c.session_uid == FIGURES.c.session_uid, node.c.hour_ms == FIGURES.c.hour_ms)
        is_node = FIGURES.c.source == "node"
        hour_ms, is_best = self._its(FIGURES.c.hour_ms), ~exists().where(same, node.c.source == "node")
        which = and_(hour_ms >= _START, hour_ms < _END, or_(is_node, is_best))
        keys = [self._its(FIGURES.c.session_uid), *([FIGURES.c.hour_ms] if self.shape.is_cut else [])]
        values = (
            FIGURES.c.covered_ms,
            FIGURES.c.used_milli_ms,
            case((is_node, FIGURES.c.covered_ms), else_=0),
            case((is_node, 0), else_=FIGURES.c.covered_ms),
        )
        sums = (
            cast(func.sum(value), BigInteger).label(name)
            for name, value in zip(_MEASURED, values, strict=True)
        )
        found = select(*keys, *sums).select_from(FIGURES).where(which).group_by(*keys)
        if self.shape.is_some or self.asked.namespace is not None:
            of_sessions = self._narrow(select(SESSIONS.c.uid), SESSIONS, None)
            theirs = of_sessions.union_all(self._narrow(select(FOLDED.c.session_uid), FOLDED, None))
            found = found.where(FIGURES.c.session_uid.in_(theirs))
        return found.cte("measured")

    # Free cards that nobody could use

    def _stranded(self) -> Select[Any]:
        """Of the hours that begin in the range."""
        its = STRANDED.c
        found = self._narrow(self._select(STRANDED, {"stranded": its.amount}, STRANDED), STRANDED, None)
        found = found.where(its.hour_ms >= _START, its.hour_ms < _END)
        return found.where(*self._clip(its.hour_ms, its.hour_ms + 1, _WHOLE).meets)

    # With which columns

    def _select(self, rows: FromClause, sums: dict[str, Expression], source: FromClause) -> Select[Any]:
        keys = [self._key(rows, name).label(name) for name in self.asked.columns]
        amounts = [cast(sums.get(name, literal(0)), BigInteger).label(name) for name in _sums(self.asked)]
        return select(*keys, *amounts).select_from(self._with_terms(source, rows, self._needs_terms))

    @property
    def _needs_terms(self) -> bool:
        """Whether rows must be joined with price intervals. A group whose namespaces were in it throughout
        the time range is `Shape.is_some`, and its name is no column of theirs."""
        named = {"group"} if self.asked.group else set()
        return self.shape.is_cut or bool((set(DATED) - named) & set(self.asked.columns))

    def _with_terms(self, source: FromClause, rows: FromClause, has_dated: bool) -> FromClause:
        if not has_dated:
            return source
        own = self.dated.c
        meets = and_(own.from_ms < _END, own.to_ms > _START)
        return source.join(self.dated, and_(own.namespace == self._its(rows.c.namespace), meets))

    def _key(self, rows: FromClause, name: str) -> Expression:
        if name.startswith(LABEL):
            return label_of(self.dialect, rows.c.labels, name.removeprefix(LABEL))
        if name == "group" and self.asked.group:
            return literal(self.asked.group, Text)
        if name in DATED:
            return self.dated.c[name]
        if name == "uid":
            return rows.c.uid if "uid" in rows.c else rows.c.session_uid
        return rows.c[_ATTRIBUTES.get(name, name)]

    def _clip_of(self, table: Table, stretch: _Stretch | None) -> _Clip:
        is_whole = stretch is None or stretch is _WHOLE
        end = self._its(table.c.to_ms) if is_whole else table.c.to_ms
        return self._clip(table.c.from_ms, end, stretch or _WHOLE)

    def _clip(self, start: Expression, end: Expression, stretch: _Stretch) -> _Clip:
        """The part of a row's time inside the range and inside its price interval."""
        lower, upper = stretch.start, stretch.end
        meets: tuple[Expression, ...] = (end > lower, start < upper)
        if self.shape.is_cut:
            lower, upper = greatest(lower, self.dated.c.from_ms), least(upper, self.dated.c.to_ms)
            meets = (*meets, end > lower, start < upper)
        return _Clip(least(end, upper) - greatest(start, lower), meets)

    # Of which rows

    def _narrow(self, found: Select[Any], rows: FromClause, stretch: _Stretch | None) -> Select[Any]:
        """Only some namespaces' rows, and by index those of the range's days."""
        if stretch is not None:
            found = found.where(self._its(rows.c.to_ms) <= stretch.end_day)
        namespace: Expression = rows.c.namespace
        if rows is POSTINGS and stretch is None:
            namespace = self._without_index(namespace)  # rows over midnight have an index of their own
        return found.where(*self._of_namespaces(namespace))

    def _of_namespaces(self, namespace: Expression) -> list[Expression]:
        """The conditions for only some namespaces' rows."""
        if self.shape.is_some:
            return [self._is_some(namespace)]
        only = self.asked.namespace
        return [] if only is None else [namespace == only]

    def _its(self, found: Expression) -> Expression:
        """The column, for a table that SQLite scans."""
        table = getattr(found, "table", None)
        is_passed = isinstance(table, Table) and table.name in self.shape.passed
        return self._without_index(found) if is_passed else found

    def _without_index(self, found: Expression) -> Expression:
        return without_index(self.dialect, found)

    def _is_some(self, namespace: Expression) -> Expression:
        if self.dialect == "postgresql":
            return namespace == any_(bindparam("some_0", type_=ARRAY(Text)))
        given = func.json_each(bindparam("some_0", type_=Text)).table_valued(column("value", Text))
        return namespace.in_(select(given.c.value))


def sums_of(values: Iterable[Any]) -> UsageSums:
    """A row's sums; PostgreSQL returns them as decimals."""
    return UsageSums(*map(int, values))
