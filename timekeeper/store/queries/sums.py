"""What statements are made of, read from the database as it is now, for whoever keeps no sums."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Rates, UnsettledSession, rates_of
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.session import evidence
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.queries import granted
from timekeeper.store.queries import ledger as reading


@dataclass(frozen=True, slots=True)
class Read:
    """What `statements` asks of the ledger, read in one transaction; sessions are read when they are asked
    for first."""

    connection: Connection
    waiting: Mapping[str, int]
    now_ms: int
    _posted: dict[Part, int] = field(default_factory=dict)
    _granted: dict[AccountKey, GrantSums] = field(default_factory=dict)
    _held: dict[str, tuple[UnsettledSession, ...]] = field(default_factory=dict)

    def expect(self, wanted: Iterable[Part]) -> None:
        """Read together what of these parts is not known yet."""
        self._posted.update(reading.posted_of(self.connection, set(wanted) - self._posted.keys()))

    def expect_granted(self, wanted: Iterable[AccountKey]) -> None:
        """Read together the grants of these accounts that are not known yet."""
        missing = set(wanted) - self._granted.keys()
        if missing:
            found = reading.granted_of(self.connection, missing)
            self._granted.update({key: found.get(key, NO_GRANTS) for key in missing})

    def hold(self, found: Mapping[str, tuple[UnsettledSession, ...]], names: Iterable[str]) -> None:
        """Take in the open sessions of these namespaces."""
        self._held.update({name: found.get(name, ()) for name in names})

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

    def rates(self, namespace: str) -> Rates:
        """See `accounts.statements.Sums`."""
        return rates_of(self._sessions(namespace), self.waiting.get(namespace, 0), self.now_ms)

    def touched(self, namespace: str) -> int | None:
        """See `accounts.statements.Sums`: accounts that ended long ago are the settler's to look at."""
        return None

    def _sessions(self, namespace: str) -> tuple[UnsettledSession, ...]:
        if namespace not in self._held:
            self.hold(held(self.connection, namespace), (namespace,))
        return self._held[namespace]


def held(connection: Connection, namespace: str | None) -> dict[str, tuple[UnsettledSession, ...]]:
    """The sessions that are not settled, with all that is known of them, of one namespace or of all."""
    found = reading.unsettled(connection, namespace)
    watermarks, beats = reading.watermarks(connection), reading.beats(connection, namespace=namespace)
    by_namespace: dict[str, list[UnsettledSession]] = {}
    for uid, session in found.sessions.items():
        known = evidence(session, watermarks.get(session.node), beats.get(uid))
        each = UnsettledSession(session, known, found.posted.get(uid, ()))
        by_namespace.setdefault(session.namespace, []).append(each)
    return {name: tuple(each) for name, each in by_namespace.items()}
