"""What `statements` asks of the ledger, answered from sums that are kept; from the database where they are
not."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from timekeeper.accounts.balance import Rates
from timekeeper.accounts.grants import NO_GRANTS, GrantSums
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.open_session_totals import OpenSessionTotals


class Stored(Protocol):
    """The same questions to the database, for many accounts at once; it knows nothing of this tick's
    postings."""

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """What is posted of each part."""

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """The grants of accounts, ended or not, that have any."""

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """For each subject the span of its latest account that ended by then and has a grant."""


@dataclass(slots=True)
class GrantCache:
    """Grants by account, as of the ``mark`` that the database had: of accounts that had not ended at
    ``at_ms``, and what was asked of those that had. ``latest``: for each subject the span of its latest
    account that had ended by ``latest_ms`` and has a grant; ``last``: the same by earlier moments."""

    mark: tuple[int, int] = (-1, -1)
    at_ms: int = 0
    now: Mapping[AccountKey, GrantSums] = field(default_factory=dict)
    ended: dict[AccountKey, GrantSums] = field(default_factory=dict)
    latest: dict[str, Interval] = field(default_factory=dict)
    latest_ms: int = -1
    last: dict[int, dict[str, Interval]] = field(default_factory=dict)


@dataclass(slots=True)
class TickTotals:
    """The sums of one tick. ``grants`` and ``totals`` are the book's and grow by what is asked for; ``new``:
    this tick's postings by namespace."""

    grants: GrantCache
    totals: dict[Part, int]
    tally: OpenSessionTotals
    waiting: Mapping[str, int]
    new: Mapping[str, tuple[Posting, ...]]
    stored: Stored
    now_ms: int

    def expect(self, parts: Iterable[Part]) -> None:
        """Read together what of these parts is not known yet."""
        missing = {part for part in parts if part not in self.totals}
        if missing:
            self.totals.update(self.stored.posted(missing))

    def expect_granted(self, keys: Iterable[AccountKey]) -> None:
        """Read together the grants of these accounts, which have ended, that are not known yet."""
        known = self.grants.ended
        missing = {key for key in keys if key not in known and key not in self.grants.now}
        if missing:
            found = self.stored.granted(missing)
            known |= {key: found.get(key, NO_GRANTS) for key in missing}

    def keep(self, accounts: Set[AccountKey], parts: Set[Part]) -> None:
        """Keep the grants of these accounts, where they have ended, and the sums of these parts alone."""
        for key in self.grants.ended.keys() - accounts:
            del self.grants.ended[key]
        for part in self.totals.keys() - parts:
            del self.totals[part]
        self.tally.keep(parts)

    def granted(self, key: AccountKey) -> GrantSums:
        """See `statements.Sums`."""
        found = self.grants.now.get(key)
        if found is not None or key[2] > self.now_ms:
            return found or NO_GRANTS
        if key not in self.grants.ended:
            if self._is_missed(key):
                return NO_GRANTS
            self.expect_granted((key,))
        return self.grants.ended[key]

    def _is_missed(self, key: AccountKey) -> bool:
        """Whether the subject's latest grant is known to be of an account before this one."""
        subject, _, end_ms = key
        if end_ms > self.grants.latest_ms:
            return False
        latest = self.grants.latest.get(subject)
        return latest is None or latest.end_ms < end_ms

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        """See `statements.Sums`. The first question reads what the others will ask, of all subjects and of
        all moments before."""
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
        """See `statements.Sums`."""
        namespace, start, end = part
        if part not in self.totals:
            self.expect((part,))
        new = self.new.get(namespace)
        return self.totals[part] + (amount_within(new, Interval(start, end)) if new else 0)

    def pending(self, part: Part) -> int:
        """See `statements.Sums`."""
        namespace, start, end = part
        return self.tally.pending(namespace, Interval(start, end))

    def rates(self, namespace: str) -> Rates:
        """See `statements.Sums`."""
        return self.tally.rates(namespace, self.waiting.get(namespace, 0))

    def touched(self, namespace: str) -> int | None:
        """See `statements.Sums`."""
        moments = (self.tally.touched.get(namespace), self.tally.owed.get(namespace))
        return min((each for each in moments if each is not None), default=None)
