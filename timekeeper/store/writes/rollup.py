"""Rollup: sessions that ended long ago become one row per UTC day, with their net charge.

The charge of each session stays exact to the millisecond; its evidence is deleted. Measured use is not
changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, text, update

from timekeeper.accounts.rate_timeline import RateInterval, runs, steps
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DAY_MS, FIGURES, FOLDED, HEARTBEATS, NODES, POSTINGS, SESSIONS

_KEPT = ("namespace", "name", "owner", "node", "models", "labels", "requested_milli", "requested_mib")

_ADD = text(
    "INSERT INTO days (namespace, day_ms, amount) VALUES (:namespace, :day_ms, :amount)"
    " ON CONFLICT (namespace, day_ms) DO UPDATE SET amount = days.amount + excluded.amount"
)
_ADD_ALL = text(
    "INSERT INTO days (namespace, day_ms, amount)"
    " SELECT namespace, from_ms - from_ms % :day, CAST(SUM(amount) AS BIGINT) FROM folded WHERE true"
    " GROUP BY namespace, from_ms - from_ms % :day"
    " ON CONFLICT (namespace, day_ms) DO UPDATE SET amount = days.amount + excluded.amount"
).bindparams(bindparam("day", DAY_MS))


@dataclass(frozen=True, slots=True)
class RollupBatch:
    """One batch: how many sessions became how many rows. ``doubtful``: sessions that were left because their
    postings do not add up to a possible charge. ``last_uid``: where the next batch begins; None if this was
    the last."""

    sessions: int
    rows: int
    doubtful: tuple[str, ...]
    last_uid: str | None


@dataclass(frozen=True, slots=True)
class _Rollup:
    """One session's rows, and their addition to the day totals beyond what its postings had added."""

    rows: tuple[RateInterval, ...]
    days: dict[int, int]


def roll_up(connection: Connection, before_ms: int, now_ms: int, after_uid: str, most: int) -> RollupBatch:
    """Roll up at most ``most`` sessions that were over and settled before ``before_ms``, all in this
    transaction."""
    found = _candidates(connection, before_ms, after_uid, most)
    postings = _postings(connection, [row.uid for row in found])
    folds, doubtful = {}, []
    for row in found:
        each = _roll_up(postings.get(row.uid, []), row.rate_milli)
        if each is None:
            doubtful.append(row.uid)
        elif each.rows or row.vanished_ms is not None or row.ended_ms == 0:
            # A pod that ended without a charge keeps its session: while the pod is listed, nothing else
            # records that it had one. A pod that is gone, or never ran, gets no session.
            folds[row.uid] = each
    if folds:
        _write(connection, {row.uid: row for row in found if row.uid in folds}, folds, now_ms)
    last = found[-1].uid if len(found) == most else None
    return RollupBatch(len(folds), sum(len(each.rows) for each in folds.values()), tuple(doubtful), last)


def forget_nodes(connection: Connection, before_ms: int) -> int:
    """Delete the watermarks of nodes that were last heard before ``before_ms`` and that no session names.
    Returns how many. What is bound later is bound after such a watermark, which proves nothing for it."""
    named = select(SESSIONS.c.node)
    gone = delete(NODES).where(NODES.c.watermark_ms < before_ms, NODES.c.name.not_in(named))
    return connection.execute(gone).rowcount


def add_all_rollups(connection: Connection) -> None:
    """Add all rolled-up rows to the day totals: imported rows were never postings here."""
    connection.execute(_ADD_ALL)


def _candidates(connection: Connection, before_ms: int, after_uid: str, most: int) -> list[Any]:
    """Settled sessions whose pods ended long enough ago, locked so that no settler reopens them meanwhile."""
    columns = (SESSIONS.c[name] for name in ("uid", "rate_milli", "ended_ms", "vanished_ms", *_KEPT))
    ended = func.coalesce(SESSIONS.c.ended_ms, SESSIONS.c.vanished_ms + SESSIONS.c.grace_ms)
    statement = (
        select(*columns)
        .where(SESSIONS.c.uid > after_uid, SESSIONS.c.settled_ms < before_ms, ended < before_ms)
        .where(SESSIONS.c.bound_ms < before_ms, SESSIONS.c.opened_ms < before_ms)
        .order_by(SESSIONS.c.uid)
        .limit(most)
        .with_for_update()
    )
    return list(connection.execute(statement))


def _postings(connection: Connection, uids: list[str]) -> dict[str, list[Any]]:
    columns = (POSTINGS.c[name] for name in ("session_uid", "from_ms", "to_ms", "rate_milli", "amount"))
    found: dict[str, list[Any]] = {}
    for row in connection.execute(select(*columns).where(POSTINGS.c.session_uid.in_(uids))):
        found.setdefault(row.session_uid, []).append(row)
    return found


def _roll_up(postings: list[Any], rate_milli: int) -> _Rollup | None:
    """The net charge of a session's postings, cut at each midnight. None if it is not a possible charge of
    one session: one interval at its own rate."""
    net = runs(steps((each.from_ms, each.to_ms, each.rate_milli) for each in postings))
    is_sound = len(net) <= 1 and all(each.rate_milli == rate_milli for each in net)
    if not is_sound or sum(each.amount for each in net) != sum(each.amount for each in postings):
        return None
    rows = tuple(part for each in net for part in _by_day(each))
    days: dict[int, int] = {}
    for part in rows:
        days[part.from_ms - part.from_ms % DAY_MS] = part.amount
    for each in postings:
        day_ms = each.from_ms - each.from_ms % DAY_MS
        if each.to_ms <= day_ms + DAY_MS:  # longer ones, of the first release, are in no day total
            days[day_ms] = days.get(day_ms, 0) - each.amount
    return _Rollup(rows, {day_ms: amount for day_ms, amount in days.items() if amount})


def _by_day(run: RateInterval) -> Iterable[RateInterval]:
    from_ms = run.from_ms
    while from_ms < run.to_ms:
        to_ms = min(run.to_ms, from_ms - from_ms % DAY_MS + DAY_MS)
        yield RateInterval(from_ms, to_ms, run.rate_milli)
        from_ms = to_ms


def _write(connection: Connection, found: dict[str, Any], folds: dict[str, _Rollup], now_ms: int) -> None:
    uids = list(found)
    connection.execute(update(SESSIONS).where(SESSIONS.c.uid.in_(uids)).values(folded_ms=now_ms))
    rows = [
        {
            "session_uid": uid,
            **{name: getattr(found[uid], name) for name in _KEPT},
            "from_ms": run.from_ms,
            "to_ms": run.to_ms,
            "rate_milli": run.rate_milli,
            "amount": run.amount,
            "created_ms": now_ms,
        }
        for uid, each in folds.items()
        for run in each.rows
    ]
    if rows:
        connection.execute(insert(FOLDED), rows)
    added = [
        {"namespace": found[uid].namespace, "day_ms": day_ms, "amount": amount}
        for uid, each in folds.items()
        for day_ms, amount in each.days.items()
    ]
    if added:
        added.sort(
            key=lambda each: (each["namespace"], each["day_ms"])
        )  # the same order as every other writer
        connection.execute(_ADD, added)
    for table in (HEARTBEATS, POSTINGS):
        connection.execute(delete(table).where(table.c.session_uid.in_(uids)))
    uncharged = [uid for uid, each in folds.items() if not each.rows]
    if uncharged:
        connection.execute(delete(FIGURES).where(FIGURES.c.session_uid.in_(uncharged)))
    connection.execute(delete(SESSIONS).where(SESSIONS.c.uid.in_(uids)))
