"""What sessions are for, in rows that a release before the schema 0035 wrote: it follows from their UIDs."""

from sqlalchemy import bindparam, select, update

from timekeeper.accounts.session import ChargeKind, kind_of
from timekeeper.store.engine.engine import Connection, Store, write_all
from timekeeper.store.engine.schema import FOLDED, NO_CHARGE, NO_OWNER, SESSIONS

_AT_ONCE = 2_000  # UIDs of each table, in one transaction
_UNFILLED = (
    (SESSIONS.c.uid, NO_CHARGE, ChargeKind._fields),
    (FOLDED.c.session_uid, NO_OWNER, ("owner_uid",)),
)


def fill(store: Store) -> None:
    """Fill all such rows, a few in each transaction: others write in between."""
    is_left = True
    while is_left:
        with store.writing() as connection:
            is_left = fill_some(connection)


def fill_some(connection: Connection) -> bool:
    """Fill a few, and return whether more may be left."""
    most = 0
    for uid, unfilled, names in _UNFILLED:
        some = select(uid).where(unfilled).distinct().order_by(uid).limit(_AT_ONCE)
        found = {name: kind_of(name)._asdict() for name in connection.scalars(some)}
        rows = [{"b_uid": key, **{f"b_{name}": kind[name] for name in names}} for key, kind in found.items()]
        of_uid = update(uid.table).where(uid == bindparam("b_uid"))
        filled = of_uid.values({name: bindparam(f"b_{name}") for name in names})
        write_all(connection, [(filled, rows)])
        most = max(most, len(rows))
    return most == _AT_ONCE
