"""What kind of statement a report needs, and the parameters of its time ranges."""

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam

from timekeeper.accounts.usage import DATED, ReportQuery, UsageSums

_SUMS = tuple(each.name for each in fields(UsageSums))

Expression = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of statement that a time range needs, or several (``spans``).

    ``by_day``: day totals suffice: no column is a session's, and no budget entry changed within a range.
    ``is_cut``: budget entries changed within the range, so rows are cut there. ``is_some``: only namespaces
    in parameters ``some_0`` and on. ``has_after``: only lines after the key in parameters ``after_0`` and on.
    ``has_limit``: at most parameter ``most``. ``passed``: tables that SQLite scans row by row, without an
    index.
    """

    by_day: bool
    is_cut: bool
    is_some: bool
    has_after: bool
    has_limit: bool
    passed: frozenset[str]
    spans: int = 1


def needs_sessions(asked: ReportQuery) -> bool:
    """True if charges alone do not contain all requested columns."""
    return asked.with_use or not set(asked.columns) <= {"namespace", *DATED}


def sums_in(shape: Shape) -> tuple[str, ...]:
    """The sums of each part."""
    return _SUMS[:2] if shape.by_day else _SUMS


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a range, or all of it. ``end_day``: the end of the day in which it ends, which bounds rows
    from above, for each lies in one day."""

    start: Expression
    end: Expression
    end_day: Expression
    is_whole: bool = False


class Span:
    """A time range's parameters, which end in its number: see `reports.bounds_of`."""

    def __init__(self, number: int) -> None:
        self.number = number
        names = ("start", "first", "head_day", "last", "end", "end_day")
        each = {name: bindparam(f"{name}_{number}", type_=BigInteger) for name in names}
        self.start, self.end, self.first, self.last = each["start"], each["end"], each["first"], each["last"]
        self.whole = Stretch(self.start, self.end, each["end_day"], True)
        # days that it cuts
        self.head = Stretch(self.start, self.first, each["head_day"])
        self.tail = Stretch(self.last, self.end, each["end_day"])

    def has(self, at_ms: Expression) -> Expression:
        """Whether a moment lies in it."""
        return and_(at_ms >= self.start, at_ms < self.end)
