"""Manual grants, written once per idempotency key, and all grants in pages."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, and_, case, func, insert, or_, select

from timekeeper.accounts.grants import (
    BY_BUDGET,
    BY_HAND,
    CARRY,
    CORRECTION,
    NO_GRANTS,
    PERIOD,
    SPLIT,
    Grant,
    GrantSums,
)
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import GRANTS
from timekeeper.store.postings import grant_row

# A transaction that reads grants or balances and then writes a grant takes this turn: see `Store.writing`.
TURN = "grants"

_COLUMNS = tuple(GRANTS.c)


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A stored grant."""

    number: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """The grants under the requested keys. ``is_new``: this call wrote them."""

    written: tuple[GrantRow, ...]
    is_new: bool

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Only the grants."""
        return tuple(each.grant for each in self.written)


@dataclass(frozen=True, slots=True)
class GrantFilter:
    """A filter of grants. An empty ``subject`` matches any; ``after`` is a grant's number."""

    subject: str = ""
    after: int = 0


def known(connection: Connection, *keys: str) -> tuple[GrantRow, ...]:
    """The grants under these keys, in order of creation."""
    rows = connection.execute(_all().where(GRANTS.c.idempotency_key.in_(keys)))
    return tuple(_written(row) for row in rows)


def give(connection: Connection, *grants: Grant) -> GrantOutcome:
    """Write the grants, or return those that their keys already have."""
    keys = [each.idempotency_key for each in grants]
    there = known(connection, *keys)
    if there:
        return GrantOutcome(there, is_new=False)
    connection.execute(insert(GRANTS), [grant_row(each) for each in grants])
    return GrantOutcome(known(connection, *keys), is_new=True)


def page(connection: Connection, which: GrantFilter, limit: int) -> list[GrantRow]:
    """Grants in order of creation."""
    found = _all().where(GRANTS.c.id > which.after).limit(limit)
    if which.subject:
        found = found.where(GRANTS.c.subject == which.subject)
    return [_written(row) for row in connection.execute(found)]


def _all() -> Select[tuple[object, ...]]:
    return select(*_COLUMNS).order_by(GRANTS.c.id)


def _written(row: Row[tuple[object, ...]]) -> GrantRow:
    return GrantRow(
        row.id,
        Grant(
            subject=row.subject,
            span=Interval(row.period_start_ms, row.period_end_ms),
            amount=row.amount,
            kind=row.kind,
            reason=row.reason,
            actor=row.actor,
            idempotency_key=row.idempotency_key,
            created_ms=row.created_ms,
            group=row.group_key or "",
            group_span=Interval(row.group_start_ms, row.group_end_ms) if row.group_key else None,
        ),
    )


_ACCOUNT = (GRANTS.c.subject, GRANTS.c.period_start_ms, GRANTS.c.period_end_ms)
# A manual correction is not part of the budget; otherwise the settler would revert it.
_OWN = GRANTS.c.idempotency_key.like(f"{PERIOD}/%")
_BY_BUDGET = and_(GRANTS.c.kind.in_(BY_BUDGET), _OWN)
_BY_HAND = or_(GRANTS.c.kind.in_(BY_HAND), and_(GRANTS.c.kind == CORRECTION, ~_OWN))
_SUMS = (
    func.sum(case((_BY_BUDGET, GRANTS.c.amount))),
    func.coalesce(func.sum(case((_BY_HAND, GRANTS.c.amount))), 0),
    func.coalesce(func.sum(case((GRANTS.c.kind == CARRY, GRANTS.c.amount))), 0),
    func.count(case((GRANTS.c.kind == CARRY, 1))),
    func.coalesce(func.max(case((GRANTS.c.kind == CARRY, GRANTS.c.created_ms))), 0),
    func.coalesce(func.sum(case((GRANTS.c.group_key.is_not(None), GRANTS.c.amount))), 0),
    func.count(case((GRANTS.c.idempotency_key.like(f"{SPLIT}/%"), 1))),
)


def granted_where(connection: Connection, *conditions: Any) -> dict[tuple[str, int, int], GrantSums]:
    """The sums of the grants that meet these SQL conditions, by subject, start and end of the account."""
    found = select(*_ACCOUNT, *_SUMS).where(*conditions).group_by(*_ACCOUNT)
    return {
        (subject, start, end): GrantSums(None if by_budget is None else int(by_budget), *map(int, rest))
        for subject, start, end, by_budget, *rest in connection.execute(found)
    }


def granted_in(connection: Connection, key: tuple[str, int, int]) -> GrantSums:
    """The sums of one account, ended or not; NO_GRANTS if it has no grant."""
    subject, start, end = key
    conditions = (
        GRANTS.c.period_end_ms == end,
        GRANTS.c.subject == subject,
        GRANTS.c.period_start_ms == start,
    )
    return granted_where(connection, *conditions).get(key, NO_GRANTS)


def passed_on(connection: Connection, group: str, span: Interval) -> dict[tuple[str, int, int], int]:
    """What this account of a group (``_group.NAME``) has passed on, less what was taken back, by subject,
    start and end of the account that received it."""
    found = (
        select(*_ACCOUNT, func.sum(GRANTS.c.amount))
        .where(
            GRANTS.c.group_key == group,
            GRANTS.c.group_start_ms == span.start_ms,
            GRANTS.c.group_end_ms == span.end_ms,
        )
        .group_by(*_ACCOUNT)
    )
    return {(subject, start, end): int(amount) for subject, start, end, amount in connection.execute(found)}


def last_granted(connection: Connection, subject: str, before_ms: int) -> Interval | None:
    """The span of the subject's latest account that ended by then and has a grant."""
    columns = (GRANTS.c.period_start_ms, GRANTS.c.period_end_ms)
    newest = select(*columns).where(GRANTS.c.subject == subject, GRANTS.c.period_end_ms <= before_ms)
    row = connection.execute(newest.order_by(GRANTS.c.period_end_ms.desc()).limit(1)).one_or_none()
    return Interval(*row) if row else None
