"""Budget periods by the calendar of any zone, against a clock on the wall that is read minute by minute."""

import datetime
import zoneinfo
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.profile import examples
from timekeeper.core.ledger.metering import FOREVER_MS, period_at

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
UTC = datetime.UTC
ZONES = sorted(
    name
    for name in zoneinfo.available_timezones()
    if not name.startswith(("posix", "right")) and name not in ("Factory", "localtime", "posixrules")
)
# How long a walk must be to meet both bounds of a period.
LONGEST = {"day": 3, "week": 9, "month": 33, "quarter": 94, "year": 368}


def ms(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)


def wall(zone: str, at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, zoneinfo.ZoneInfo(zone))


def label(kind: str, day: datetime.date) -> tuple[int, ...]:
    """The period that a date on the wall is in."""
    of = {
        "day": (day.toordinal(),),
        "week": tuple(day.isocalendar())[:2],
        "month": (day.year, day.month),
        "quarter": (day.year, (day.month + 2) // 3),
        "year": (day.year,),
    }
    return of[kind]


def looks(zone: str, start_ms: int, end_ms: int) -> Iterator[tuple[int, datetime.datetime]]:
    """Looks at the wall: each minute about midnight, each hour else."""
    at = start_ms - start_ms % HOUR
    while at < end_ms:
        shown = wall(zone, at)
        yield at, shown
        at += MINUTE if shown.hour in (21, 22, 23, 0, 1, 2) or at % HOUR else HOUR


def walked(kind: str, zone: str, at_ms: int) -> tuple[int, int]:
    """The period of a moment: it begins when the wall first shows one of its dates, and lasts until it first
    shows a later one's."""
    bounds, latest = [], None
    for at, shown in looks(zone, at_ms - LONGEST[kind] * DAY, at_ms + LONGEST[kind] * DAY):
        now = label(kind, shown.date())
        if latest is not None and now > latest:
            bounds.append(at)
        latest = now if latest is None else max(now, latest)
    return max(at for at in bounds if at <= at_ms), min(at for at in bounds if at > at_ms)


def walked_hour(zone: str, at_ms: int) -> tuple[int, int]:
    """An hour begins when the wall shows a full one, or when the clock is changed."""
    first = at_ms - at_ms % MINUTE
    walls = [(at, wall(zone, at)) for at in range(first - 3 * HOUR, first + 3 * HOUR, MINUTE)]
    bounds = [
        at
        for (_, before), (at, shown) in pairwise(walls)
        if shown.minute == 0 or shown.utcoffset() != before.utcoffset()
    ]
    return max(at for at in bounds if at <= at_ms), min(at for at in bounds if at > at_ms)


MOMENTS = st.integers(ms("1975-01-01T00:00:00Z"), ms("2037-01-01T00:00:00Z"))


@settings(max_examples=examples(50, soak=1_000), deadline=None)
@given(zone=st.sampled_from(ZONES), at_ms=MOMENTS, kind=st.sampled_from(["day", "week", "month"]))
@example(zone="America/Sao_Paulo", at_ms=ms("2018-11-04T03:30:00Z"), kind="day")  # no midnight
@example(zone="America/Sao_Paulo", at_ms=ms("2018-02-18T02:30:00Z"), kind="day")  # 23:00 to 24:00 twice
@example(zone="Africa/Cairo", at_ms=ms("2023-04-27T22:30:00Z"), kind="day")  # no midnight
@example(zone="Africa/Cairo", at_ms=ms("2023-10-26T21:30:00Z"), kind="month")
@example(zone="America/Havana", at_ms=ms("2023-11-05T05:30:00Z"), kind="day")  # midnight twice
@example(zone="America/St_Johns", at_ms=ms("2006-10-29T02:45:00Z"), kind="day")  # one minute of a day, twice
@example(zone="America/St_Johns", at_ms=ms("2006-10-29T02:30:30Z"), kind="day")
@example(zone="Pacific/Apia", at_ms=ms("2011-12-30T09:59:59Z"), kind="day")  # a day that never was
@example(zone="Pacific/Apia", at_ms=ms("2011-12-30T10:00:00Z"), kind="day")
@example(zone="Pacific/Apia", at_ms=ms("2011-12-30T10:00:00Z"), kind="month")
@example(zone="Pacific/Kwajalein", at_ms=ms("1993-08-21T12:00:00Z"), kind="week")
@example(
    zone="Asia/Kathmandu", at_ms=ms("1985-12-31T18:30:00Z"), kind="month"
)  # a quarter of an hour left out
@example(zone="Asia/Pyongyang", at_ms=ms("2018-05-04T15:00:00Z"), kind="day")
@example(zone="Australia/Lord_Howe", at_ms=ms("2026-10-03T15:45:00Z"), kind="day")
@example(zone="Europe/Berlin", at_ms=ms("2028-02-29T12:00:00Z"), kind="day")
@example(zone="Europe/Berlin", at_ms=ms("2026-12-31T23:30:00Z"), kind="week")
def test_a_period_is_what_the_clock_on_the_wall_says(zone: str, at_ms: int, kind: str) -> None:
    span = period_at(kind, zone, at_ms)

    assert (span.start_ms, span.end_ms) == walked(kind, zone, at_ms)


@settings(max_examples=examples(5, soak=150), deadline=None)
@given(zone=st.sampled_from(ZONES), at_ms=MOMENTS, kind=st.sampled_from(["quarter", "year"]))
@example(zone="Europe/Berlin", at_ms=ms("2026-12-31T23:00:00Z"), kind="quarter")
@example(zone="Pacific/Apia", at_ms=ms("2011-12-31T09:59:59Z"), kind="year")
@example(zone="America/New_York", at_ms=ms("2028-12-31T12:00:00Z"), kind="year")
def test_a_long_period_is_what_the_clock_on_the_wall_says(zone: str, at_ms: int, kind: str) -> None:
    span = period_at(kind, zone, at_ms)

    assert (span.start_ms, span.end_ms) == walked(kind, zone, at_ms)


@settings(max_examples=examples(200), deadline=None)
@given(zone=st.sampled_from(ZONES), at_ms=MOMENTS)
@example(zone="Europe/Berlin", at_ms=ms("2026-10-25T00:30:00Z"))
@example(zone="Europe/Berlin", at_ms=ms("2026-10-25T01:30:00Z"))
@example(zone="Europe/Berlin", at_ms=ms("2026-03-29T01:00:00Z"))
@example(zone="Australia/Lord_Howe", at_ms=ms("2026-04-04T14:50:00Z"))  # half an hour twice
@example(zone="Australia/Lord_Howe", at_ms=ms("2026-04-04T15:10:00Z"))
@example(zone="Australia/Lord_Howe", at_ms=ms("2026-10-03T15:29:59Z"))  # half an hour left out
@example(zone="Australia/Lord_Howe", at_ms=ms("2026-10-03T15:30:00Z"))
@example(zone="America/St_Johns", at_ms=ms("2006-10-29T02:30:30Z"))
@example(zone="Asia/Kathmandu", at_ms=ms("1985-12-31T18:40:00Z"))
@example(zone="America/Caracas", at_ms=ms("2016-05-01T07:10:00Z"))
def test_an_hour_is_what_the_clock_on_the_wall_says(zone: str, at_ms: int) -> None:
    span = period_at("hour", zone, at_ms)

    assert (span.start_ms, span.end_ms) == walked_hour(zone, at_ms)
    assert span.length_ms <= HOUR


KINDS = ("hour", "day", "week", "month", "quarter", "year", "once")


@settings(max_examples=examples(400), deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    at_ms=st.integers(0, ms("9999-12-31T00:00:00+00:00")),
    kind=st.sampled_from(KINDS),
)
@example(zone="Africa/Monrovia", at_ms=ms("1972-01-07T00:30:00Z"), kind="hour")
@example(zone="America/Adak", at_ms=0, kind="year")
@example(zone="Pacific/Kiritimati", at_ms=ms("9998-12-31T23:59:59+00:00"), kind="quarter")
@example(zone="Pacific/Kiritimati", at_ms=ms("9997-12-31T23:59:59+00:00"), kind="year")
@example(zone="Pacific/Kiritimati", at_ms=ms("9996-12-31T11:00:00+00:00"), kind="year")
def test_periods_leave_no_gap_and_do_not_overlap(zone: str, at_ms: int, kind: str) -> None:
    span = period_at(kind, zone, at_ms)

    assert span.start_ms <= at_ms < span.end_ms
    assert period_at(kind, zone, max(0, span.start_ms)) == span
    assert period_at(kind, zone, span.end_ms - 1) == span
    assert span.end_ms == FOREVER_MS or period_at(kind, zone, span.end_ms).start_ms == span.end_ms
    assert span.start_ms <= 0 or period_at(kind, zone, span.start_ms - 1).end_ms == span.start_ms


@pytest.mark.parametrize(
    ("kind", "zone", "day", "hours"),
    [
        ("day", "Europe/Berlin", "2026-03-29T12:00:00Z", 23),
        ("day", "Europe/Berlin", "2026-10-25T12:00:00Z", 25),
        ("day", "Australia/Lord_Howe", "2026-04-04T20:00:00Z", 24.5),
        ("week", "Europe/Berlin", "2026-10-25T12:00:00Z", 169),
        ("month", "UTC", "2028-02-10T00:00:00Z", 29 * 24),
        ("month", "UTC", "2100-02-10T00:00:00Z", 28 * 24),
        ("quarter", "UTC", "2028-02-10T00:00:00Z", 91 * 24),
        ("year", "UTC", "2028-02-10T00:00:00Z", 366 * 24),
        ("month", "Pacific/Apia", "2011-12-15T00:00:00Z", 30 * 24),
    ],
)
def test_a_period_is_as_long_as_the_calendar_makes_it(kind: str, zone: str, day: str, hours: float) -> None:
    assert period_at(kind, zone, ms(day)).length_ms == hours * HOUR
