"""The sums that statements are made of, the plain way: out of lists, one by one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.timekeeper import one_by_one
from timekeeper.accounts.account_rows import row_of
from timekeeper.accounts.balance import Rates, UnsettledSession
from timekeeper.accounts.budget_history import DEFAULTS
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.statements import AccountKey, Part, statements, working_set
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.ledger_state import read_ledger_state
from timekeeper.store import ledger, postings
from timekeeper.store.engine.engine import Store, write_all


@dataclass(frozen=True, slots=True)
class Listed:
    """`statements.LedgerTotals` out of lists: sessions one by one, and postings on top of ``totals``."""

    grants: Mapping[AccountKey, GrantSums]
    totals: Mapping[Part, int]
    held: Mapping[str, Iterable[UnsettledSession]]
    waiting: Mapping[str, int]
    postings: tuple[Posting, ...]
    now_ms: int

    def expect(self, parts: Iterable[Part]) -> None:
        """Everything is there."""

    def expect_granted(self, keys: Iterable[AccountKey]) -> None:
        """Everything is there."""

    def granted(self, key: AccountKey) -> GrantSums:
        return self.grants.get(key, NO_GRANTS)

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        ended = [(start, end) for name, start, end in self.grants if name == subject and end <= before_ms]
        return Interval(*max(ended)) if ended else None

    def posted(self, part: Part) -> int:
        namespace, start, end = part
        new = (each for each in self.postings if each.namespace == namespace)
        return self.totals.get(part, 0) + amount_within(new, Interval(start, end))

    def pending(self, part: Part) -> int:
        namespace, start, end = part
        return sum(
            one_by_one.pending(each, Interval(start, end), self.now_ms) for each in self._held(namespace)
        )

    def declared(self, part: Part) -> int:
        namespace, start, end = part
        return sum(
            one_by_one.declared(each, Interval(start, end), self.now_ms) for each in self._held(namespace)
        )

    def rates(self, namespace: str) -> Rates:
        waiting_milli = self.waiting.get(namespace, 0)
        return one_by_one.rates_of(self._held(namespace), waiting_milli, self.now_ms)

    def _held(self, namespace: str) -> Iterable[UnsettledSession]:
        return self.held.get(namespace, ())

    def changed_since(self, namespace: str) -> int | None:
        """Always as in the first tick."""
        starts = (each.witnessed(self.now_ms).interval.start_ms for each in self._held(namespace))
        return min((start for start in starts if start), default=None)


def write_accounts(store: Store, now_ms: int) -> None:
    """State the accounts of what is in the database, as a settler's first tick at this moment does."""
    known = read_ledger_state(store)
    now_ms = max(now_ms, known.history.newest_ms())
    held: dict[str, list[UnsettledSession]] = {}
    for session in known.sessions.values():
        unsettled = known.unsettled(session, known.watermarks.get(session.witness))
        held.setdefault(session.namespace, []).append(unsettled)
    names = sorted(known.history.namespaces() | known.namespaces)
    with store.reading() as connection:
        grants = ledger.granted(connection, 0)
        parts = working_set(known.history, names, known.namespaces, now_ms).parts
        totals = ledger.posted_of(connection, parts)
    sums = Listed(grants, totals, held, known.waiting, (), now_ms)
    made = statements(known.history, names, known.namespaces, sums, now_ms)
    stated = {**made.namespaces, **made.groups}
    rows = [row_of(subject, statement, now_ms, 0) for subject, statement in stated.items()]
    pulse = Pulse(now_ms, now_ms, "") if known.pulse == NEVER else None
    default = row_of(DEFAULTS, made.default, now_ms if pulse else known.pulse.decided_ms, 0)
    with store.writing() as connection:
        changes = Changes(accounts=(*rows, default), is_first=True, pulse=pulse)
        write_all(connection, postings.rows_of(changes))
