"""The settler's check of itself, a namespace at a time: what is stated as posted is compared with the
database."""

from timekeeper.accounts.laws import Breach, LedgerFacts, breaches
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.totals import StoredTotals

_PART = 100  # a check takes at most 1/100 of the time


class SelfCheck:
    """Checks one namespace after the other, forever. ``breaches``: what the database contradicts, by
    namespace; such a namespace is checked again each time."""

    def __init__(self) -> None:
        self.breaches: dict[str, tuple[Breach, ...]] = {}
        self._remaining: list[str] = []
        self._next_s = 0.0

    def check(self, ledger: LedgerState, stored: StoredTotals, began_s: float) -> None:
        """Check the namespace whose turn it is; nothing before the next check is due. What differs is read
        anew by the next tick. ``began_s``: monotonic seconds. Raises UnavailableError."""
        if began_s < self._next_s:
            return
        self._remaining = self._remaining or sorted({part[0] for part in ledger.totals})
        names = {*self.breaches, *([self._remaining.pop()] if self._remaining else [])}
        published = {part: amount for part, amount in ledger.totals.items() if part[0] in names}
        found = list(breaches(LedgerFacts(published=published, stored=stored.posted(published))))
        self.breaches = {breach.namespace: () for breach in found}
        for breach in found:
            self.breaches[breach.namespace] += (breach,)
        for part in published:
            if part[0] in self.breaches:
                del ledger.totals[part]

    def schedule_next(self, began_s: float, ended_s: float) -> None:
        """The next check comes after 1 s, or after 100 times the duration of this one."""
        if began_s >= self._next_s:
            self._next_s = ended_s + max(1.0, _PART * (ended_s - began_s))
