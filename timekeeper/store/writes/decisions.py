"""Decisions: rows are added; an equal one that follows raises the count of the row before it. A pod has one
row of `PREEMPTED_BY_SCHEDULER`, whatever follows. A row without an owner has that of its pod's row before."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, select, tuple_, update

from timekeeper.core.decisions import PREEMPTED_BY_SCHEDULER, DecisionRun, bounded
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DECISIONS
from timekeeper.store.writes.inserting import insert_all

SOURCE = "timekeeper"  # of its own decisions

_TURN = "decisions"
_SAME = ("kind", "reason", "owner", "is_generated", "uid", "budget", "figures")
_EACH_QUERY = 100  # subjects

_NEWEST = (
    select(DECISIONS)
    .where(DECISIONS.c.namespace == bindparam("of_namespace"), DECISIONS.c.subject == bindparam("of_subject"))
    .order_by(DECISIONS.c.id.desc())
    .limit(1)
)
_RECORDED = select(DECISIONS.c.id).where(
    DECISIONS.c.namespace == bindparam("of_namespace"),
    DECISIONS.c.subject == bindparam("of_subject"),
    DECISIONS.c.uid == bindparam("of_uid"),
    DECISIONS.c.reason == PREEMPTED_BY_SCHEDULER,
)

Row = dict[str, Any]


def record(connection: Connection, source: str, runs: Sequence[DecisionRun]) -> None:
    """Add these, oldest first. ``source``: the role that decided.

    Transactions that record take turns, so that rows become visible in the order of their numbers: let this
    be the last statement of the transaction.
    """
    if not runs:
        return
    if connection.dialect.name == "postgresql":
        postgresql.take_turn(connection, _TURN)
    rows = _unrecorded(connection, [_row(source, each) for each in runs])
    last = _last(connection, rows)
    grown: dict[int, Row] = {}
    new: list[Row] = []
    for row in rows:
        before = last.get((row["namespace"], row["subject"]))
        if not row["owner"] and before is not None and row["uid"] == before["uid"] != "":
            row["owner"] = before["owner"]
        if before is None or any(before[name] != row[name] for name in _SAME):
            new.append(row)
            last[row["namespace"], row["subject"]] = row
            continue
        before["count"] += row["count"]
        before["first_ms"] = min(before["first_ms"], row["first_ms"])
        before["last_ms"] = max(before["last_ms"], row["last_ms"])
        if "id" in before:
            grown[before["id"]] = before
    if grown:
        connection.execute(
            update(DECISIONS).where(DECISIONS.c.id == bindparam("at")),
            [
                {"at": at, **{name: grown[at][name] for name in ("count", "first_ms", "last_ms")}}
                for at in sorted(grown)
            ],
        )
    insert_all(connection, DECISIONS, new)


def forget(connection: Connection, before_ms: int, most: int) -> int:
    """Delete the decisions that were last taken before that time, at most ``most``; returns their number."""
    old = select(DECISIONS.c.id).where(DECISIONS.c.last_ms < before_ms).order_by(DECISIONS.c.last_ms)
    return connection.execute(delete(DECISIONS).where(DECISIONS.c.id.in_(old.limit(most)))).rowcount


def _unrecorded(connection: Connection, rows: Iterable[Row]) -> list[Row]:
    """The rows without those that their pod has already."""
    kept: dict[object, Row] = {}
    for number, row in enumerate(rows):
        if row["reason"] != PREEMPTED_BY_SCHEDULER:
            kept[number] = row
            continue
        pod = {"of_namespace": row["namespace"], "of_subject": row["subject"], "of_uid": row["uid"]}
        if connection.execute(_RECORDED, pod).first() is None:
            kept.setdefault(tuple(pod.values()), row)
    return list(kept.values())


def _last(connection: Connection, rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """The newest row of each subject. SQLite does not search an index for a list of pairs, so each subject is
    a query there."""
    subjects = sorted({(row["namespace"], row["subject"]) for row in rows})
    its, found = DECISIONS.c, dict[tuple[str, str], Row]()
    if connection.dialect.name != "postgresql":
        for subject in subjects:
            last = connection.execute(_NEWEST, {"of_namespace": subject[0], "of_subject": subject[1]}).first()
            if last is not None:
                found[subject] = dict(last._mapping)
        return found
    for at in range(0, len(subjects), _EACH_QUERY):
        newest = (
            select(func.max(its.id))
            .where(tuple_(its.namespace, its.subject).in_(subjects[at : at + _EACH_QUERY]))
            .group_by(its.namespace, its.subject)
        )
        for row in connection.execute(select(DECISIONS).where(its.id.in_(newest))):
            found[row.namespace, row.subject] = dict(row._mapping)
    return found


def _row(source: str, run: DecisionRun) -> Row:
    decision = bounded(run.decision)
    return {
        "source": source,
        "kind": decision.kind,
        "reason": decision.reason,
        "namespace": decision.namespace,
        "owner": decision.owner,
        "subject": decision.subject[1],
        "is_generated": not decision.name and decision.generate_name != "",
        "uid": decision.uid,
        "budget": decision.budget,
        "figures": _encoded(decision.figures),
        "count": run.count,
        "first_ms": min(decision.at_ms, run.last_ms),
        "last_ms": run.last_ms,
    }


def _encoded(figures: Mapping[str, int | str]) -> str:
    return json.dumps(figures, separators=(",", ":"), sort_keys=True)
