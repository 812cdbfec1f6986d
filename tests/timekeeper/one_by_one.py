"""What sessions owe and reserve, computed one by one by `metering.witnessed`: what every table and query of
sums must equal."""

from collections.abc import Iterable

from timekeeper.accounts.balance import BalanceFigures, Rates, UnsettledSession
from timekeeper.accounts.posting import amount_within
from timekeeper.core.ledger.metering import Interval, charge


def pending(held: UnsettledSession, span: Interval, now_ms: int) -> int:
    """What it owes for time inside the span, beyond what is posted. Negative if a correction is due."""
    due = held.witnessed(now_ms).interval.within(span)
    return charge(held.session.rate_milli, due) - amount_within(held.posted, span)


def declared(held: UnsettledSession, span: Interval, now_ms: int) -> int:
    """What it reserves of its declared time inside the span, beyond its evidence so far. Nothing once it is
    closed."""
    until_ms, current = held.session.reserves_until_ms, held.witnessed(now_ms)
    if until_ms is None or current.closed:
        return 0
    start_ms = max(held.session.bound_ms, current.interval.end_ms)
    return charge(held.session.rate_milli, Interval(start_ms, until_ms).within(span))


def rates_of(sessions: Iterable[UnsettledSession], waiting_milli: int, now_ms: int) -> Rates:
    """The rates of a namespace. Sessions admitted over budget reserve nothing: otherwise the standing would
    oscillate."""
    reserving = running = 0
    for held in sessions:
        current = held.witnessed(now_ms)
        if not current.closed and held.session.reserves_until_ms is None:
            reserving += held.session.rate_milli if held.session.admitted_in_budget else 0
            running += held.session.rate_milli if current.interval.start_ms else 0
    return Rates(reserving, running, waiting_milli)


def figures_of(span: Interval, sessions: Iterable[UnsettledSession], now_ms: int) -> BalanceFigures:
    """The figures that come of a namespace's unsettled sessions."""
    every = tuple(sessions)
    return BalanceFigures(
        pending=sum(pending(held, span, now_ms) for held in every),
        rates=rates_of(every, 0, now_ms),
        declared=sum(declared(held, span, now_ms) for held in every),
    )
