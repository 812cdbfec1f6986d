"""The settler's check of itself, a namespace at a time: cached totals are compared with the sessions one by
one, and what is stated as posted with the database."""

from collections.abc import Iterator

from timekeeper.accounts.balance import figures_of
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

    def check(self, ledger: LedgerState, stored: StoredTotals, began_s: float) -> Iterator[str]:
        """Differences between totals and sessions in the namespace whose turn it is; none before the next
        check is due. ``began_s``: monotonic seconds. Raises UnavailableError."""
        if began_s < self._next_s:
            return
        known = {*ledger.open_totals.namespaces(), *(part[0] for part in ledger.totals)}
        self._remaining = self._remaining or sorted(known)
        turn = [self._remaining.pop()] if self._remaining else []
        self._compare(ledger, stored, {*self.breaches, *turn})
        if not ledger.open_totals.is_whole:
            return
        if len(ledger.open_totals) != len(ledger.sessions):
            yield f"totals cover {len(ledger.open_totals)} sessions, but {len(ledger.sessions)} are open"
        for namespace in turn:
            yield from differences(ledger, namespace)

    def _compare(self, ledger: LedgerState, stored: StoredTotals, names: set[str]) -> None:
        """What differs is read anew by the next tick."""
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


def differences(ledger: LedgerState, namespace: str) -> Iterator[str]:
    """Differences between the namespace's cached totals and its sessions, as of the last tick."""
    totals, now_ms = ledger.open_totals, ledger.open_totals.at_ms
    sessions = [ledger.sessions[uid] for uid in totals.sessions_of(namespace) if uid in ledger.sessions]
    open_sessions = [ledger.unsettled(each, ledger.watermarks.get(each.witness)) for each in sessions]
    for span in totals.spans_of(namespace):
        figures = figures_of(span, 0, 0, open_sessions, 0, now_ms)
        cached = (
            totals.pending(namespace, span),
            totals.declared(namespace, span),
            totals.rates(namespace, 0),
        )
        if cached != (figures.pending, figures.declared, figures.rates):
            yield f"{namespace} from {span.start_ms} to {span.end_ms}: cached {cached}, expected {figures}"
