"""Totals that the settler reads from the database while it decides; cached where possible."""

from collections.abc import Iterable
from dataclasses import dataclass

from timekeeper.accounts.grants import GrantSums
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.totals import GrantCache
from timekeeper.store.engine.engine import Connection, Store
from timekeeper.store.queries import ledger as reading


@dataclass(frozen=True, slots=True)
class DatabaseTotals:
    """The ledger's own totals (`totals.StoredTotals`). Each query is a short transaction of its own, because
    a decision can take seconds. They are consistent with each other, because only the settler posts."""

    store: Store

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """What is posted in each part, in milli-GPU x ms."""
        with self.store.reading() as connection:
            return reading.posted_of(connection, parts)

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """The grants of each account."""
        with self.store.reading() as connection:
            return reading.granted_of(connection, keys)

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """Each subject's latest account that ended by then and has a grant, as a span."""
        with self.store.reading() as connection:
            return reading.last_granted(connection, before_ms)


def read_grants(connection: Connection, ledger: LedgerState, now_ms: int) -> None:
    """Read the grants of the accounts that have not ended. They are read again when a grant was added, and
    when the clock was set back (an ended account may be open again)."""
    before, mark = ledger.grants, reading.grants_mark(connection)
    if mark == before.mark and now_ms >= before.at_ms:
        return
    now = reading.granted(connection, now_ms)
    ended = reading.granted_of(connection, before.ended)
    for old, new in ((before.now, now), (before.ended, ended)):
        ledger.changed_grants |= {key[0] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    ledger.grants = GrantCache(mark, now_ms, now)
