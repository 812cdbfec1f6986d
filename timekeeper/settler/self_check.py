"""The settler's doubt of itself: sums that are kept against the sessions one by one, by namespace."""

from collections.abc import Iterator

from timekeeper.accounts.balance import figures_of
from timekeeper.settler.state.ledger_state import LedgerState

_PART = 100  # a look may take this part of the time between two


class SelfCheck:
    """Looks at one namespace after the other, for ever."""

    def __init__(self) -> None:
        self._left: list[str] = []
        self._next_s = 0.0

    def look(self, book: LedgerState, began_s: float) -> Iterator[str]:
        """What is wrong in the namespace whose turn it is, if any is yet. ``began_s``: by a clock that never
        jumps."""
        if began_s < self._next_s:
            return
        self._left = self._left or sorted(book.tally.namespaces())
        if len(book.tally) != len(book.sessions):
            yield f"{len(book.tally)} sessions are counted, and {len(book.sessions)} are open"
        if self._left:
            yield from differences(book, self._left.pop())

    def rest(self, began_s: float, ended_s: float) -> None:
        """A look took so long: the next comes a second later, or after a hundred times as long."""
        if began_s >= self._next_s:
            self._next_s = ended_s + max(1.0, _PART * (ended_s - began_s))


def differences(book: LedgerState, namespace: str) -> Iterator[str]:
    """Where the namespace's sums are not those of its sessions, as of the last tick."""
    tally, now_ms = book.tally, book.tally.at_ms
    sessions = [book.sessions[uid] for uid in tally.sessions_of(namespace) if uid in book.sessions]
    held = [book.held(each, book.watermarks.get(each.node)) for each in sessions]
    for span in tally.spans_of(namespace):
        figures = figures_of(span, 0, 0, held, 0, now_ms)
        kept = (tally.pending(namespace, span), tally.rates(namespace, 0))
        if kept != (figures.pending, figures.rates):
            yield f"{namespace} from {span.start_ms} to {span.end_ms}: {kept} is kept of {figures}"
