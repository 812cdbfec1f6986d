"""When there is something to report, so that the empty steps of a report cost nothing."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    bindparam,
    cast,
    func,
    select,
    union_all,
)

from timekeeper.accounts.usage import ReportQuery
from timekeeper.store.engine.schema import DAY_MS, DAYS, FOLDED, POSTINGS, SESSIONS
from timekeeper.store.reports.columns import of_namespaces
from timekeeper.store.sessions import greatest, open_charges

Expression = ColumnElement[Any]

_AFTER: Expression = bindparam("after", type_=BigInteger)


def busy_statement(dialect: str, asked: ReportQuery) -> Select[Any]:
    """The first moment from parameter ``after`` on for which there may be a line; NULL if there is none. No
    line lies before it. Only namespaces in parameter ``some``, if the report is of a namespace or group."""
    return _Busy(dialect, asked).statement()


class _Busy:
    def __init__(self, dialect: str, asked: ReportQuery) -> None:
        self._dialect, self._asked = dialect, asked
        self._some = "" if asked.is_whole else "some"

    def statement(self) -> Select[Any]:
        parts = [self._charged(POSTINGS), self._charged(FOLDED), self._open()]
        parts += [self._day()] if self._asked.step != "hour" else []
        found = union_all(*parts).subquery("parts")
        return select(func.min(found.c.at_ms))

    def _charged(self, table: Table) -> Select[Any]:
        """Each row lies in one day: of those that end later, none that begins earlier ends after the day of
        the first."""
        its = table.c
        later = (its.to_ms > _AFTER, *self._theirs(its.namespace))
        first_ms = select(func.min(its.to_ms)).where(*later).scalar_subquery()
        day_ends_ms = (first_ms - 1) / DAY_MS * DAY_MS + DAY_MS
        return self._earliest(its.from_ms).where(*later, its.to_ms <= day_ends_ms)

    def _open(self) -> Select[Any]:
        its = SESSIONS.c
        found = open_charges((), its.rate_milli > 0, *self._theirs(its.namespace))
        rows = found.cte("open").prefix_with("MATERIALIZED").c
        return self._earliest(rows.from_ms).where(rows.to_ms > rows.from_ms, rows.to_ms > _AFTER)

    def _day(self) -> Select[Any]:
        """Sums of whole days, which longer steps are read from."""
        return self._earliest(DAYS.c.day_ms).where(DAYS.c.day_ms >= _AFTER, *self._theirs(DAYS.c.namespace))

    def _earliest(self, start: Expression) -> Select[Any]:
        return select(cast(func.min(greatest(start, _AFTER)), BigInteger).label("at_ms"))

    def _theirs(self, namespace: Expression) -> list[Expression]:
        return of_namespaces(self._dialect, namespace, self._asked.namespace, self._some)
