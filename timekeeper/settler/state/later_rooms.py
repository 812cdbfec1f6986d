"""What later periods have left for pods that declare their time, as far as held pods need it."""

from collections.abc import Iterable, Iterator

from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.held.declared import HeldAmount, LaterRoom, later_rooms, paying_namespaces
from timekeeper.accounts.statements import Statements
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.ledger_state import LedgerState

Rooms = dict[str, tuple[LaterRoom, ...]]


class LaterRooms:
    """By namespace and group; computed anew when one of the statements that they follow from is."""

    def __init__(self) -> None:
        self._known: Rooms = {}
        self._of: tuple[object, ...] = ()

    def of(
        self, ledger: LedgerState, statements: Statements, namespaces: Iterable[str], now_ms: int
    ) -> Rooms:
        """The rooms for the held pods that declare their time and have not reserved it."""
        longest: dict[str, int] = {}
        for pod in ledger.unbound_pods.held.values():
            if pod.length_ms and pod.uid not in ledger.declared.rows:
                group = ledger.history.group(pod.namespace, now_ms)
                for subject in (pod.namespace, GROUP + group) if group else (pod.namespace,):
                    longest[subject] = max(longest.get(subject, 0), pod.length_ms)
        if not longest:
            self._known, self._of = {}, ()
            return {}
        follows_from = (statements, ledger.history, now_ms // _AGAIN_MS, longest)
        if self._of and self._of[0] is statements and self._of[1:] == follows_from[1:]:
            return self._known
        names = {*namespaces, *ledger.declared.namespaces(), *ledger.open_totals.namespaces()}

        def reserved(name: str) -> Iterator[HeldAmount]:
            yield from ledger.declared.amounts(name)
            for rate_milli, start_ms, end_ms in ledger.open_totals.declared_each(name):
                yield HeldAmount(rate_milli, Interval(start_ms, end_ms))

        self._known = {
            subject: later_rooms(
                ledger.history,
                subject,
                paying_namespaces(ledger.history, subject, names, now_ms),
                reserved,
                longest_ms,
                now_ms,
            )
            for subject, longest_ms in longest.items()
        }
        self._of = follows_from
        return self._known


_AGAIN_MS = 60_000  # the last period that a pod may use depends on the time
