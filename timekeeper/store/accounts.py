"""The running accounts, as the settler wrote them last."""

from collections.abc import Collection
from dataclasses import fields, replace

from sqlalchemy import bindparam, select

from timekeeper.accounts.account_rows import FORMAT, AccountRow
from timekeeper.accounts.budget_history import DEFAULTS
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import ACCOUNTS, PULSE

_USE = ("decayed", "decayed_ms", "half_life_ms")  # the settler alone reads them
_NAMES = tuple(field.name for field in fields(AccountRow) if field.name not in _USE)
_NEW = select(*(ACCOUNTS.c[name] for name in _NAMES), PULSE.c.decided_ms).join(PULSE, PULSE.c.id == 1)
_SOME = _NEW.where(ACCOUNTS.c.subject.in_(bindparam("subjects", expanding=True)))
_MOST_NAMED = 1_000


class NotWrittenError(Exception):
    """The rows are of a settler of another release, or there are none yet; the next tick writes them."""

    def __init__(self) -> None:
        super().__init__("the settler has not written the accounts yet: ask again")


def with_use(connection: Connection) -> dict[str, AccountRow]:
    """All rows, with what is left of the accounts' use. Raises NotWrittenError."""
    found = rows(connection)
    columns = [ACCOUNTS.c[name] for name in ("subject", *_USE)]
    uses = connection.execute(select(*columns).where(ACCOUNTS.c.half_life_ms.is_not(None))).mappings()
    return found | {use["subject"]: replace(found[use["subject"]], **use) for use in uses}


def rows(connection: Connection, subjects: Collection[str] | None = None) -> dict[str, AccountRow]:
    """The rows of these namespaces and groups; of more than a statement may have parameters, and of None: all
    rows. Always with that of `DEFAULTS`. Raises NotWrittenError.

    A settler writes the row of `DEFAULTS` in each tick, with the tick's moment. So it shows whether another
    release, which does not know the table, has decided since.
    """
    is_some = subjects is not None and len(subjects) <= _MOST_NAMED
    given = {"subjects": [*(subjects or ()), DEFAULTS]} if is_some else {}
    found, decided = {}, set()
    for values in connection.execute(_SOME if is_some else _NEW, given).mappings():
        row = AccountRow(**{name: values[name] for name in _NAMES})
        found[row.subject] = row
        decided.add(values["decided_ms"])
    newest = found.get(DEFAULTS)
    if newest is None or {newest.as_of_ms} != decided or any(row.format != FORMAT for row in found.values()):
        raise NotWrittenError
    return found
