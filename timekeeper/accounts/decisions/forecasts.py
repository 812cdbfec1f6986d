"""When a budget is gone, at the present pace and at those of the last days."""

from collections.abc import Sequence
from dataclasses import dataclass

from timekeeper.core.ledger.metering import FOREVER_MS

DAYS = 7  # whole days that the band rests on
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Pace:
    """A use in thousandths of a weighted GPU, and when it uses up the remaining amount; None: never."""

    milli: int
    gone_ms: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """``now``: at the rate of the sessions that run. ``fastest`` and ``slowest``: at the largest and smallest
    pace of now and of each of the last days."""

    now: Pace
    fastest: Pace
    slowest: Pace


def forecast(remaining: int | None, rate_milli: int, days: Sequence[int], now_ms: int) -> Forecast:
    """``remaining``: of the account, None: unlimited. ``days``: what each of the last days was charged, all
    amounts in milli-GPU x milliseconds."""
    paces = [rate_milli, *(amount // DAY_MS for amount in days)]
    return Forecast(
        _pace(remaining, rate_milli, now_ms),
        _pace(remaining, max(paces), now_ms),
        _pace(remaining, min(paces), now_ms),
    )


def _pace(remaining: int | None, milli: int, now_ms: int) -> Pace:
    if remaining is None:
        return Pace(milli, None)
    if remaining <= 0:
        return Pace(milli, now_ms)
    gone_ms = now_ms - (-remaining // milli) if milli > 0 else FOREVER_MS
    return Pace(milli, gone_ms if gone_ms < FOREVER_MS else None)
