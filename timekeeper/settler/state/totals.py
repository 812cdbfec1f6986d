"""Answers what `statements` reads from the ledger: from cached totals, and from the database for the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from timekeeper.accounts.balance import Rates
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.session_table import SessionTable


class StoredTotals(Protocol):
    """The same totals from the database, for many accounts at once. Postings of the current tick are not in
    them."""

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """Posted amount of each part."""

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """Grants of the accounts, ended or not, that have any."""

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """Subject -> span of its latest account with a grant that ended by then."""

    def charges_since(self, names: Sequence[str], since_ms: int) -> Iterable[tuple[str, Interval, float]]:
        """Namespace, time and rate of what is posted of these namespaces since then."""

    def posted_by_pods(self, namespace: str, span: Interval) -> Iterable[tuple[str, str, int]]:
        """What is posted of the namespace inside the span: controller, labels as JSON, and amount."""


@dataclass(slots=True)
class GrantCache:
    """Sums of grants that were read from the database."""

    mark: tuple[int, int] = (-1, -1)  # identifies the newest grant in the database when this was read
    at_ms: int = 0  # when it was read
    # grants of accounts that had not ended at ``at_ms``
    now: Mapping[AccountKey, GrantSums] = field(default_factory=dict)
    # grants of ended accounts that were looked up
    ended: dict[AccountKey, GrantSums] = field(default_factory=dict)
    # subject -> span of its latest account with a grant that ended by ``latest_ms``
    latest: dict[str, Interval] = field(default_factory=dict)
    latest_ms: int = -1
    last: dict[int, dict[str, Interval]] = field(default_factory=dict)  # the same for earlier moments


@dataclass(slots=True)
class TickTotals:
    """The totals of one tick (`statements.LedgerTotals`). Missing values are read from the database and
    cached."""

    grants: GrantCache  # the ledger state's; grows
    totals: dict[Part, int]  # the ledger state's; grows
    table: SessionTable
    waiting: Mapping[str, int]  # namespace -> rate of its waiting pods
    new: Mapping[str, tuple[Posting, ...]]  # namespace -> this tick's postings
    stored: StoredTotals
    now_ms: int
    # what the namespace's pods that declared their time and have no session reserve of a span
    unbound: Callable[[str, Interval], int] = lambda _namespace, _span: 0

    def expect(self, parts: Iterable[Part]) -> None:
        """Read the parts that are not cached in one query."""
        missing = {part for part in parts if part not in self.totals}
        if missing:
            self.totals.update(self.stored.posted(missing))

    def expect_granted(self, keys: Iterable[AccountKey]) -> None:
        """Read the grants of these ended accounts that are not cached in one query."""
        known = self.grants.ended
        missing = {key for key in keys if key not in known and key not in self.grants.now}
        if missing:
            found = self.stored.granted(missing)
            known |= {key: found.get(key, NO_GRANTS) for key in missing}

    def retain(self, accounts: Set[AccountKey], parts: Set[Part]) -> None:
        """Drop the grants of other ended accounts, and the totals of other parts."""
        for key in self.grants.ended.keys() - accounts:
            del self.grants.ended[key]
        for part in self.totals.keys() - parts:
            del self.totals[part]

    def granted(self, key: AccountKey) -> GrantSums:
        """The grants of this account, without those of this tick."""
        found = self.grants.now.get(key)
        if found is not None or key[2] > self.now_ms:
            return found or NO_GRANTS
        if key not in self.grants.ended:
            if self._is_missed(key):
                return NO_GRANTS
            self.expect_granted((key,))
        return self.grants.ended[key]

    def _is_missed(self, key: AccountKey) -> bool:
        """Whether the subject's latest grant is known to belong to an earlier account."""
        subject, _, end_ms = key
        if end_ms > self.grants.latest_ms:
            return False
        latest = self.grants.latest.get(subject)
        return latest is None or latest.end_ms < end_ms

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        """The first call reads the answer for all subjects and all earlier moments."""
        grants = self.grants
        if before_ms > grants.latest_ms:
            grants.latest, grants.latest_ms = self.stored.last_granted(self.now_ms), self.now_ms
            self.expect_granted((name, span.start_ms, span.end_ms) for name, span in grants.latest.items())
        latest = grants.latest.get(subject)
        if latest is None or latest.end_ms <= before_ms:
            return latest
        if before_ms not in grants.last:
            grants.last[before_ms] = self.stored.last_granted(before_ms)
        return grants.last[before_ms].get(subject)

    def posted(self, part: Part) -> int:
        """What is posted in this part with the postings of this tick, in milli-GPU x ms."""
        namespace, start, end = part
        if part not in self.totals:
            self.expect((part,))
        new = self.new.get(namespace)
        return self.totals[part] + (amount_within(new, Interval(start, end)) if new else 0)

    def pending(self, part: Part) -> int:
        """What open sessions owe in this part beyond what is posted, in milli-GPU x ms."""
        namespace, start, end = part
        return self.table.pending(namespace, Interval(start, end))

    def declared(self, part: Part) -> int:
        """What is reserved of declared time in this part, in milli-GPU x ms."""
        namespace, start, end = part
        span = Interval(start, end)
        return self.table.declared(namespace, span) + self.unbound(namespace, span)

    def rates(self, namespace: str) -> Rates:
        """The rates of the namespace's sessions and of its pods without a node."""
        return self.table.rates(namespace, self.waiting.get(namespace, 0))

    def changed_since(self, namespace: str) -> int | None:
        """Since when something of the namespace has changed, in Unix milliseconds; None: nothing has."""
        moments = (
            self.table.changed_since.get(namespace),
            self.table.changed_without_budget.get(namespace),
        )
        return min((each for each in moments if each is not None), default=None)
