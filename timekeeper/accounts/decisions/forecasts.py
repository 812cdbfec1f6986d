"""When a budget is gone, at the present pace and at those of the last days."""

from collections.abc import Sequence
from dataclasses import dataclass

from timekeeper.core.ledger.metering import FOREVER_MS

DAYS = 7  # whole days that the band rests on


@dataclass(frozen=True, slots=True)
class Pace:
    """A use in thousandths of a weighted GPU, and when it uses up the remaining amount; None: not before the
    account's period ends, with which its budget is renewed."""

    milli: int
    gone_ms: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """``now``: at the rate of the sessions that run. ``fastest`` and ``slowest``: at the largest and smallest
    pace of now and of each of the last days."""

    now: Pace
    fastest: Pace
    slowest: Pace


def within(own: Forecast, group: Forecast) -> Forecast:
    """A namespace's own paces, each with the moment when its own budget at it, or its group's at the group's
    pace, is gone first."""
    return Forecast(
        _within(own.now, group.now),
        _within(own.fastest, group.fastest),
        _within(own.slowest, group.slowest),
    )


def _within(own: Pace, group: Pace) -> Pace:
    moments = [pace.gone_ms for pace in (own, group) if pace.gone_ms is not None]
    return Pace(own.milli, min(moments, default=None))


@dataclass(frozen=True, slots=True)
class Addition:
    """A pod that is supposed beside those that run: its rate in thousandths of a weighted GPU, and how long
    it runs at most, from now; `FOREVER_MS`: it never ends by itself."""

    milli: int
    length_ms: int = FOREVER_MS


def forecast(
    remaining: int | None,
    rate_milli: int,
    days: Sequence[int],
    now_ms: int,
    additions: Sequence[Addition] = (),
    ends_ms: int = FOREVER_MS,
) -> Forecast:
    """``remaining``: of the account in milli-GPU x milliseconds, None: unlimited. ``days``: the pace of each
    of the last days. ``additions`` come on top of each pace; ``ends_ms``: of the account's period."""
    paces = [rate_milli, *days]
    now, fastest, slowest = (
        _pace(remaining, milli, now_ms, additions, ends_ms) for milli in (rate_milli, max(paces), min(paces))
    )
    return Forecast(now, fastest, slowest)


def _pace(
    remaining: int | None, milli: int, now_ms: int, additions: Sequence[Addition], ends_ms: int
) -> Pace:
    """The pace with all additions, and when what remains is gone as one after the other ends."""
    pace = milli + sum(each.milli for each in additions)
    if remaining is None:
        return Pace(pace, None)
    left, rate, at_ms = max(0, remaining), pace, 0
    for each in sorted(additions, key=lambda addition: addition.length_ms):
        used = rate * (each.length_ms - at_ms)
        if used >= left:
            break
        left, rate, at_ms = left - used, rate - each.milli, each.length_ms
    if left and rate <= 0:
        return Pace(pace, None)
    gone_ms = now_ms + at_ms - (-left // rate if left else 0)
    return Pace(pace, gone_ms if gone_ms < ends_ms else None)
