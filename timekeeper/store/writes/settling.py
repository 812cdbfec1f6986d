"""The one transaction that writes the decisions of a settler's tick."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Table, bindparam, delete, select, update

from timekeeper.accounts.budget_history import BudgetEntry
from timekeeper.accounts.changes import Changes
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import (
    ENTRIES,
    ENTRY_ERRORS,
    GRANTS,
    HELD_PODS,
    NODES,
    POSTINGS,
    PULSE,
    SESSIONS,
    STANDINGS,
    WAITING,
)
from timekeeper.store.writes import declared
from timekeeper.store.writes.inserting import insert_all

_SESSION = tuple(each.name for each in fields(Session))
_HELD = tuple(column.name for column in HELD_PODS.c)
_POSTING = tuple(each.name for each in fields(Posting))
_EVIDENCE = (
    "started_ms",
    "ended_ms",
    "vanished_ms",
    "grace_ms",
    "watermark_ms",
    "settled_ms",
    "others_ended",
    "was_unseen",
)


def apply(connection: Connection, changes: Changes) -> None:
    """Write a tick's decisions. Raises if a posting, grant or session exists already."""
    insert_all(connection, ENTRIES, [_entry_row(each) for each in changes.entries])
    _write_sessions(connection, changes)
    _write_watermarks(connection, changes)
    # In the order of the day totals; otherwise two writers could deadlock on them.
    postings = sorted(changes.postings, key=lambda each: (each.namespace, each.from_ms))
    insert_all(connection, POSTINGS, [_posting_row(each) for each in postings])
    insert_all(connection, GRANTS, [grant_row(each) for each in changes.grants])
    if changes.errors is not None:
        seen_ms = changes.pulse.tick_ms if changes.pulse else 0
        rows = [{"key": key, "sentence": text, "seen_ms": seen_ms} for key, text in changes.errors.items()]
        _replace(connection, ENTRY_ERRORS, rows)
    if changes.waiting is not None:
        _write_waiting(connection, changes.waiting)
    if changes.held or changes.released:
        _write_held(connection, changes)
    declared.free(connection, changes.undeclared)
    declared.reserve(connection, changes.declared)
    if changes.published is not None:
        row = {"id": 1, "revision": changes.published.revision, "body": changes.published.body.decode()}
        _replace(connection, STANDINGS, [row])
    if changes.pulse is not None:
        _replace(connection, PULSE, [{"id": 1, **asdict(changes.pulse)}])


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


def _write_sessions(connection: Connection, changes: Changes) -> None:
    rows = [{name: getattr(each, name) for name in _SESSION} for each in changes.opened]
    insert_all(connection, SESSIONS, rows)
    if not changes.changed:
        return
    # "b_" keeps the name of the row's key apart from the columns that are set; in the order in which
    # heartbeats lock sessions, so that neither waits for the other at once
    rows = [
        {"b_uid": each.uid, **{f"b_{name}": getattr(each, name) for name in _EVIDENCE}}
        for each in sorted(changes.changed, key=lambda each: each.uid)
    ]
    new: dict[str, Any] = {name: bindparam(f"b_{name}") for name in _EVIDENCE}
    connection.execute(update(SESSIONS).where(SESSIONS.c.uid == bindparam("b_uid")).values(new), rows)


def _write_watermarks(connection: Connection, changes: Changes) -> None:
    heard = changes.watermarks.items()
    new = [{"name": name, "watermark_ms": at} for name, at in heard if name in changes.new_nodes]
    old = [{"b_name": name, "b_at": at} for name, at in heard if name not in changes.new_nodes]
    insert_all(connection, NODES, new)
    if old:
        statement = (
            update(NODES).where(NODES.c.name == bindparam("b_name")).values(watermark_ms=bindparam("b_at"))
        )
        if connection.execute(statement, old).rowcount != len(old):  # retention has deleted some
            there = set(connection.execute(select(NODES.c.name)).scalars())
            lost = [{"name": name, "watermark_ms": at} for name, at in heard if name not in there]
            insert_all(connection, NODES, lost)


def _write_waiting(connection: Connection, rates: Mapping[str, int]) -> None:
    """The namespaces whose waiting rate changed; 0 if no pod waits any more."""
    connection.execute(_NO_LONGER, [{"b_name": name} for name in rates])
    rows = [{"namespace": name, "rate_milli": rate} for name, rate in rates.items() if rate]
    insert_all(connection, WAITING, rows)


_NO_LONGER = delete(WAITING).where(WAITING.c.namespace == bindparam("b_name"))


def _write_held(connection: Connection, changes: Changes) -> None:
    """Pods that are held now, or whose figures changed, and those that are not held any more."""
    rows = [{name: getattr(each, name) for name in _HELD} for each in changes.held]
    gone = [{"b_uid": uid} for uid in (*changes.released, *(each["uid"] for each in rows))]
    connection.execute(delete(HELD_PODS).where(HELD_PODS.c.uid == bindparam("b_uid")), gone)
    insert_all(connection, HELD_PODS, rows)


def _entry_row(entry: BudgetEntry) -> dict[str, Any]:
    return {"key": entry.key, "text": entry.text, "from_ms": entry.from_ms}


def _posting_row(posting: Posting) -> dict[str, Any]:
    return {**{name: getattr(posting, name) for name in _POSTING}, "amount": posting.amount}


def _replace(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Replace the whole content of a small table."""
    connection.execute(delete(table))
    insert_all(connection, table, rows)
