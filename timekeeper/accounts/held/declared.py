"""What pods reserve that declare how long they mean to run: their whole time, at their rate.

A pod holds its reservation from its release on: first whole, as it may be bound at any moment, then from its
binding until its declared time and its grace are over. What is charged meanwhile and what is still reserved
are together always the same amount. Where that interval crosses a period's end, each period holds its part.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from timekeeper.accounts.budget_history import GROUP, History
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.ledger.metering import FOREVER_MS, Interval

MAX_PERIODS = 1_000  # a pod whose reservation reaches further ahead is not released

Reserved = Callable[[str], Iterable["HeldAmount"]]  # namespace -> what its pods reserve


@dataclass(frozen=True, slots=True)
class DeclaredReservation:
    """A pod that is, or is about to be, released, and has no session yet."""

    uid: str
    namespace: str
    name: str
    rate_milli: int  # the highest rate that it can have
    length_ms: int  # its declared time and its grace
    reserved_ms: int  # it is not bound before

    def within(self, span: Interval) -> int:
        """The most that it can use of the span, whenever it is bound."""
        return self.rate_milli * most_within(self.length_ms, self.reserved_ms, span)


@dataclass(frozen=True, slots=True)
class HeldAmount:
    """What one pod reserves: ``rate_milli`` in the interval; where it is not bound yet, ``length_ms`` of
    time at any moment from the interval's beginning on."""

    rate_milli: int
    interval: Interval
    length_ms: int = 0

    def within(self, span: Interval) -> int:
        """Its part of the span."""
        if self.length_ms:
            return self.rate_milli * most_within(self.length_ms, self.interval.start_ms, span)
        return self.rate_milli * self.interval.within(span).length_ms


@dataclass(frozen=True, slots=True)
class LaterPeriod:
    """A later period of an account, and what its grant will have left of it."""

    span: Interval
    amount: int  # its grant
    left: int


def most_within(length_ms: int, from_ms: int, span: Interval) -> int:
    """How much of the span can be part of an interval of this length that begins at ``from_ms`` or later."""
    return max(0, min(length_ms, span.end_ms - max(from_ms, span.start_ms)))


def future_headroom(
    history: History, subject: str, members: Iterable[str], reserved: Reserved, longest_ms: int, now_ms: int
) -> tuple[LaterPeriod, ...]:
    """The periods of a namespace or group after the present one that a pod of ``longest_ms`` may use, as far
    as anything is reserved, and one more: after that all are alike. Empty for an account without a limit,
    or without an end.

    What a later period grants is the present entry's amount. ``members``: the namespaces that it pays for.
    """
    budget = history.budget(subject, now_ms).budget
    start_ms = history.account(subject, now_ms).span.end_ms
    if budget.amount is None or start_ms >= FOREVER_MS:
        return ()
    amounts = [each for name in members for each in reserved(name)]
    horizon_ms = max([now_ms + longest_ms, *(each.interval.end_ms for each in amounts)])
    periods: list[LaterPeriod] = []
    while len(periods) < MAX_PERIODS:
        span = history.account(subject, start_ms).span
        used = sum(each.within(span) for each in amounts)
        periods.append(LaterPeriod(span, budget.amount, budget.amount - used))
        if span.start_ms >= horizon_ms or span.end_ms >= FOREVER_MS:
            break
        start_ms = span.end_ms
    return tuple(periods)


def paying_namespaces(history: History, subject: str, names: Iterable[str], now_ms: int) -> list[str]:
    """The namespaces whose pods the account of this namespace or group pays for now."""
    if not subject.startswith(GROUP):
        return [subject]
    return [name for name in names if GROUP + history.group(name, now_ms) == subject]


@dataclass(frozen=True, slots=True)
class Overtime:
    """A pod past its declared time."""

    pod: LedgerPod
    until_ms: int  # when its declared time was over
    may_end_ms: int  # when its grace is over, too: all that it reserved
    is_ended: bool  # its budget says that it is evicted then
    is_due: bool  # it is evicted now
    deletes: bool  # now also against its PodDisruptionBudget


def due(pods: Iterable[LedgerPod], history: History, now_ms: int) -> list[Overtime]:
    """The pods past their declared time, and which of them are evicted now."""
    in_force_ms = max(now_ms, history.newest_ms())
    return [each for pod in pods if (each := _overtime_of(pod, history, in_force_ms, now_ms)) is not None]


def _overtime_of(pod: LedgerPod, history: History, in_force_ms: int, now_ms: int) -> Overtime | None:
    """None for a pod that reserves no declared time, has not begun, is within its time, is over or leaving,
    or was created without enforcement."""
    bound_ms = pod.hold.bound_ms
    if not pod.declared_ms or not pod.node or bound_ms is None or pod.ended_ms is not None:
        return None
    if pod.hold.deletion_ms is not None or now_ms < bound_ms + pod.declared_ms:
        return None
    if not history.was_enforced(pod):
        return None
    may_end_ms = bound_ms + pod.length_ms
    is_ended = history.ends_overtime(pod.namespace, in_force_ms)
    protected_ms = may_end_ms + history.settings(in_force_ms).pdb_grace_ms
    return Overtime(
        pod,
        bound_ms + pod.declared_ms,
        may_end_ms,
        is_ended,
        is_due=is_ended and may_end_ms <= now_ms and pod.is_charged,
        deletes=now_ms >= protected_ms,
    )
