"""The settler's check of itself: cached totals are compared with the sessions one by one, a namespace at a
time."""

from collections.abc import Iterator

from timekeeper.accounts.balance import figures_of
from timekeeper.settler.state.ledger_state import LedgerState

_PART = 100  # a check takes at most 1/100 of the time


class SelfCheck:
    """Checks one namespace after the other, forever."""

    def __init__(self) -> None:
        self._remaining: list[str] = []
        self._next_s = 0.0

    def check(self, ledger: LedgerState, began_s: float) -> Iterator[str]:
        """Differences in the namespace whose turn it is; none before the next check is due. ``began_s``:
        monotonic seconds."""
        if began_s < self._next_s:
            return
        self._remaining = self._remaining or sorted(ledger.open_totals.namespaces())
        if len(ledger.open_totals) != len(ledger.sessions):
            yield f"totals cover {len(ledger.open_totals)} sessions, but {len(ledger.sessions)} are open"
        if self._remaining:
            yield from differences(ledger, self._remaining.pop())

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
