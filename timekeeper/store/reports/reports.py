"""Reads usage reports, each one SELECT whose parts the database adds up, so a large report needs no memory
here.

A page costs as much as it holds: if lines begin with their namespace, namespaces are read in growing portions
until the page is full.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    FromClause,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)

from timekeeper.accounts.usage import DATED, PriceInterval, ReportLine, ReportQuery, UsageSums
from timekeeper.core.ledger.metering import Interval
from timekeeper.store import ledger
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DAY_MS, FIGURES, FOLDED, POSTINGS
from timekeeper.store.reports.busy_times import busy_statement
from timekeeper.store.reports.columns import dated, ordered
from timekeeper.store.reports.parts import Parts
from timekeeper.store.reports.shape import Shape, Span, needs_sessions, sums_in

Expression = ColumnElement[Any]

_AT_ONCE = 1_000  # rows in memory at a time
_FEW, _MANY = 4, 1_024  # namespaces read at once for a page: the first portion, and the largest

# SQLite's index lookup of one row takes about as long as scanning ten rows, and its planner does not know how
# much of a table a span covers.
_PASSED = 10


def statement(dialect: str, asked: ReportQuery, dated: CTE, shape: Shape) -> Select[Any]:
    """The ordered lines of all time ranges, one range after another: the range's number, the columns, and the
    sums. The bounds are parameters, so one statement serves all steps of the same shape."""
    rows = union_all(*Parts(dialect, asked, dated, shape).all()).subquery("parts")
    source: FromClause = rows
    number: list[Expression] = []
    own = {name for name in asked.columns if not (name == "group" and asked.group)}
    if shape.by_day:
        # added up before anything is joined
        totals = (func.sum(rows.c[name]).label(name) for name in sums_in(shape))
        by_namespace = rows.c.number, rows.c.namespace
        rows = select(*by_namespace, *totals).group_by(*by_namespace).subquery("totals")
        number = [rows.c.number]
        source = rows.join(dated, _meets(rows, dated, shape)) if own & {*DATED} else rows
    keys = {name: _key(dialect, asked, rows, dated, name) for name in asked.columns}
    by = [*number, *(keys[name] for name in asked.columns if name in own)]
    sums = {name: func.sum(rows.c[name]) for name in sums_in(shape)}
    amount = sums["posted"] + sums["pending"]
    orders = {"gpuHours": amount.asc(), "-gpuHours": amount.desc()}
    found = select(*(number or [literal(0)]), *keys.values(), *sums.values()).select_from(source)
    found = found.group_by(*by).having(amount != 0)
    first = [orders[asked.order]] if asked.order else []
    found = found.order_by(*number, *first, *by[len(number) :])
    if shape.has_after:
        place = (bindparam(f"after_{at}", type_=Text) for at in range(len(keys)))
        found = found.where(tuple_(*keys.values()) > tuple_(*place))
    return found.limit(bindparam("most")) if shape.has_limit else found


def _key(dialect: str, asked: ReportQuery, rows: FromClause, dated: CTE, name: str) -> Expression:
    if name == "group" and asked.group:
        return literal(asked.group, Text).label(name)
    return ordered(dialect, rows.c[name] if name in rows.c else dated.c[name])


def _meets(rows: FromClause, dated: CTE, shape: Shape) -> Expression:
    """The namespace's price interval of each range; there is one, for none begins or ends within a range."""
    own, spans = dated.c, map(Span, range(shape.spans))
    during = (
        and_(rows.c.number == each.number, own.from_ms < each.end, own.to_ms > each.start) for each in spans
    )
    return and_(own.namespace == rows.c.namespace, or_(*during))


def lines(
    connection: Connection, asked: ReportQuery, terms: Iterable[PriceInterval], limit: int | None
) -> Iterator[ReportLine]:
    """The report's lines in the order of their columns, streamed: at most ``limit``, of each time range
    if there are several.

    ``terms``: the price intervals of the whole span; needed only for columns that come from budget entries,
    and for a group: those of its namespaces while they were in it.
    """
    if connection.dialect.name == "postgresql":
        # The JIT compiler takes longer than most of these statements.
        connection.exec_driver_sql("SET LOCAL jit = off")
    report = _Report(connection, asked, tuple(terms), _page_by(connection, asked, limit))
    if not asked.step:
        for spans in report.together():
            yield from report.lines_of(spans, limit, limit is None)
        return
    left, at_ms = limit, report.busy_ms(asked.rest.start_ms)
    while at_ms < asked.rest.end_ms and left != 0:
        step = asked.step_at(at_ms)
        count = yield from report.lines_of((step,), left, limit is None)
        left = None if left is None else left - count
        at_ms = step.end_ms if count else report.busy_ms(step.end_ms)


def _first_of_each(rows: Iterable[Row[Any]], limit: int | None) -> Iterator[Row[Any]]:
    """The first rows of each range, whose number a row begins with."""
    for _, each in groupby(rows, itemgetter(0)):
        yield from islice(each, limit)


def namespaces(connection: Connection, asked: ReportQuery) -> tuple[str, ...]:
    """The namespaces that can appear in a report."""
    if asked.namespace is not None:
        return (asked.namespace,)
    return tuple(ledger.namespaces(connection))


def _members(intervals: Iterable[PriceInterval], span: Interval) -> tuple[str, ...]:
    """The namespaces that were in the group at any time of the span."""
    meets = (each for each in intervals if each.from_ms < span.end_ms and each.to_ms > span.start_ms)
    return tuple(sorted({name for interval in meets for name in interval.namespaces}))


def _page_by(connection: Connection, asked: ReportQuery, limit: int | None) -> tuple[str, ...] | None:
    """The namespaces in order, if a page can be made of some of them."""
    is_by_namespace = asked.columns[0] == "namespace" and needs_sessions(asked)
    if limit is None or asked.namespace is not None or asked.order or not is_by_namespace:
        return None
    return () if asked.group else tuple(sorted(namespaces(connection, asked)))


def _shares(names: tuple[str, ...], after: tuple[str, ...] | None) -> Iterator[tuple[str, ...]]:
    at, size = 0 if after is None else bisect_left(names, after[0]), _FEW
    while at < len(names):
        yield names[at : at + size]
        at, size = at + size, min(2 * size, _MANY)


def bounds_of(span: Interval) -> dict[str, int]:
    """Parameters: the span's bounds, the whole days in it, and the ends of the days that it cuts."""
    first, last = -(-span.start_ms // DAY_MS) * DAY_MS, span.end_ms // DAY_MS * DAY_MS
    end_day = -(-span.end_ms // DAY_MS) * DAY_MS
    head_day = first
    if first > last:  # it lies within one day
        first = last = span.end_ms
        head_day = end_day
    return {
        "start": span.start_ms,
        "first": first,
        "head_day": head_day,
        "last": last,
        "end": span.end_ms,
        "end_day": end_day,
    }


class _Report:
    """A report's statements, each made once per shape."""

    def __init__(
        self,
        connection: Connection,
        asked: ReportQuery,
        terms: tuple[PriceInterval, ...],
        every: tuple[str, ...] | None,
    ) -> None:
        """``every``: see `_page_by`."""
        self._connection = connection
        self._dialect = connection.dialect.name
        self._asked = asked
        self._terms = terms
        self._dated = dated(self._dialect, terms)
        self._every = every
        self._made: dict[Shape, Select[Any]] = {}
        self._busy = busy_statement(self._dialect, asked)
        self._ever = self._listed(_members(terms, asked.hull))  # the group's namespaces

    def together(self) -> Iterator[tuple[Interval, ...]]:
        """The time ranges that one statement reads: neighbours for which day totals suffice."""
        for by_day, some in groupby((self._asked.rest, *self._asked.beside), self._is_by_day):
            spans = tuple(some)
            yield from (spans,) if by_day else ((each,) for each in spans)

    def busy_ms(self, after_ms: int) -> int:
        """The first moment from this one on for which there may be a line; the end of the time range if there
        is none in it."""
        if after_ms >= self._asked.rest.end_ms:
            return after_ms
        given = {"after": after_ms, "now_ms": self._asked.now_ms} | (
            {"some": self._ever} if self._asked.group else {}
        )
        found: int | None = self._connection.execute(self._busy, given).scalar_one()
        return self._asked.rest.end_ms if found is None else found

    def lines_of(
        self, spans: tuple[Interval, ...], limit: int | None, is_streamed: bool
    ) -> Generator[ReportLine, None, int]:
        """The lines of neighbouring time ranges, at most ``limit`` of each; returns their number."""
        asked, count, size = self._asked, 0, len(self._asked.columns) + 1
        after = asked.after[1] if asked.after is not None and asked.after[0] == spans[0].start_ms else None
        members = tuple(_members(self._terms, each) for each in spans) if asked.group else None
        names = members[0] if self._every is not None and members else self._every
        options = {"yield_per": _AT_ONCE} if is_streamed else {}
        for some in (members,) if names is None else ((each,) for each in _shares(names, after)):
            most = None if limit is None or len(spans) > 1 else limit - count
            found, values = self.statement_for(spans, after, some, most)
            with self._connection.execute(found, values, execution_options=options) as rows:
                for row in rows if len(spans) == 1 else _first_of_each(rows, limit):
                    yield ReportLine(spans[row[0]], tuple(row[1:size]), UsageSums(*map(int, row[size:])))
                    count += 1
            if count == limit:
                break
        return count

    def statement_for(
        self,
        spans: tuple[Interval, ...],
        after: tuple[str, ...] | None,
        some: tuple[tuple[str, ...], ...] | None,
        most: int | None,
    ) -> tuple[Select[Any], dict[str, Any]]:
        """The statement and its parameters for these time ranges, each one's namespaces, and a key to
        continue after."""
        shape = self._shape(spans, after is not None, some is not None, most is not None)
        if shape not in self._made:
            self._made[shape] = statement(self._dialect, self._asked, self._dated, shape)
        values: dict[str, Any] = {
            "now_ms": self._asked.now_ms,
            "earliest": min(each.start_ms for each in spans),
            "latest": max(each.end_ms for each in spans),
        }
        for number, span in enumerate(spans):
            values |= {f"{name}_{number}": at_ms for name, at_ms in bounds_of(span).items()}
        values |= {} if most is None else {"most": most}
        for number, names in enumerate(some or ()):
            values[f"some_{number}"] = self._listed(names)
        values |= {} if some is None else {"some": self._listed(tuple(set().union(*some)))}
        values |= {f"after_{number}": each for number, each in enumerate(after or ())}
        return self._made[shape], values

    def _listed(self, names: tuple[str, ...]) -> Any:
        return list(names) if self._dialect == "postgresql" else orjson.dumps(names).decode()

    def _shape(self, spans: tuple[Interval, ...], has_after: bool, is_some: bool, has_limit: bool) -> Shape:
        by_day = all(map(self._is_by_day, spans))
        is_cut = any(map(self._is_cut, spans))
        passed = frozenset() if by_day or is_some else self._passed(bounds_of(spans[0]))
        return Shape(by_day, is_cut, is_some, has_after, has_limit, passed, len(spans))

    def _is_by_day(self, span: Interval) -> bool:
        return not needs_sessions(self._asked) and not self._is_cut(span)

    def _is_cut(self, span: Interval) -> bool:
        """True if budget entries differ between parts of the span."""
        return any(
            each.from_ms > span.start_ms or each.to_ms < span.end_ms
            for each in self._terms
            if each.from_ms < span.end_ms and each.to_ms > span.start_ms
        )

    def _passed(self, bounds: dict[str, int]) -> frozenset[str]:
        """The tables of which most rows may lie in the span."""
        if self._dialect != "sqlite" or self._asked.namespace is not None:
            return frozenset()
        columns = [POSTINGS.c.to_ms, FOLDED.c.to_ms]
        columns += [FIGURES.c.hour_ms] if self._asked.with_use else []
        start, end = bounds["start"], bounds["end_day"]
        return frozenset(each.table.name for each in columns if self._is_most(each, start, end))

    def _is_most(self, at: Column[int], start_ms: int, end_ms: int) -> bool:
        number: ColumnElement[int] = literal_column("rowid")
        last, first = (
            select(each(number)).select_from(at.table).scalar_subquery() for each in (func.max, func.min)
        )
        rows = self._connection.execute(select(func.coalesce(last - first + 1, 0))).scalar_one()
        within = select(at).where(at >= start_ms, at <= end_ms).limit(rows // _PASSED + 1).subquery()
        found = self._connection.execute(select(func.count()).select_from(within)).scalar_one()
        return bool(found > rows // _PASSED)
