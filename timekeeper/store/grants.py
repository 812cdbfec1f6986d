"""Grants by hand: written once under their idempotency key."""

from dataclasses import dataclass

from sqlalchemy import insert, select

from timekeeper.accounts.grants import Grant
from timekeeper.store.engine import Connection
from timekeeper.store.schema import GRANTS
from timekeeper.store.settling import grant_row


@dataclass(frozen=True, slots=True)
class Given:
    """The grant that stands under a key: ``is_new`` where this call made it."""

    amount: int
    reason: str
    is_new: bool


def give(connection: Connection, grant: Grant) -> Given:
    """Write the grant, or tell which one stands under its key already."""
    columns = (GRANTS.c.amount, GRANTS.c.reason)
    known = connection.execute(
        select(*columns).where(GRANTS.c.idempotency_key == grant.idempotency_key)
    ).one_or_none()
    if known:
        return Given(known.amount, known.reason, is_new=False)
    connection.execute(insert(GRANTS).values(grant_row(grant)))
    return Given(grant.amount, grant.reason, is_new=True)
