"""The sums of accounts, read from the database: for processes that keep no running sums."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.accounts.balance import NO_RATES, Rates
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.store import grants, held_pods, ledger
from timekeeper.store.engine.engine import Connection
from timekeeper.store.sessions import OpenSums, open_sums

_NOTHING = OpenSums(0, 0)


@dataclass(frozen=True, slots=True)
class DatabaseSums:
    """`accounts.statements.LedgerTotals` read in one transaction, each at its first use, or together with
    others that are expected."""

    connection: Connection
    waiting: Mapping[str, int]
    now_ms: int
    _posted: dict[Part, int] = field(default_factory=dict)
    _granted: dict[AccountKey, GrantSums] = field(default_factory=dict)
    _open: dict[Part, OpenSums] = field(default_factory=dict)
    _rates: dict[str, Rates] = field(default_factory=dict)
    _declared: dict[str, list[DeclaredReservation]] = field(default_factory=dict)

    def expect(self, wanted: Iterable[Part]) -> None:
        """Read the unknown ones of these parts together."""
        missing = {part for part in wanted if part not in self._posted}
        if missing:
            self._posted.update(ledger.posted_of(self.connection, missing))
            found, rates = open_sums(self.connection, missing, self.now_ms)
            self._open.update({part: found.get(part, _NOTHING) for part in missing})
            self._rates.update({name: rates.get(name, NO_RATES) for name, _, _ in missing})

    def expect_granted(self, wanted: Iterable[AccountKey]) -> None:
        """Read the unknown grants of these accounts together."""
        missing = {key for key in wanted if key not in self._granted}
        if missing:
            found = ledger.granted_of(self.connection, missing)
            self._granted.update({key: found.get(key, NO_GRANTS) for key in missing})

    def reserve(self, found: Iterable[DeclaredReservation], names: Iterable[str]) -> None:
        """Add what pods without a session reserve in these namespaces."""
        self._declared.update({name: [] for name in names})
        for each in found:
            self._declared.setdefault(each.namespace, []).append(each)

    def granted(self, key: AccountKey) -> GrantSums:
        """See `accounts.statements.LedgerTotals`."""
        if key not in self._granted:
            self._granted[key] = grants.granted_in(self.connection, key)
        return self._granted[key]

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        """See `accounts.statements.LedgerTotals`."""
        return grants.last_granted(self.connection, subject, before_ms)

    def posted(self, part: Part) -> int:
        """See `accounts.statements.LedgerTotals`."""
        if part not in self._posted:
            self.expect((part,))
        return self._posted[part]

    def pending(self, part: Part) -> int:
        """See `accounts.statements.LedgerTotals`."""
        if part not in self._posted:
            self.expect((part,))
        return self._open[part].pending

    def declared(self, part: Part) -> int:
        """See `accounts.statements.LedgerTotals`."""
        if part not in self._posted:
            self.expect((part,))
        namespace, span = part[0], Interval(part[1], part[2])
        if namespace not in self._declared:
            self._declared[namespace] = held_pods.declared(self.connection, namespace)
        return sum(each.within(span) for each in self._declared[namespace]) + self._open[part].declared

    def rates(self, namespace: str) -> Rates:
        """See `accounts.statements.LedgerTotals`."""
        if namespace not in self._rates:
            self.expect(((namespace, self.now_ms, self.now_ms + 1),))
        rates, waiting = self._rates[namespace], self.waiting.get(namespace, 0)
        return replace(rates, waiting_milli=waiting) if waiting else rates

    def changed_since(self, namespace: str) -> int | None:
        """See `accounts.statements.LedgerTotals`; only the settler looks at accounts that ended long ago."""
        return None
