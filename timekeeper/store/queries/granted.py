"""Sums of grants by account, of present and of ended accounts."""

from typing import Any

from sqlalchemy import and_, case, func, or_, select

from timekeeper.accounts.grants import BY_BUDGET, BY_HAND, CARRY, CORRECTION, NO_GRANTS, PERIOD, GrantSums
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import GRANTS

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
