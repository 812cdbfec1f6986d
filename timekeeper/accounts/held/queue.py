"""The place of a held pod in its namespace's queue, and when it is released at the earliest."""

from collections.abc import Iterable
from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.held.limits import KEEPING
from timekeeper.accounts.held.order import HeldPod, in_order
from timekeeper.core.ledger.metering import FOREVER_MS, period_at

_MOST_PERIODS = 120  # a later release is not predicted


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A held pod and its place. ``earliest_ms``: when it is released at the earliest by the present budget,
    if no running pod uses any of it; None: not by this budget."""

    pod: HeldPod
    ahead: int  # held pods of its namespace that are released before it
    earliest_ms: int | None


def queue_of(
    pods: Iterable[HeldPod], statement: Statement, lookahead_ms: int, now_ms: int, waiting_milli: int
) -> list[QueuedPod]:
    """The held pods of one namespace, in the order of their release. ``waiting_milli``: the rate of the
    group's pods without gate and node, which the statement of the group leaves out."""
    accounts = [_Account(statement, lookahead_ms, now_ms)]
    if statement.group is not None:
        left_ms = max(0, min(lookahead_ms, statement.group.ends_ms - now_ms))
        accounts.append(_Account(statement.group, lookahead_ms, now_ms, waiting_milli * left_ms))
    queue = []
    for ahead, pod in enumerate(in_order(pods)):
        moments = [each.earliest_ms(pod) for each in accounts]
        known = [each for each in moments if each is not None]
        queue.append(QueuedPod(pod, ahead, max(known) if len(known) == len(moments) else None))
    return queue


@dataclass(slots=True)
class _Account:
    """One account, and what the pods of the queue so far reserve of it, if they begin together. ``present``:
    with what waiting pods reserve that its statement leaves out."""

    statement: Statement
    lookahead_ms: int
    now_ms: int
    present: int = 0  # of the present period, from now on
    whole: int = 0  # of a whole period

    def earliest_ms(self, pod: HeldPod) -> int | None:
        """Add the pod. From when the account can reserve what it and those before it need: now, or from the
        beginning of a later period, each of which adds its amount. A pod that declares its time is released
        only if one period's amount pays its part."""
        span, length_ms = self.statement.account.span, pod.length_ms or self.lookahead_ms
        alone = pod.rate_milli * min(length_ms, span.length_ms)
        self.present += pod.rate_milli * min(length_ms, span.end_ms - self.now_ms)
        self.whole += alone
        remaining, budget = self.statement.balance.remaining, self.statement.in_force.budget
        keeps = budget.on_exhausted in KEEPING or budget.reserve == "declared" or pod.length_ms > 0
        if remaining is None or budget.amount is None or not keeps:
            return self.now_ms
        if pod.length_ms and alone > max(budget.amount, remaining):
            return None
        if remaining > 0 and self.present <= remaining:
            return self.now_ms
        return self._later_ms(-(-self.whole // budget.amount) if budget.amount else _MOST_PERIODS + 1)

    def _later_ms(self, periods: int) -> int | None:
        """The beginning of the last of ``periods`` periods after the present one."""
        account = self.statement.account
        if account.kind == "once" or periods > _MOST_PERIODS:
            return None
        at_ms = account.span.end_ms
        for _ in range(max(1, periods) - 1):
            at_ms = period_at(account.kind, account.zone, at_ms).end_ms
        return at_ms if at_ms < FOREVER_MS else None
