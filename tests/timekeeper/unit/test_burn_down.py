"""The burn-down: the line ends at what is left, and each pace meets zero when the forecast says so."""

from zoneinfo import ZoneInfo

import pytest

from tests.worlds import Json
from timekeeper.dashboard.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, burn_down
from timekeeper.dashboard.pages.accounts import picture_of
from timekeeper.dashboard.pages.budgets import by_period, state_of

DAY = 86_400_000
HOUR = 3_600_000_000  # a GPU-hour
BEGIN = 100 * DAY


def budget(
    granted: int | None, used: int, to: int | None = BEGIN + 10 * DAY, of_group: int | None = None
) -> Json:
    """``of_group``: what its group leaves it, where that is less."""
    left = None if granted is None else granted - used
    deciding = {"subject": "team", "remaining": left, "to": to}
    if of_group is not None:
        deciding = {"subject": "_group.lab", "remaining": of_group, "to": to}
    period = {"from": BEGIN, "to": to}
    return {
        "namespace": "team",
        "granted": granted,
        "remaining": left,
        "period": period,
        "deciding": deciding,
    }


def paces(now: int, fastest: int, slowest: int, gone: int | None) -> Json:
    rates = {"now": now, "fastest": fastest, "slowest": slowest}
    return {name: {"rateMilli": rate, "goneAt": gone} for name, rate in rates.items()}


def places(points: str) -> list[tuple[float, float]]:
    """Time in days and part of the grant that is left, of each point."""
    found = []
    for pair in points.split():
        x, y = map(float, pair.split(","))
        at = 10 * (x - LEFT) / (WIDTH - LEFT - RIGHT)
        found.append((round(at, 1), round((HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM), 2)))
    return found


def test_lines_go_from_the_grant_over_what_is_left_to_the_moments_of_the_forecast() -> None:
    steps = [(BEGIN + at * DAY, 10 * HOUR) for at in range(1, 5)]
    left = 60 * HOUR
    rate = left // (3 * DAY)  # gone after three days

    found = burn_down(
        budget(100 * HOUR, 40 * HOUR),
        paces(rate, 2 * rate, 0, BEGIN + 7 * DAY),
        steps,
        BEGIN,
        BEGIN + 4 * DAY,
    )

    assert found is not None
    assert places(found.left) == [(0, 1), (1, 0.9), (2, 0.8), (3, 0.7), (4, 0.6)]
    assert places(found.ahead) == [(4, 0.6), (7, 0), (10, 0)]
    assert found.band == ""  # a day without use would fill the picture
    assert places(found.even) == [(0, 1), (10, 0)]
    assert found.rows[-1] == (BEGIN + 4 * DAY, 40 * HOUR, 60 * HOUR)
    assert found.sentence == (
        "Of 100.00 GPU-hours 40.00 are used. At the present rate the budget is gone at 1970-04-18 00:00Z."
    )


def test_without_a_limit_the_line_is_what_was_used_and_nothing_is_forecast() -> None:
    found = burn_down(
        budget(None, 0, None), None, [(BEGIN + DAY, 5 * HOUR), (BEGIN + 2 * DAY, 0)], BEGIN, BEGIN + 2 * DAY
    )

    assert found is not None
    assert (found.ahead, found.band, found.even, found.is_limited) == ("", "", "", False)
    assert found.rows[-1] == (BEGIN + 2 * DAY, 5 * HOUR, 5 * HOUR)


def test_the_lines_ahead_begin_at_what_the_group_leaves_and_end_when_it_is_gone() -> None:
    """The group's pace is another one than the namespace's, which would have lasted."""
    steps = [(BEGIN + 4 * DAY, 10 * HOUR)]
    member = budget(100 * HOUR, 10 * HOUR, of_group=20 * HOUR)

    found = burn_down(member, paces(1, 1, 1, BEGIN + 6 * DAY), steps, BEGIN, BEGIN + 4 * DAY)

    assert found is not None
    assert places(found.left)[-1] == (4, 0.9)
    assert places(found.ahead) == [(4, 0.2), (6, 0), (10, 0)]
    assert (found.group, found.sentence) == (
        "group lab",
        "Of 100.00 GPU-hours 10.00 are used. 20.00 GPU-hours of group lab are left until 1970-04-21 00:00Z;"
        " 90.00 of its own. At the present rate the budget is gone at 1970-04-17 00:00Z.",
    )


def test_a_budget_that_outlasts_the_picture_ends_above_zero() -> None:
    endless = budget(100 * HOUR, 0, None)

    found = burn_down(endless, paces(1, 1, 0, BEGIN + 41 * DAY), [], BEGIN, BEGIN + DAY)

    assert found is not None
    *_, (_, left) = places(found.ahead)
    assert left == pytest.approx(1 - 3 / 40, abs=0.01), "three days of forty"


def test_a_budget_that_is_used_up_ends_at_zero_without_a_pace() -> None:
    gone, now = BEGIN + 2 * DAY, BEGIN + 2 * DAY
    found = burn_down(
        budget(10 * HOUR, 12 * HOUR), paces(1000, 1000, 0, gone), [(now, 12 * HOUR)], BEGIN, now
    )

    assert found is not None
    assert (places(found.left)[-1], found.ahead, found.band) == ((2, 0), "", "")
    assert burn_down(budget(1, 0), None, [], 0, 0) is None


def test_without_a_period_the_picture_begins_with_the_first_use() -> None:
    unlimited = budget(None, 0, None) | {"period": {"from": 0, "to": None}}
    rows = [
        {"from": at * DAY, "to": (at + 1) * DAY, "amount": amount}
        for at, amount in ((0, 0), (100, 5 * HOUR), (101, 0))
    ]

    found = picture_of(102 * DAY, unlimited, None, rows)

    assert found is not None
    assert found.rows[0] == (100 * DAY, 0, 0)
    assert found.across[0].text.startswith("04-11")  # the hundredth day of 1970
    assert picture_of(102 * DAY, unlimited, None, rows[:1]) is None


@pytest.mark.parametrize(
    ("granted", "texts"),
    [
        (425 * HOUR, ["0", "100", "200", "300", "400"]),
        (75 * HOUR, ["0", "20", "40", "60"]),
        (4 * HOUR, ["0", "1", "2", "3", "4"]),
        (HOUR // 20, ["0.00", "0.01", "0.02", "0.03", "0.04", "0.05"]),
    ],
)
def test_the_lines_of_the_grid_are_at_round_amounts(granted: int, texts: list[str]) -> None:
    found = burn_down(budget(granted, 0), None, [], BEGIN, BEGIN + DAY)

    assert found is not None
    assert [each.text for each in found.up] == texts
    assert [each.at for each in found.up] == sorted((each.at for each in found.up), reverse=True)


def test_days_without_a_charge_leave_the_line_level() -> None:
    """The report has no row for them."""
    rows = [{"from": BEGIN + 3 * DAY, "to": BEGIN + 4 * DAY, "amount": 40 * HOUR}]

    found = picture_of(BEGIN + 4 * DAY, budget(100 * HOUR, 40 * HOUR), None, rows)

    assert found is not None
    assert places(found.left) == [(0, 1), (3, 1), (4, 0.6)]


def test_budgets_of_other_periods_are_not_added_up() -> None:
    def of(end_ms: int, granted: int | None, begin_ms: int = 0) -> Json:
        period = {"from": begin_ms, "to": end_ms}
        return {"period": period, "granted": granted, "posted": 1, "pending": 2}

    found = by_period([of(7, 10), of(9, 20), of(7, 30), of(9, None), of(7, 5, 6)])

    assert [(sums.end_ms, sums.used, sums.granted, sums.count) for sums in found] == [
        *((7, 6, 40, 2), (9, 3, 20, 1), (7, 3, 5, 1)),
    ]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "Pacific/Kiritimati"])
def test_the_legend_names_the_zone_of_the_dates_of_the_axis(zone: str) -> None:
    begin = 1_791_000_000_000  # 2026-10-03T04:00:00Z
    own = {**budget(100 * HOUR, 0), "period": {"from": begin, "to": begin + 8 * DAY}}

    found = picture_of(begin + DAY, own, None, [], ZoneInfo(zone))

    assert found is not None
    assert found.zone == zone
    days = {"UTC": ("03", "05"), "Pacific/Auckland": ("03", "05"), "Pacific/Kiritimati": ("03", "05")}[zone]
    assert tuple(tick.text for tick in found.across[:2]) == tuple(f"2026-10-{day}" for day in days)


@pytest.mark.parametrize(
    ("exhausted", "ends", "state"),
    [(None, 100, "fine"), (99, 100, "early"), (100, 100, "fine"), (900, 100, "fine"), (900, None, "early")],
)
def test_a_budget_runs_out_early_within_its_own_period(
    exhausted: int | None, ends: int | None, state: str
) -> None:
    """An hour's budget does not by the date of its group's month."""
    budget = {"standing": "IN_BUDGET", "warnAtMilli": None, "ratioMilli": 100, "exhaustedAt": exhausted}

    assert state_of({**budget, "deciding": {"remaining": 5}, "period": {"from": 0, "to": ends}}) == state
