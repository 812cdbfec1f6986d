"""What namespaces were charged, as one SELECT for one time range or several: for reports without a session's
columns, where no budget entry changed within a range.

Each part is summed by namespace before anything is joined, so a price is looked up once a namespace.
Unsettled sessions are read once for all ranges.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    column,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)

from timekeeper.accounts.usage import DATED, ReportQuery
from timekeeper.store.engine.schema import DAYS, FOLDED, POSTINGS, SESSIONS
from timekeeper.store.reports.columns import ordered, without_index
from timekeeper.store.reports.parts import IN_ONE_DAY, OVER_DAYS, Shape
from timekeeper.store.sessions import due, greatest, least

Expression = ColumnElement[Any]
_Edge = tuple[Expression, Expression, Expression]  # its start, its end, and the end of its day


def totals_statement(dialect: str, asked: ReportQuery, dated: CTE, shape: Shape) -> Select[Any]:
    """The ordered lines of all time ranges, one range after another: the range's number, the columns, and the
    sums posted and pending. A range's bounds are parameters that end in its number."""
    every = union_all(*_Totals(dialect, asked, shape).parts()).subquery("parts")
    both = [func.sum(every.c[name]).label(name) for name in ("posted", "pending")]
    sums = select(every.c.number, every.c.namespace, *both).group_by(every.c.number, every.c.namespace)
    theirs = sums.subquery("totals")
    keys = {name: _key(dialect, asked, theirs.c.namespace, dated, name) for name in asked.columns}
    posted, pending = func.sum(theirs.c.posted), func.sum(theirs.c.pending)
    by_amount = {"gpuHours": [(posted + pending).asc()], "-gpuHours": [(posted + pending).desc()]}
    needed = [name for name in asked.columns if not (name == "group" and asked.group)]
    grouped = [keys[name] for name in needed]
    source = theirs.join(dated, _meets(theirs.c, dated, shape)) if {*needed} & {*DATED} else theirs
    found = select(theirs.c.number, *keys.values(), posted, pending).select_from(source)
    found = found.group_by(theirs.c.number, *grouped).having(or_(posted != 0, pending != 0))
    found = found.order_by(theirs.c.number, *by_amount.get(asked.order, []), *grouped)
    if shape.has_after:
        place = (bindparam(f"after_{number}", type_=Text) for number in range(len(keys)))
        found = found.where(tuple_(*keys.values()) > tuple_(*place))
    return found.limit(bindparam("most")) if shape.has_limit else found


def _key(dialect: str, asked: ReportQuery, namespace: Expression, dated: CTE, name: str) -> Expression:
    if name == "group" and asked.group:
        return literal(asked.group, Text).label(name)
    return ordered(dialect, namespace if name == "namespace" else dated.c[name])


def _meets(theirs: Any, dated: CTE, shape: Shape) -> Expression:
    """The namespace's price interval of each range; there is one, for none begins or ends within a range."""
    own = dated.c
    spans = map(_Span, range(shape.spans))
    during = (
        and_(theirs.number == each.number, own.from_ms < each.end, own.to_ms > each.start) for each in spans
    )
    return and_(own.namespace == theirs.namespace, or_(*during))


class _Span:
    """The parameters of a time range: see `reports.bounds_of`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.start, self.first, self.head_day = map(self._moment, ("start", "first", "head_day"))
        self.last, self.end, self.end_day = map(self._moment, ("last", "end", "end_day"))

    def _moment(self, name: str) -> Expression:
        return bindparam(f"{name}_{self.number}", type_=BigInteger)

    def length(self, start: Expression, end: Expression) -> Expression:
        """How much of an interval lies inside."""
        return greatest(least(end, self.end) - greatest(start, self.start), literal(0))


@dataclass(frozen=True)
class _Totals:
    dialect: str
    asked: ReportQuery
    shape: Shape

    def parts(self) -> list[Select[Any]]:
        """The selects whose union has all charges: number, namespace, posted, pending."""
        spans = [_Span(number) for number in range(self.shape.spans)]
        pending = self._pending(spans)
        parts = []
        for span in spans:
            edges = ((span.start, span.first, span.head_day), (span.last, span.end, span.end_day))
            parts.append(self._days(span))
            parts += [self._within(table, span, edge) for edge in edges for table in (POSTINGS, FOLDED)]
            parts += [self._long(span)] if self.shape.has_long else []
            amount = pending.c[f"pending_{span.number}"]
            here = select(literal(span.number).label("number"), pending.c.namespace, _none("posted"), amount)
            parts.append(here.where(*self._of_namespaces(pending.c.namespace, span.number)))
        return parts

    def _days(self, span: _Span) -> Select[Any]:
        """Whole days from their totals."""
        found = self._select(DAYS, DAYS.c.amount, span)
        return found.where(DAYS.c.day_ms >= span.first, DAYS.c.day_ms < span.last)

    def _within(self, table: Table, span: _Span, edge: _Edge) -> Select[Any]:
        """The rows of a day that the range cuts."""
        its, (start, end, end_day) = table.c, edge
        amount = its.rate_milli * (least(its.to_ms, end) - greatest(its.from_ms, start))
        found = self._select(table, amount, span)
        found = found.where(its.to_ms > start, its.from_ms < end, its.to_ms <= end_day)
        return found.where(IN_ONE_DAY) if table is POSTINGS else found

    def _long(self, span: _Span) -> Select[Any]:
        """Postings longer than a day, which no day's total contains."""
        its = POSTINGS.c
        found = self._select(POSTINGS, its.rate_milli * span.length(its.from_ms, its.to_ms), span)
        return found.where(OVER_DAYS, its.to_ms > span.start, its.from_ms < span.end)

    def _select(self, table: Table, amount: Expression, span: _Span) -> Select[Any]:
        posted = cast(func.sum(amount), BigInteger).label("posted")
        number = literal(span.number).label("number")
        found = select(number, table.c.namespace, posted, _none("pending")).group_by(self._unindexed(table))
        return found.where(*self._of_namespaces(table.c.namespace, span.number))

    def _unindexed(self, table: Table) -> Expression:
        """The namespace to group by: rows are found by their time, and few of them are sorted."""
        return table.c.namespace if table is DAYS else without_index(self.dialect, table.c.namespace)

    def _pending(self, spans: list[_Span]) -> CTE:
        """What unsettled sessions are charged in each range, less what is posted of it."""
        its, latest = SESSIONS.c, bindparam("latest", type_=BigInteger)
        # A session has no charge before its binding.
        is_early = its.bound_ms < latest
        columns = (its.uid, its.namespace, its.rate_milli)
        theirs = self._of_namespaces(its.namespace)
        sessions = due(literal(self.asked.now_ms), columns, its.rate_milli > 0, is_early, *theirs).c
        start, end = sessions.start_ms, sessions.end_ms
        charged = self._by_span(sessions, spans, start, end, 1).where(end > start)
        own = POSTINGS.c
        to_ms = without_index(self.dialect, own.to_ms)
        posted = self._by_span(own, spans, own.from_ms, to_ms, -1)
        posted = posted.where(own.session_uid.in_(select(sessions.uid)), own.from_ms < latest)
        return union_all(charged, posted).cte("pending")

    def _by_span(
        self, its: Any, spans: list[_Span], start: Expression, end: Expression, sign: int
    ) -> Select[Any]:
        """The charges of an interval of each row, by namespace, with a column for each range."""
        sums = (func.sum(sign * its.rate_milli * span.length(start, end)) for span in spans)
        named = (cast(each, BigInteger).label(f"pending_{number}") for number, each in enumerate(sums))
        return select(its.namespace, *named).group_by(its.namespace)

    def _of_namespaces(self, namespace: Expression, number: int | None = None) -> list[Expression]:
        """The conditions for only some namespaces' rows: of a range, or of any."""
        if self.asked.namespace is not None:
            return [namespace == self.asked.namespace]
        if not self.shape.is_some:
            return []
        name = "some" if number is None else f"some_{number}"
        if self.dialect == "postgresql":
            return [namespace == any_(bindparam(name, type_=ARRAY(Text)))]
        given = func.json_each(bindparam(name, type_=Text)).table_valued(column("value", Text))
        return [namespace.in_(select(given.c.value))]


def _none(name: str) -> Expression:
    return cast(literal(0), BigInteger).label(name)
