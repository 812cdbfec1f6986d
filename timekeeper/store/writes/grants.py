"""Manual grants, written once per idempotency key, and all grants in pages."""

from dataclasses import dataclass

from sqlalchemy import Row, Select, insert, select

from timekeeper.accounts.grants import Grant
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import GRANTS
from timekeeper.store.writes.settling import grant_row

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
