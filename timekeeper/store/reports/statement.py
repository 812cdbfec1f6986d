"""A usage report as one SELECT: its parts added up, for one time range or several."""

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)

from timekeeper.accounts.usage import DATED, ReportQuery
from timekeeper.store.engine.schema import MAP_HOURS
from timekeeper.store.reports.columns import ordered
from timekeeper.store.reports.parts import Parts
from timekeeper.store.reports.shape import Shape, Span, sums_in

Expression = ColumnElement[Any]

_SAID = ("posted", "pending", "used", "stranded")  # a line has one of them


def statement(dialect: str, asked: ReportQuery, dated: CTE, shape: Shape) -> Select[Any]:
    """The ordered lines of all time ranges, one range after another: the range's number, the columns, and the
    sums. The bounds are parameters, so one statement serves all steps of the same shape."""
    rows = union_all(*Parts(dialect, asked, dated, shape).all()).subquery("parts")
    source: FromClause = rows
    number: list[Expression] = []
    own = {name for name in asked.columns if not (name == "group" and asked.group)}
    if shape.by_day:
        rows = _totals(asked, shape, rows)
        number = [rows.c.number]
        source = rows.join(dated, _meets(rows, dated, shape)) if own & {*DATED} else rows
    keys = {name: _key(dialect, asked, rows, dated, name) for name in asked.columns}
    by = [*number, *(keys[name] for name in asked.columns if name in own)]
    sums = {name: func.sum(rows.c[name]) for name in sums_in(asked, shape)}
    amount = sums["posted"] + sums["pending"]
    orders = {"gpuHours": amount.asc(), "-gpuHours": amount.desc()}
    orders |= {"-stranded": sums["stranded"].desc()} if asked.with_stranded else {}
    known = [_known_ms(shape, *number)] if asked.with_stranded else []
    found = select(*(number or [literal(0)]), *keys.values(), *sums.values(), *known).select_from(source)
    found = found.group_by(*by).having(or_(*(sums[name] != 0 for name in _SAID if name in sums)))
    first = [orders[asked.order]] if asked.order else []
    found = found.order_by(*number, *first, *by[len(number) :])
    if shape.has_after:
        place = (bindparam(f"after_{at}", type_=Text) for at in range(len(keys)))
        found = found.where(tuple_(*keys.values()) > tuple_(*place))
    return found.limit(bindparam("most")) if shape.has_limit else found


def _totals(asked: ReportQuery, shape: Shape, every: Subquery) -> Subquery:
    """Added up before anything is joined."""
    sums = [func.sum(every.c[name]).label(name) for name in sums_in(asked, shape)]
    by = every.c.number, every.c.namespace
    return select(*by, *sums).group_by(*by).subquery("totals")


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


def _known_ms(shape: Shape, *number: Expression) -> Expression:
    """For how much of the hours that begin in the line's range it is known what was stranded."""
    of_spans = [
        select(func.coalesce(func.sum(MAP_HOURS.c.known_ms), 0)).where(span.has(MAP_HOURS.c.hour_ms))
        for span in map(Span, range(shape.spans))
    ]
    if not number:
        return of_spans[0].scalar_subquery()
    return case({at: each.scalar_subquery() for at, each in enumerate(of_spans)}, value=number[0])
