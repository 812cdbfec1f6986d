"""Times for people: one form, in the zone of the budgets; days and months by their names. The expected
texts are those of ``date``."""

from zoneinfo import ZoneInfo

import pytest

from timekeeper.core import texts

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
    names = [texts.calendar_name(at, step, BERLIN) for step in ("day", "month")]

    assert names == [day, month]
