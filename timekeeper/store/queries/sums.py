"""The sums that statements need, read from the database now, for processes that keep no running sums."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Rates, UnsettledSession, rates_of
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.session import evidence
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.queries import granted, held_pods, ledger


@dataclass(frozen=True, slots=True)
class DatabaseSums:
    """`accounts.statements.Sums` read in one transaction. A namespace's sessions are read at their first
    use."""

    connection: Connection
    waiting: Mapping[str, int]
    now_ms: int
    _posted: dict[Part, int] = field(default_factory=dict)
    _granted: dict[AccountKey, GrantSums] = field(default_factory=dict)
    _held: dict[str, tuple[UnsettledSession, ...]] = field(default_factory=dict)
    _declared: dict[str, list[DeclaredReservation]] = field(default_factory=dict)

    def expect(self, wanted: Iterable[Part]) -> None:
        """Read the unknown ones of these parts together."""
        self._posted.update(ledger.posted_of(self.connection, set(wanted) - self._posted.keys()))

    def expect_granted(self, wanted: Iterable[AccountKey]) -> None:
        """Read the unknown grants of these accounts together."""
        missing = set(wanted) - self._granted.keys()
        if missing:
            found = ledger.granted_of(self.connection, missing)
            self._granted.update({key: found.get(key, NO_GRANTS) for key in missing})

    def hold(self, found: Mapping[str, tuple[UnsettledSession, ...]], names: Iterable[str]) -> None:
        """Add the open sessions of these namespaces."""
        self._held.update({name: found.get(name, ()) for name in names})

    def reserve(self, found: Iterable[DeclaredReservation], names: Iterable[str]) -> None:
        """Add what pods without a session reserve in these namespaces."""
        self._declared.update({name: [] for name in names})
        for each in found:
            self._declared.setdefault(each.namespace, []).append(each)

    def granted(self, key: AccountKey) -> GrantSums:
        """See `accounts.statements.Sums`."""
        if key not in self._granted:
            self._granted[key] = granted.granted_in(self.connection, key)
        return self._granted[key]

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        """See `accounts.statements.Sums`."""
        return granted.last_granted(self.connection, subject, before_ms)

    def posted(self, part: Part) -> int:
        """See `accounts.statements.Sums`."""
        self.expect((part,))
        return self._posted[part]

    def pending(self, part: Part) -> int:
        """See `accounts.statements.Sums`."""
        namespace, start, end = part
        return sum(each.pending(Interval(start, end), self.now_ms) for each in self._sessions(namespace))

    def declared(self, part: Part) -> int:
        """See `accounts.statements.Sums`."""
        namespace, span = part[0], Interval(part[1], part[2])
        if namespace not in self._declared:
            self._declared[namespace] = held_pods.declared(self.connection, namespace)
        unbound = sum(each.within(span) for each in self._declared[namespace])
        return unbound + sum(each.declared(span, self.now_ms) for each in self._sessions(namespace))

    def rates(self, namespace: str) -> Rates:
        """See `accounts.statements.Sums`."""
        return rates_of(self._sessions(namespace), self.waiting.get(namespace, 0), self.now_ms)

    def changed_since(self, namespace: str) -> int | None:
        """See `accounts.statements.Sums`; only the settler looks at accounts that ended long ago."""
        return None

    def _sessions(self, namespace: str) -> tuple[UnsettledSession, ...]:
        if namespace not in self._held:
            self.hold(held(self.connection, (namespace,)), (namespace,))
        return self._held[namespace]


def held(connection: Connection, names: Iterable[str] | None) -> dict[str, tuple[UnsettledSession, ...]]:
    """The unsettled sessions with their evidence, of these namespaces or (None) of all."""
    watermarks = ledger.watermarks(connection)
    by_namespace: dict[str, list[UnsettledSession]] = {}
    for name in (None,) if names is None else names:
        found, beats = ledger.unsettled(connection, name), ledger.beats(connection, namespace=name)
        for uid, session in found.sessions.items():
            known = evidence(session, watermarks.get(session.node), beats.get(uid))
            each = UnsettledSession(session, known, found.posted.get(uid, ()))
            by_namespace.setdefault(session.namespace, []).append(each)
    return {name: tuple(each) for name, each in by_namespace.items()}
