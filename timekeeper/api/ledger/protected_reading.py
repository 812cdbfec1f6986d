"""What a budget entry's ``protect`` selects, and how much of its floor is used, read for an answer."""

from dataclasses import dataclass

from timekeeper.accounts.budget_history import History, protected_span
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.protected import Published
from timekeeper.store.engine.engine import Connection
from timekeeper.store.reports import selected_use


@dataclass(frozen=True, slots=True)
class ProtectedReading:
    """``used``: what the selected pods have used in the period ``span``, posted and pending; ``rate_milli``:
    of those that hold cards; ``left`` and ``pods``: of the floor for further pods, and how many are protected
    now, by the table of standings, which names them while the namespace is over budget; None: it does not say
    that."""

    protection: Protection
    span: Interval
    used: int
    rate_milli: int
    left: int | None = None
    pods: int | None = None

    def used_up_ms(self, now_ms: int) -> int | None:
        """When a floor of hours is used up at the present rate; None: not in this period, or it is."""
        left = (self.protection.amount or 0) - self.used
        if left <= 0 or not self.rate_milli:
            return None
        at_ms = now_ms + -(-left // self.rate_milli)
        return at_ms if at_ms < self.span.end_ms else None


def read_protected(
    connection: Connection, history: History, namespace: str, published: Published | None, now_ms: int
) -> ProtectedReading | None:
    """None if the namespace's entry protects none. ``published``: as the table of standings has it."""
    protection = history.protections.get(namespace)
    if protection is None:
        return None
    span = protected_span(history, namespace, now_ms)
    used = selected_use.used(connection, namespace, span, protection, now_ms)
    rate_milli = selected_use.rate(connection, namespace, protection)
    if published is None or published.protection != protection:
        return ProtectedReading(protection, span, used, rate_milli)
    return ProtectedReading(protection, span, used, rate_milli, published.left, len(published.uids))
