"""Times for people: one form, in the zone of the budgets; days and months by their names. The expected
texts are those of ``date``."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from timekeeper.core import texts
from timekeeper.core.ledger.metering import Interval, calendar_name, period_at
from timekeeper.core.ledger.months import month_name

BERLIN, TOKYO, UTC, SAMOA = (
    ZoneInfo(name) for name in ("Europe/Berlin", "Asia/Tokyo", "UTC", "Pacific/Apia")
)
OCTOBER, NOVEMBER = 1_790_805_600_000, 1_793_487_600_000  # TZ=Europe/Berlin date -d 2026-10-01 +%s
DAY = 86_400_000


@pytest.mark.parametrize(
    ("zone", "text"),
    [(UTC, "2026-10-31 23:00Z"), (BERLIN, "2026-11-01 00:00+01:00"), (TOKYO, "2026-11-01 08:00+09:00")],
)
def test_a_moment_is_of_its_zone_and_says_how_far_that_is_from_utc(zone: ZoneInfo, text: str) -> None:
    assert texts.moment(NOVEMBER, zone) == text
    assert texts.in_zone("since 2026-10-31 23:00Z", zone) == f"since {text}"
    assert texts.in_zone("2026-10-31T23:00Z", zone) == text
    assert texts.moment(NOVEMBER + 7_000, zone, "seconds") == text.replace(":00", ":00:07", 1)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("from 2026-10-25T00:30:00Z to 2026-10-25T01:30:00.250Z.", "from 2026-10-25 02:30:00+02:00 to {}."),
        ("at 2026-11-01 12:00 UTC", "at 2026-11-01 13:00+01:00"),
        ("9999-99-99 99:99Z", "9999-99-99 99:99Z"),
        ("9999-12-31 23:59Z", "9999-12-31 23:59Z"),
        ("2026-11-01, 12:00", "2026-11-01, 12:00"),
        ("2026-11-01 12:00Zulu", "2026-11-01 12:00Zulu"),
    ],
)
def test_every_time_in_a_sentence_is_of_the_zone_and_what_is_none_stays(said: str, shown: str) -> None:
    assert texts.in_zone(said, BERLIN) == shown.format("2026-10-25 02:30:00+01:00")


@pytest.mark.parametrize(
    ("at", "day", "month"),
    [
        (OCTOBER, "2026-10-01", "2026-10"),
        (NOVEMBER - 1, "2026-10-31", "2026-10"),
        (NOVEMBER, "2026-11-01", "2026-11"),
        (NOVEMBER + 22 * DAY, "2026-11-23", "2026-11"),
        (NOVEMBER + 61 * DAY, "2027-01-01", "2027-01"),
    ],
)
def test_days_and_months_of_the_zone_have_names(at: int, day: str, month: str) -> None:
    names = [calendar_name(step, "Europe/Berlin", at) for step in ("day", "month")]

    assert names == [day, month]


# a day of 25 h or 23 h, or of 24 h and 30 minutes less or more, or 14 h ahead of UTC
CHANGES = (
    *(("Pacific/Auckland", day) for day in ("2026-09-27", "2026-11-02", "2027-04-04")),
    *(("Europe/Budapest", day) for day in ("2026-10-25", "2027-03-28")),
    *(("America/Los_Angeles", day) for day in ("2026-11-01", "2027-03-14")),
    *(("Australia/Lord_Howe", day) for day in ("2026-10-04", "2027-04-04")),
    ("Pacific/Kiritimati", "2026-11-01"),
    *(("America/Havana", day) for day in ("2026-11-01", "2027-03-14")),  # at midnight
)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_every_moment_of_a_day_week_and_month_is_called_as_the_clocks_there_call_it(
    zone: str, day: str
) -> None:
    tz = ZoneInfo(zone)
    begins = int(datetime.fromisoformat(day).replace(tzinfo=tz).timestamp() * 1000)
    for at in range(begins - DAY, begins + 2 * DAY, DAY // 96):
        shown = datetime.fromtimestamp(at // 1000, tz)
        year, week, _ = shown.isocalendar()

        names = [calendar_name(step, zone, at) for step in ("day", "week", "month")]

        assert names == [f"{shown:%Y-%m-%d}", f"{year}-W{week:02}", f"{shown:%Y-%m}"]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_no_two_hours_of_a_day_have_one_name(zone: str, day: str) -> None:
    begins = int(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)
    moments = range(begins - DAY, begins + 2 * DAY, DAY // 48)
    hours = {period_at("hour", zone, at).start_ms: calendar_name("hour", zone, at) for at in moments}

    assert len({*hours.values()}) == len(hours)
    assert hours == {at: texts.moment(at, ZoneInfo(zone)) for at in hours}


def test_a_clock_that_is_set_back_over_midnight_does_not_name_a_day_twice() -> None:
    """In St. John's clocks were set back at 0:01 until 2011: the 6th of November had begun, and goes on."""
    begins = int(datetime(2011, 11, 6, 2, 30, tzinfo=ZoneInfo("UTC")).timestamp() * 1000)
    moments = (begins - 1, begins, begins + 30_000, begins + 1_800_000, begins + DAY)

    assert [calendar_name("day", "America/St_Johns", at)[8:] for at in moments] == ["05", *["06"] * 4]


def test_a_month_whose_ends_were_cut_by_two_zones_is_called_after_its_middle() -> None:
    ends = [
        int(datetime(2026, month, 1, tzinfo=ZoneInfo(zone)).timestamp() * 1000)
        for zone in ("Pacific/Kiritimati", "America/Los_Angeles")
        for month in (10, 11)
    ]

    found = {month_name(Interval(start, end)) for start in ends[::2] for end in ends[1::2]}

    assert found == {"2026-10"}
