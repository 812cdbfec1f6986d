"""What the settler reads from the database while it decides, and only once where it can be kept."""

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
class Database:
    """The ledger's own sums, each question in a short transaction of its own: to decide may take seconds, and
    no transaction is open for so long. Nobody else posts, so they fit together."""

    store: Store

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """See `sums.Stored`."""
        with self.store.reading() as connection:
            return reading.posted_of(connection, parts)

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """See `sums.Stored`."""
        with self.store.reading() as connection:
            return reading.granted_of(connection, keys)

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """See `sums.Stored`."""
        with self.store.reading() as connection:
            return reading.last_granted(connection, before_ms)


def read_grants(connection: Connection, book: LedgerState, now_ms: int) -> None:
    """The grants of the accounts that have not ended, read again when one was added, and when the clock was
    turned back: an account that had ended may be open again."""
    before, mark = book.grants, reading.grants_mark(connection)
    if mark == before.mark and now_ms >= before.at_ms:
        return
    now = reading.granted(connection, now_ms)
    ended = reading.granted_of(connection, before.ended)
    for old, new in ((before.now, now), (before.ended, ended)):
        book.regranted |= {key[0] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    book.grants = GrantCache(mark, now_ms, now)
