"""Decisions in pages, and those about one pod or one owner."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, Table, select

from timekeeper.core.decisions import STANDING, Decision, DecisionRun
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DECISIONS, SESSIONS

_EACH_QUERY = 100  # namespaces
_MINUTE = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)  # since 1970
_MOST_JOBS = 100
_CHANGES = ("OverBudget", "BackInBudget", "BudgetNearlyUsed")


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """A filter of decisions; an empty field matches any. ``from_ms``, ``to_ms``: those of which at least one
    was taken in this span. ``before``: only rows with a smaller number; 0: all."""

    namespace: str = ""
    subject: str = ""  # name or generateName
    owners: tuple[str, ...] = ()  # any of these
    uid: str = ""
    kind: str = ""
    reason: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    before: int = 0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A record: its number, the role that decided, and what."""

    number: int
    source: str
    run: DecisionRun


def page(connection: Connection, which: DecisionFilter, limit: int) -> list[DecisionRow]:
    """The newest records first."""
    its = DECISIONS.c
    wanted = {
        its.namespace: which.namespace,
        its.subject: which.subject,
        its.uid: which.uid,
        its.kind: which.kind,
        its.reason: which.reason,
    }
    # the rows of several owners are sorted: read by number, all of the namespace would be passed over
    number = its.id + 0 if len(which.owners) > 1 else its.id
    found: Select[Any] = select(DECISIONS).order_by(number.desc()).limit(limit)
    found = found.where(*(column == value for column, value in wanted.items() if value))
    if which.owners:
        found = found.where(its.owner.in_(which.owners))
    if which.from_ms is not None:
        found = found.where(its.last_ms >= which.from_ms)
    if which.to_ms is not None:
        found = found.where(its.first_ms < which.to_ms)
    if which.before:
        found = found.where(its.id < which.before)
    return [DecisionRow(row.id, row.source, _run(row)) for row in connection.execute(found)]


def jobs_of(connection: Connection, namespace: str, cron_job: str) -> tuple[str, ...]:
    """The newest Jobs of a CronJob whose pods have decisions or sessions, as ``Job/name``.

    Kubernetes names them after the CronJob and the minute of their schedule: ``NAME-29400000``. A Job that a
    user made from the CronJob has any name and is not among them.
    """
    prefix = f"Job/{cron_job}-"
    minutes: set[int] = set()
    for table in (DECISIONS, SESSIONS):
        minutes |= _newest_minutes(connection, table, namespace, prefix)
    return tuple(f"{prefix}{each}" for each in sorted(minutes)[-_MOST_JOBS:])


def _newest_minutes(connection: Connection, table: Table, namespace: str, prefix: str) -> set[int]:
    """The newest minutes with which owners of this table go on after the prefix: a hundred where there are
    as many.

    They are read in the order of the index from its end, so older ones cost nothing. In every order of text
    equal beginnings are followed by digits in their order; what else lies between them is passed over.
    """
    its = table.c
    found: set[int] = set()
    below = prefix + "9" * 19  # more digits than a minute has
    while len(found) < _MOST_JOBS:
        owners = select(its.owner).distinct().order_by(its.owner.desc()).limit(_MOST_JOBS)
        owners = owners.where(its.namespace == namespace, its.owner >= f"{prefix}0", its.owner < below)
        page = connection.execute(owners).scalars().all()
        ends = (owner.removeprefix(prefix) for owner in page)
        found.update(int(end) for end in ends if _MINUTE.fullmatch(end))
        if len(page) < _MOST_JOBS:
            break
        below = page[-1]
    return found


def after(connection: Connection, number: int, limit: int) -> list[DecisionRow]:
    """The oldest records of those with a greater number."""
    found = select(DECISIONS).where(DECISIONS.c.id > number).order_by(DECISIONS.c.id).limit(limit)
    return [DecisionRow(row.id, row.source, _run(row)) for row in connection.execute(found)]


def last_standings(connection: Connection, namespaces: Iterable[str]) -> dict[str, str]:
    """The reason of the last change of each namespace's standing, where there is one."""
    its, names = DECISIONS.c, sorted(namespaces)
    found: dict[str, str] = {}
    for at in range(0, len(names), _EACH_QUERY):
        wanted = its.namespace.in_(names[at : at + _EACH_QUERY]), its.subject == "", its.kind == STANDING
        rows = select(its.namespace, its.reason).where(*wanted, its.reason.in_(_CHANGES)).order_by(its.id)
        found |= {row.namespace: row.reason for row in connection.execute(rows)}
    return found


def _run(row: Any) -> DecisionRun:
    decision = Decision(
        row.first_ms,
        row.kind,
        row.reason,
        row.namespace,
        json.loads(row.figures),
        row.owner,
        "" if row.is_generated else row.subject,
        row.subject if row.is_generated else "",
        row.uid,
        row.budget,
    )
    return DecisionRun(decision, row._mapping["count"], row.last_ms)
