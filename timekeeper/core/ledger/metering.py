"""Time into amounts: periods, evidence, charges, balances, standings and prices, as functions of values.

Times are milliseconds since 1970; amounts are milli-GPU x milliseconds. A session is charged its rate (fixed
at bind) for the interval that its evidence proves, and nothing else.
"""

import datetime
import functools
import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.texts import moment
from timekeeper.core.wire import StandingWord

FOREVER_MS = 253_402_300_799_000  # the last second of the year 9999: the end of a period ``once``

_UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_MS = datetime.timedelta(milliseconds=1)
_HOUR_MS = 3_600_000
_CALENDAR_ENDS_MS = 253_339_228_800_000  # start of the year 9998 in UTC: Python's dates end a year later


@dataclass(frozen=True, slots=True)
class Interval:
    """From (included) to (excluded), milliseconds."""

    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        """Never negative."""
        return max(0, self.end_ms - self.start_ms)

    def within(self, other: "Interval") -> "Interval":
        """The part of this interval that is inside the other; empty if they do not overlap."""
        start = max(self.start_ms, other.start_ms)
        return Interval(start, max(start, min(self.end_ms, other.end_ms)))


@functools.lru_cache(maxsize=4096)
def period_at(kind: str, zone: str, at_ms: int) -> Interval:
    """The budget period that contains ``at_ms``, by the zone's calendar. Periods leave no gap and do not
    overlap.

    Days and longer periods begin when the local clock first shows midnight, or at the jump if it skips
    midnight; so days have 23 or 25 hours when clocks change. An hour begins at each full local hour, and at a
    change of the clock by other than whole hours; no hour is longer than an hour of real time. ``once`` is
    all time. The calendar ends with the year 9997; the rest until FOREVER_MS is one period.
    """
    if kind == "once":
        return Interval(0, FOREVER_MS)
    if at_ms >= _CALENDAR_ENDS_MS:
        return Interval(_CALENDAR_ENDS_MS, FOREVER_MS)
    tz = zoneinfo.ZoneInfo(zone)
    span = _hour(tz, at_ms) if kind == "hour" else _days(kind, tz, at_ms)
    return span.within(Interval(span.start_ms, _CALENDAR_ENDS_MS))


# the steps that have a name, an hour apart from them
CALENDAR = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}


def calendar_name(step: str, zone: str, at_ms: int) -> str:
    """What the zone's calendar calls the step that contains the moment, as `period_at` cuts it: 2026-11-01,
    2026-W44, 2026-11; an hour is called by when it begins, with the difference from UTC, for two may have one
    clock."""
    begins_ms, tz = period_at(step, zone, at_ms).start_ms, zoneinfo.ZoneInfo(zone)
    if step == "hour":
        return moment(begins_ms, tz)
    return f"{(_EPOCH + begins_ms * _MS).astimezone(tz):{CALENDAR[step]}}"


def _hour(tz: zoneinfo.ZoneInfo, at_ms: int) -> Interval:
    offset = _offset_ms(tz, at_ms)
    start = at_ms - (at_ms + offset) % _HOUR_MS
    end = start + _HOUR_MS
    if _offset_ms(tz, start) != offset:
        start = _change_ms(tz, start, at_ms)
    if _offset_ms(tz, end - 1) != offset:
        end = _change_ms(tz, at_ms, end - 1)
    return Interval(start, end)


def _days(kind: str, tz: zoneinfo.ZoneInfo, at_ms: int) -> Interval:
    first = _first_day(kind, (_EPOCH + datetime.timedelta(milliseconds=at_ms)).astimezone(tz).date())
    start, end = _midnight_ms(first, tz), _midnight_ms(_next_first_day(kind, first), tz)
    while end <= at_ms:  # the clock was set back across midnight, or the zone skipped a day
        first = _next_first_day(kind, first)
        start, end = end, _midnight_ms(_next_first_day(kind, first), tz)
    return Interval(start, end)


def _first_day(kind: str, day: datetime.date) -> datetime.date:
    if kind == "day":
        return day
    if kind == "week":
        return day - datetime.timedelta(days=day.weekday())
    months = {"month": 1, "quarter": 3, "year": 12}[kind]
    return day.replace(month=(day.month - 1) // months * months + 1, day=1)


def _next_first_day(kind: str, first: datetime.date) -> datetime.date:
    days = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[kind]
    return _first_day(kind, first + datetime.timedelta(days=days))


def _midnight_ms(day: datetime.date, tz: zoneinfo.ZoneInfo) -> int:
    """When the local clock first shows the day's midnight, or skips it."""
    shown = datetime.datetime(day.year, day.month, day.day, tzinfo=tz)
    first, second = (_utc_ms(shown.replace(fold=fold)) for fold in (0, 1))
    return first if first <= second else _change_ms(tz, second, first)


@functools.lru_cache(maxsize=4096)
def day_begins_ms(day: datetime.date, zone: str) -> int:
    """When the day begins in the zone: see `period_at`."""
    return _midnight_ms(day, zoneinfo.ZoneInfo(zone))


def _change_ms(tz: zoneinfo.ZoneInfo, after_ms: int, by_ms: int) -> int:
    """When the zone's offset changed: the first moment with another offset than at ``after_ms``."""
    offset = _offset_ms(tz, after_ms)
    while by_ms - after_ms > 1:
        middle = (after_ms + by_ms) // 2
        if _offset_ms(tz, middle) == offset:
            after_ms = middle
        else:
            by_ms = middle
    return by_ms


def _offset_ms(tz: zoneinfo.ZoneInfo, at_ms: int) -> int:
    offset = (_EPOCH + datetime.timedelta(milliseconds=at_ms)).astimezone(tz).utcoffset()
    return (offset or datetime.timedelta()) // _MS


def _utc_ms(at: datetime.datetime) -> int:
    return (at.astimezone(_UTC) - _EPOCH) // _MS


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about when one pod held its cards."""

    bound_ms: int
    started_ms: int | None = None  # proof, by the kubelet
    ended_ms: int | None = None  # proof, by the kubelet; 0: ended, but no proof says when
    beat_ms: int | None = None  # estimate: the latest heartbeat, at most its time of receipt
    # estimate: the node was alive and the pod still there, at most the time of receipt
    watermark_ms: int | None = None
    vanished_ms: int | None = None  # the object was deleted without terminal statuses
    grace_ms: int = 0  # how long the pod holds its cards after that
    is_listed: bool = False  # it vanished, and a fresh report of its node's agent lists it


@dataclass(frozen=True, slots=True)
class WitnessedInterval:
    """The interval that the evidence supports."""

    interval: Interval
    closed: bool  # no further evidence can extend it
    proven: bool  # both ends are proof


def witnessed(evidence: Evidence, now_ms: int) -> WitnessedInterval:
    """The interval to charge at ``now_ms``, from the binding: proof overrides estimates, in both directions.
    If the pod ended and no timestamp proves when, the interval ends with the last evidence.

    A vanished pod holds its cards, and is charged, until its grace is over, and while a fresh report lists
    it. ``now_ms`` is a limit: a session is charged up to its last evidence.
    """
    start = evidence.bound_ms
    if evidence.ended_ms is not None:
        end = evidence.ended_ms or _last_ms(evidence)
        gone = Interval(start, max(start, end))
        return WitnessedInterval(gone, closed=True, proven=evidence.ended_ms > 0)
    if evidence.vanished_ms is not None:
        until = evidence.vanished_ms + evidence.grace_ms
        gone = Interval(start, max(start, min(until, now_ms)))
        return WitnessedInterval(gone, closed=now_ms >= until and not evidence.is_listed, proven=False)
    until = min(now_ms, max(evidence.beat_ms or 0, evidence.watermark_ms or 0))
    return WitnessedInterval(Interval(start, max(start, until)), closed=False, proven=False)


def _last_ms(evidence: Evidence) -> int:
    """The last evidence of a hold without an end timestamp: no container ever ran, or the status lost it."""
    known = (evidence.started_ms, evidence.beat_ms, evidence.watermark_ms)
    return max(evidence.bound_ms, *(each or 0 for each in known))


@dataclass(frozen=True, slots=True)
class Balance:
    """One account in one period."""

    granted: int | None  # None: unlimited
    posted: int  # settled charges
    pending: int  # owed by open sessions beyond ``posted``
    reserved: int  # what running sessions will use within the lookahead, and ``declared``
    declared: int = 0  # the part of ``reserved`` of pods that declared their time

    @property
    def spent(self) -> int:
        """What is posted and what is pending."""
        return self.posted + self.pending

    @property
    def is_spent(self) -> bool:
        """True if the charges alone, without reservations, use up the grant."""
        return self.granted is not None and self.spent >= self.granted

    @property
    def remaining(self) -> int | None:
        """Granted - posted - pending - reserved; None: unlimited."""
        return None if self.granted is None else self.granted - self.spent - self.reserved

    @property
    def ratio_milli(self) -> int | None:
        """Thousandths of the grant that are spent, at most a million; None: unlimited."""
        if self.granted is None:
            return None
        return min(1_000_000, 1000 * self.spent // self.granted) if self.granted > 0 else 1_000_000

    @property
    def standing(self) -> StandingWord:
        """IN_BUDGET while something remains, else OVER_BUDGET; UNLIMITED without a budget. Where pods have
        reserved exactly what remained, they can be paid, and the account is in budget."""
        remaining = self.remaining
        if remaining is None:
            return "UNLIMITED"
        is_paid = remaining > 0 or (remaining == 0 and self.declared > 0)
        return "IN_BUDGET" if is_paid else "OVER_BUDGET"


def charge(rate_milli: int, interval: Interval) -> int:
    """Rate x time, exactly."""
    return rate_milli * interval.length_ms


def reserved(rates_milli: Iterable[int], lookahead_ms: int, period: Interval, now_ms: int) -> int:
    """What live sessions that were admitted in budget will use within the lookahead, at most until the
    period's end."""
    return sum(rates_milli) * max(0, min(lookahead_ms, period.end_ms - now_ms))


def exhausted_at(
    balance: Balance, rate_milli: int, reserving_milli: int, lookahead_ms: int, period: Interval, now_ms: int
) -> int | None:
    """When the standing becomes OVER_BUDGET if sessions continue at ``rate_milli`` together and reserve
    ``reserving_milli``. None: not within the period, or already."""
    left = balance.remaining
    if left is None or left <= 0:
        return None
    # before this moment the reservation is constant; after it, it shrinks towards the period's end
    turn = max(now_ms, period.end_ms - lookahead_ms)
    if rate_milli * (turn - now_ms) >= left:
        at = now_ms - (-left // rate_milli)
    else:
        left -= rate_milli * (turn - now_ms)
        faster = rate_milli - reserving_milli
        at = turn - (-left // faster) if faster > 0 else period.end_ms
    return at if at < period.end_ms else None


def price_at(entry: Budget | BudgetSettings, at_ms: int, zone: str) -> str:
    """The price of a weighted GPU-hour, as it was written; "": none."""
    begun = (price for day, price in reversed(entry.later_prices) if day_begins_ms(day, zone) <= at_ms)
    return next(begun, entry.price)


def price_days(entry: Budget | BudgetSettings, zones: Iterable[str]) -> Iterator[int]:
    """When a later price may begin, in any of these time zones."""
    return (day_begins_ms(day, zone) for day, _ in entry.later_prices for zone in zones)


def late_price(
    before: Budget | BudgetSettings | None, entry: Budget | BudgetSettings, at_ms: int, zone: str
) -> tuple[date, str] | None:
    """The later price whose day had begun when the entry took effect at ``at_ms``, and that was not in force
    just before: it counts from then on alone."""
    begun = [(day, price) for day, price in entry.later_prices if day_begins_ms(day, zone) < at_ms]
    if not begun or (before is not None and price_at(before, at_ms - 1, zone) == begun[-1][1]):
        return None
    return begun[-1]
