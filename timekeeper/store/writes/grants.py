"""Grants by hand: written once under their idempotency key; and all grants, page by page."""

from dataclasses import dataclass

from sqlalchemy import Row, Select, insert, select

from timekeeper.accounts.grants import Grant
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import GRANTS
from timekeeper.store.writes.settling import grant_row

# Whoever decides by what was granted or is left, and then grants, takes this turn: see `Store.writing`.
TURN = "grants"

_COLUMNS = tuple(GRANTS.c)


@dataclass(frozen=True, slots=True)
class Written:
    """A grant as it stands in the ledger."""

    number: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Given:
    """The grants that stand under the keys that were asked for: ``is_new`` where this call made them."""

    written: tuple[Written, ...]
    is_new: bool

    @property
    def grants(self) -> tuple[Grant, ...]:
        """They alone."""
        return tuple(each.grant for each in self.written)


@dataclass(frozen=True, slots=True)
class Which:
    """Which grants: empty where any; ``after`` a number."""

    subject: str = ""
    after: int = 0


def known(connection: Connection, *keys: str) -> tuple[Written, ...]:
    """The grants that stand under these keys, in the order in which they were given."""
    rows = connection.execute(_all().where(GRANTS.c.idempotency_key.in_(keys)))
    return tuple(_written(row) for row in rows)


def give(connection: Connection, *grants: Grant) -> Given:
    """Write the grants, or tell which stand under their keys already."""
    keys = [each.idempotency_key for each in grants]
    there = known(connection, *keys)
    if there:
        return Given(there, is_new=False)
    connection.execute(insert(GRANTS), [grant_row(each) for each in grants])
    return Given(known(connection, *keys), is_new=True)


def page(connection: Connection, which: Which, limit: int) -> list[Written]:
    """Grants in the order in which they were given."""
    found = _all().where(GRANTS.c.id > which.after).limit(limit)
    if which.subject:
        found = found.where(GRANTS.c.subject == which.subject)
    return [_written(row) for row in connection.execute(found)]


def _all() -> Select[tuple[object, ...]]:
    return select(*_COLUMNS).order_by(GRANTS.c.id)


def _written(row: Row[tuple[object, ...]]) -> Written:
    return Written(
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
        ),
    )
