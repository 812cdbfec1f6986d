"""Writes the decisions of a settler's tick, in the caller's transaction; and rolls up old sessions, whose
postings become a net charge for each day."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import Any

from sqlalchemy import Table, bindparam, delete, func, insert, or_, select, text, update

from timekeeper.accounts.changes import Changes
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.posting import Posting, RateInterval, runs, steps
from timekeeper.accounts.session import CLAIMS, Session
from timekeeper.store import held_pods
from timekeeper.store.engine.engine import Connection, Upsert, Written
from timekeeper.store.engine.schema import (
    ACCOUNTS,
    DAY_MS,
    DECLARED_PODS,
    ENTRIES,
    ENTRY_ERRORS,
    FIGURES,
    FOLDED,
    GRANTS,
    HEARTBEATS,
    HELD_PODS,
    NODES,
    POSTINGS,
    PULSE,
    SESSIONS,
    STANDINGS,
    WAITING,
)

_SESSION = (*(each.name for each in fields(Session)), "kind")
_HELD = tuple(column.name for column in HELD_PODS.c)
_POSTING = tuple(each.name for each in fields(Posting))
_ACCOUNT = tuple(column.name for column in ACCOUNTS.c)
_CHANGING = (
    "models",
    "devices",
    "node",
    "rate_milli",
    "requested_mib",
    "bound_ms",
    "started_ms",
    "ended_ms",
    "vanished_ms",
    "grace_ms",
    "watermark_ms",
    "settled_ms",
    "others_ended",
    "reserves_until_ms",
    "was_unseen",
    "doubt",
    "consumers",
    "users",
    "boot",
)


def rows_of(changes: Changes) -> list[Written]:
    """A tick's decisions as what `write_all` sends: made before its transaction."""
    # In the order of the day totals; otherwise two writers could deadlock on them.
    postings = sorted(changes.postings, key=lambda each: (each.namespace, each.from_ms))
    made: list[Written] = [
        (ENTRIES, [asdict(each) for each in changes.entries]),
        *_sessions(changes),
        (_WATERMARKS, [{"name": name, "watermark_ms": at} for name, at in changes.watermarks.items()]),
        (_LEASELESS, [{"b_name": name, "b_leaseless": not had} for name, had in changes.leases.items()]),
        (_GONE, [{"b_name": name, "b_gone": at} for name, at in changes.gone.items()]),
        (
            POSTINGS,
            [
                {**{name: getattr(posting, name) for name in _POSTING}, "amount": posting.amount}
                for posting in postings
            ],
        ),
        (GRANTS, [grant_row(each) for each in changes.grants]),
    ]
    if changes.errors is not None:
        seen_ms = changes.pulse.tick_ms if changes.pulse else 0
        rows = [{"key": key, "sentence": text, "seen_ms": seen_ms} for key, text in changes.errors.items()]
        made += _replaced(ENTRY_ERRORS, rows)
    if changes.waiting is not None:
        made += _waiting(changes.waiting)
    made += _held(changes)
    made.append((held_pods.OF_POD, [{"b_uid": uid} for uid in sorted(changes.undeclared)]))
    made.append((DECLARED_PODS, [asdict(each) for each in changes.declared]))
    if changes.is_first:
        made.append((delete(ACCOUNTS), [{}]))
    made.append((_CLOSED, [{"b_subject": subject} for subject in sorted(changes.closed)]))
    # as they lie in the file: in another order SQLite writes their pages again and again
    accounts = sorted(changes.accounts, key=attrgetter("subject"))
    made.append((_ACCOUNTS, [{name: getattr(row, name) for name in _ACCOUNT} for row in accounts]))
    if changes.published is not None:
        row = {"id": 1, "revision": changes.published.revision, "body": changes.published.body.decode()}
        made += _replaced(STANDINGS, [row])
    if changes.pulse is not None:
        made += _replaced(PULSE, [{"id": 1, **asdict(changes.pulse)}])
    return made


def grant_row(grant: Grant) -> dict[str, Any]:
    """A grant as a row."""
    return {
        "subject": grant.subject,
        "period_start_ms": grant.span.start_ms,
        "period_end_ms": grant.span.end_ms,
        "amount": grant.amount,
        "kind": grant.kind,
        "reason": grant.reason,
        "actor": grant.actor,
        "idempotency_key": grant.idempotency_key,
        "created_ms": grant.created_ms,
        "group_key": grant.group or None,
        "group_start_ms": grant.group_span.start_ms if grant.group_span else None,
        "group_end_ms": grant.group_span.end_ms if grant.group_span else None,
    }


def _sessions(changes: Changes) -> Iterator[Written]:
    yield SESSIONS, [{name: getattr(each, name) for name in _SESSION} for each in changes.opened]
    # "b_" keeps the name of the row's key apart from the columns that are set; in the order in which
    # heartbeats lock sessions, so that neither waits for the other at once
    rows = [
        {"b_uid": each.uid, **{f"b_{name}": getattr(each, name) for name in _CHANGING}}
        for each in sorted(changes.changed, key=lambda each: each.uid)
    ]
    yield _CHANGE, rows


_NEW: dict[str, Any] = {name: bindparam(f"b_{name}") for name in _CHANGING}
_CHANGE = update(SESSIONS).where(SESSIONS.c.uid == bindparam("b_uid")).values(_NEW)
_NODE = update(NODES).where(NODES.c.name == bindparam("b_name"))
_WATERMARKS = Upsert(NODES, ("watermark_ms",))  # retention may have deleted some
_LEASELESS = _NODE.values(leaseless=bindparam("b_leaseless"))
_GONE = _NODE.values(gone_ms=bindparam("b_gone"))


def _waiting(rates: Mapping[str, int]) -> Iterator[Written]:
    """The namespaces whose waiting rate changed; 0 if no pod waits any more."""
    yield _NO_LONGER, [{"b_name": name} for name in rates]
    yield WAITING, [{"namespace": name, "rate_milli": rate} for name, rate in rates.items() if rate]


_ACCOUNTS = Upsert(ACCOUNTS, tuple(name for name in _ACCOUNT if name != "subject"))
_CLOSED = delete(ACCOUNTS).where(ACCOUNTS.c.subject == bindparam("b_subject"))
_NO_LONGER = delete(WAITING).where(WAITING.c.namespace == bindparam("b_name"))
_RELEASED = delete(HELD_PODS).where(HELD_PODS.c.uid == bindparam("b_uid"))


def _held(changes: Changes) -> Iterator[Written]:
    """Pods that are held now, or whose figures changed, and those that are not held any more."""
    rows = [{name: getattr(each, name) for name in _HELD} for each in changes.held]
    yield _RELEASED, [{"b_uid": uid} for uid in (*changes.released, *(each["uid"] for each in rows))]
    yield HELD_PODS, rows


def _replaced(table: Table, rows: list[dict[str, Any]]) -> tuple[Written, Written]:
    """The whole content of a small table."""
    return (delete(table), [{}]), (table, rows)


_KEPT = ("namespace", "name", "owner", "node", "models", "labels", "requested_milli", "requested_mib", "kind")
_READ = ("uid", "rate_milli", "ended_ms", "vanished_ms", "devices", "owner_uid", *_KEPT)

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
    Returns how many. No later session needs such a watermark: its pod is bound after that moment."""
    named = select(SESSIONS.c.node)
    is_named = or_(NODES.c.name == CLAIMS, NODES.c.name.in_(named))
    gone = delete(NODES).where(NODES.c.watermark_ms < before_ms, ~is_named)
    return connection.execute(gone).rowcount


def add_all_rollups(connection: Connection) -> None:
    """Add all rolled-up rows to the day totals: imported rows were never postings here."""
    connection.execute(_ADD_ALL)


def _candidates(connection: Connection, before_ms: int, after_uid: str, most: int) -> list[Any]:
    """Settled sessions whose pods ended long enough ago, locked so that no settler reopens them meanwhile."""
    columns = (SESSIONS.c[name] for name in _READ)
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
            "devices": found[uid].devices if found[uid].kind == "claim" else "",
            "owner_uid": found[uid].owner_uid if found[uid].kind == "host" else None,
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
