"""Measured use of sessions' cards by the hour."""

from collections.abc import Mapping

from sqlalchemy import select, text

from timekeeper.accounts.card_use.figures import UsageTotals
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import FIGURES

TENANT = "tenant"

Hour = tuple[str, int]  # a session's UID and the hour's beginning

# The same SQL on both databases. Rows come in one order, so two writers cannot deadlock.
_ADD = text(
    "INSERT INTO figures (session_uid, hour_ms, source, covered_ms, used_milli_ms, memory_mib_ms)"
    " VALUES (:session_uid, :hour_ms, :source, :covered_ms, :used_milli_ms, :memory_mib_ms)"
    " ON CONFLICT (session_uid, hour_ms, source) DO UPDATE SET"
    " covered_ms = figures.covered_ms + excluded.covered_ms,"
    " used_milli_ms = figures.used_milli_ms + excluded.used_milli_ms,"
    " memory_mib_ms = figures.memory_mib_ms + excluded.memory_mib_ms"
)


def add(connection: Connection, used: Mapping[Hour, UsageTotals], source: str = TENANT) -> None:
    """Add use to these hours: one statement for any number."""
    rows = [
        {
            "session_uid": uid,
            "hour_ms": hour_ms,
            "source": source,
            "covered_ms": each.covered_ms,
            "used_milli_ms": each.milli_ms,
            "memory_mib_ms": each.memory_mib_ms,
        }
        for (uid, hour_ms), each in sorted(used.items(), key=lambda item: item[0])
    ]
    if rows:
        connection.execute(_ADD, rows)


def hours(connection: Connection, uid: str, source: str = TENANT) -> dict[int, UsageTotals]:
    """A session's use by the hour."""
    columns = (FIGURES.c.hour_ms, FIGURES.c.covered_ms, FIGURES.c.used_milli_ms, FIGURES.c.memory_mib_ms)
    mine = select(*columns).where(FIGURES.c.session_uid == uid, FIGURES.c.source == source)
    return {hour_ms: UsageTotals(*figures) for hour_ms, *figures in connection.execute(mine)}
