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
    pods: Iterable[HeldPod], statement: Statement, lookahead_ms: int, now_ms: int
) -> list[QueuedPod]:
    """The held pods of one namespace, in the order of their release."""
    queue, rate_milli = [], 0
    for ahead, pod in enumerate(in_order(pods)):
        rate_milli += pod.rate_milli
        moments = [
            _earliest_ms(each, rate_milli, lookahead_ms, now_ms)
            for each in (statement, statement.group)
            if each is not None
        ]
        known = [each for each in moments if each is not None]
        queue.append(QueuedPod(pod, ahead, max(known) if len(known) == len(moments) else None))
    return queue


def _earliest_ms(statement: Statement, rate_milli: int, lookahead_ms: int, now_ms: int) -> int | None:
    """From when the account can reserve ``rate_milli`` for the lookahead: now, or at the beginning of a later
    period, each of which adds its amount."""
    remaining, amount = statement.balance.remaining, statement.in_force.budget.amount
    if remaining is None or amount is None or statement.in_force.budget.on_exhausted not in KEEPING:
        return now_ms
    account = statement.account
    if remaining > 0 and rate_milli * min(lookahead_ms, account.span.end_ms - now_ms) <= remaining:
        return now_ms
    periods = -(-rate_milli * lookahead_ms // amount) if amount else _MOST_PERIODS + 1
    if account.kind == "once" or periods > _MOST_PERIODS:
        return None
    at_ms = account.span.end_ms
    for _ in range(max(1, periods) - 1):
        at_ms = period_at(account.kind, account.zone, at_ms).end_ms
    return at_ms if at_ms < FOREVER_MS else None
