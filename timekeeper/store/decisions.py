"""Decisions: rows are added; an equal one that follows raises the count of the row before it. A pod has one
row of `PREEMPTED_BY_SCHEDULER`, whatever follows. A row without an owner has that of its pod's row before."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, func, select, tuple_, update

from timekeeper.core.decisions import (
    GANG,
    GANG_KEY,
    HELD,
    MESSAGE,
    PREEMPTED_BY_SCHEDULER,
    QUEUE,
    RELEASED,
    STANDING,
    Decision,
    DecisionRun,
    bounded,
)
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.engine import Connection, Written, write_all
from timekeeper.store.engine.schema import DECISIONS, SESSIONS
from timekeeper.store.engine.workloads import SETS, cron_job, workload

SOURCE = "timekeeper"  # of its own decisions

TURN = "decisions"
_SAME = ("kind", "reason", "owner", "is_generated", "uid", "budget", "figures")
_EACH_QUERY = 100  # subjects
_MOST_ROWS = 2_000  # by which the controllers of a set are found

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
    """Add these, oldest first. ``source``: the role that decided. See `write`."""
    write(connection, rows_of(source, runs))


def rows_of(source: str, runs: Iterable[DecisionRun]) -> list[Row]:
    """What `write` adds of them, which can be made before its transaction."""
    return [_row(source, each) for each in runs]


def write(connection: Connection, made: Sequence[Row]) -> None:
    """Add these rows, oldest first, as the last of the transaction."""
    if made and connection.dialect.name == "postgresql":
        postgresql.take_turn(connection, TURN)
    write_all(connection, changes(connection, made))


def changes(connection: Connection, made: Sequence[Row]) -> list[Written]:
    """What adds these rows, oldest first: let it be the last that the transaction writes.

    Transactions that record take the `TURN`, so that rows become visible in the order of their numbers.
    """
    if not made:
        return []
    rows = _unrecorded(connection, made)
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
    times = ("count", "first_ms", "last_ms")
    counted = [{"at": at, **{f"b_{name}": grown[at][name] for name in times}} for at in sorted(grown)]
    return [(_COUNTED, counted), (DECISIONS, new)]


_COUNTED = (
    update(DECISIONS)
    .where(DECISIONS.c.id == bindparam("at"))
    .values({name: bindparam(f"b_{name}") for name in ("count", "first_ms", "last_ms")})
)


def released(connection: Connection, pods: Mapping[tuple[str, str], str]) -> dict[str, int]:
    """When the gates of these pods were removed, by UID. ``pods``: namespace and name -> UID."""
    its, found = DECISIONS.c, dict[str, int]()
    by_namespace: dict[str, list[str]] = {}
    for namespace, name in sorted(pods):
        by_namespace.setdefault(namespace, []).append(name)
    for namespace, names in by_namespace.items():
        for at in range(0, len(names), _EACH_QUERY):
            some = names[at : at + _EACH_QUERY]
            of_it = its.namespace == namespace, its.subject.in_(some), its.kind == RELEASED
            for row in connection.execute(select(its.subject, its.uid, its.first_ms).where(*of_it)):
                if pods[namespace, row.subject] == row.uid:
                    found[row.uid] = row.first_ms
    return found


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


_READ_AT_ONCE = 100  # namespaces
_MAX_JOBS = 100
_CHANGES = ("OverBudget", "BackInBudget", "BudgetNearlyUsed")


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """A filter of decisions; an empty field matches any. ``from_ms``, ``to_ms``: those of which at least one
    was taken in this span. ``before``: only what stands after this time and number; None: all."""

    namespace: str = ""
    subject: str = ""  # name or generateName
    owners: tuple[str, ...] = ()  # any of these
    uid: str = ""
    kind: str = ""
    reason: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    before: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A record: its number, the role that decided, and what."""

    number: int
    source: str
    run: DecisionRun


def page(connection: Connection, which: DecisionFilter, limit: int) -> list[DecisionRow]:
    """The newest first, by the time of the last decision of each record."""
    its = DECISIONS.c
    wanted = {
        its.namespace: which.namespace,
        its.subject: which.subject,
        its.uid: which.uid,
        its.kind: which.kind,
        its.reason: which.reason,
    }
    # the rows of a pod or an owner are sorted: read by time, all of the namespace would be passed over
    is_few = which.subject or which.owners or which.uid
    last_ms = its.last_ms + 0 if is_few else its.last_ms
    found: Select[Any] = select(DECISIONS).order_by(last_ms.desc(), its.id.desc()).limit(limit)
    found = found.where(*(column == value for column, value in wanted.items() if value))
    if which.owners:
        found = found.where(its.owner.in_(which.owners))
    if which.from_ms is not None:
        found = found.where(its.last_ms >= which.from_ms)
    if which.to_ms is not None:
        found = found.where(its.first_ms < which.to_ms)
    if which.before is not None:
        found = found.where(tuple_(its.last_ms, its.id) < which.before)
    return [DecisionRow(row.id, row.source, _run(row)) for row in connection.execute(found)]


def jobs_of(connection: Connection, namespace: str, name: str) -> tuple[str, ...]:
    """The newest Jobs of a CronJob whose pods have decisions or sessions, as ``Job/name``.

    Those that it made on its schedule: a Job that a user made from it has any name. They are read in the
    order of the index from its end, so older ones cost nothing: in every order of text equal beginnings are
    followed by digits in their order.
    """
    prefix, found = f"Job/{name}-", set[str]()
    for table in (DECISIONS, SESSIONS):
        owner = table.c.owner
        within = (table.c.namespace == namespace, owner >= f"{prefix}0", owner < prefix + "9" * 19)
        newest = select(owner).distinct().order_by(owner.desc()).limit(_MAX_JOBS)
        found.update(connection.scalars(newest.where(*within, cron_job(owner) == f"CronJob/{name}")))
    return tuple(sorted(found)[-_MAX_JOBS:])


def owners_named(connection: Connection, namespace: str, kind: str, name: str) -> tuple[str, ...]:
    """The owners of this name with decisions whose kind is this one in other letters, or its plural."""
    its, kinds = DECISIONS.c, {kind.lower(), kind.lower().removesuffix("s")}
    named = select(its.owner).distinct().where(its.namespace == namespace)
    found = connection.scalars(named.where(its.owner.endswith(f"/{name}", autoescape=True)).limit(_MOST_ROWS))
    return tuple(each for each in found if each.partition("/")[0].lower() in kinds)


def controllers_of(connection: Connection, namespace: str, kind: str, name: str) -> tuple[str, ...]:
    """The controllers of the pods of a workload of `BY_LABEL`, as ``Job/name``: by what its gangs waited for,
    and by its sessions."""
    its, own = DECISIONS.c, workload(connection.dialect.name, SESSIONS.c)
    ran = select(SESSIONS.c.owner).distinct().where(SESSIONS.c.namespace == namespace)
    found = {*connection.scalars(ran.where(own == f"{kind}/{name}").limit(_MOST_ROWS))}
    if kind not in SETS:
        return tuple(sorted(found))
    gang = kind.lower()
    key = f'"{GANG_KEY}":"{gang}/{name}'
    mine = re.compile(rf"{gang}/{re.escape(name)}{'' if gang == 'jobset' else '-[0-9]+'}(@|/|$)")
    waited = select(its.owner, its.figures).where(its.namespace == namespace, its.kind == GANG)
    waited = (
        waited.where(its.figures.contains(key, autoescape=True)).order_by(its.id.desc()).limit(_MOST_ROWS)
    )
    rows = connection.execute(waited).all()
    found |= {owner for owner, figures in rows if mine.match(json.loads(figures)[GANG_KEY])}
    return tuple(sorted(found - {""}))


def last_standings(connection: Connection, namespaces: Iterable[str]) -> dict[str, str]:
    """The reason of the last change of each namespace's standing, where there is one."""
    its, names = DECISIONS.c, sorted(namespaces)
    found: dict[str, str] = {}
    for at in range(0, len(names), _READ_AT_ONCE):
        wanted = its.namespace.in_(names[at : at + _READ_AT_ONCE]), its.subject == "", its.kind == STANDING
        rows = select(its.namespace, its.reason).where(*wanted, its.reason.in_(_CHANGES)).order_by(its.id)
        found |= {row.namespace: row.reason for row in connection.execute(rows)}
    return found


def held_queues(connection: Connection, namespaces: Iterable[str]) -> dict[tuple[str, str], str]:
    """A sentence on each of Kueue's queues that the budgets of these namespaces hold or would hold, by
    namespace and name."""
    its, names, found = DECISIONS.c, sorted(namespaces), dict[tuple[str, str], str]()
    for at in range(0, len(names), _READ_AT_ONCE):
        of_queues = its.namespace.in_(names[at : at + _READ_AT_ONCE]), its.owner.startswith(f"{QUEUE}/")
        rows = select(its.namespace, its.owner, its.kind, its.figures).where(*of_queues, its.subject == "")
        for row in connection.execute(rows.order_by(its.id)):
            said = json.loads(row.figures)[MESSAGE] if row.kind == HELD else ""
            found[row.namespace, row.owner.removeprefix(f"{QUEUE}/")] = said
    return {queue: said for queue, said in found.items() if said}


def _run(row: Any) -> DecisionRun:
    decision = Decision(
        at_ms=row.first_ms,
        kind=row.kind,
        reason=row.reason,
        namespace=row.namespace,
        figures=json.loads(row.figures),
        owner=row.owner,
        name="" if row.is_generated else row.subject,
        generate_name=row.subject if row.is_generated else "",
        uid=row.uid,
        budget=row.budget,
    )
    return DecisionRun(decision, row._mapping["count"], row.last_ms)
