"""`GET /v1/forecast`: when a budget is gone at the present pace, and at those of the last days."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.timekeeper.books import Books, Run
from tests.timekeeper.worlds import DAY, GPU, HOUR, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.accounts.decisions.forecasts import Addition, Forecast, Pace, forecast

BOTH_DATABASES = "the pace of the days before is SQL"


@pytest.mark.parametrize(
    ("remaining", "rate", "days", "expected"),
    [
        (100 * 1000, 10, (), Forecast(Pace(10, 11_000), Pace(10, 11_000), Pace(10, 11_000))),
        (101, 10, (), Forecast(Pace(10, 1_011), Pace(10, 1_011), Pace(10, 1_011))),
        (1000, 10, (0, 20), Forecast(Pace(10, 1_100), Pace(20, 1_050), Pace(0, None))),
        (None, 10, (), Forecast(Pace(10, None), Pace(10, None), Pace(10, None))),
        (-5, 0, (), Forecast(Pace(0, 1_000), Pace(0, 1_000), Pace(0, 1_000))),
    ],
)
def test_a_pace_uses_up_what_remains(
    remaining: int | None, rate: int, days: tuple[int, ...], expected: Forecast
) -> None:
    assert forecast(remaining, rate, days, 1_000) == expected


@pytest.mark.parametrize(
    ("rate", "additions", "expected"),
    [
        (0, (Addition(10, 50),), Pace(10, None)),
        (0, (Addition(10, 100),), Pace(10, 1_100)),
        (5, (Addition(10, 50), Addition(5, 20)), Pace(20, 1_080)),
        (5, (Addition(10, 50), Addition(15)), Pace(30, 1_034)),
    ],
)
def test_a_pod_that_is_supposed_uses_the_budget_until_its_end_at_most(
    rate: int, additions: tuple[Addition, ...], expected: Pace
) -> None:
    assert forecast(1_000, rate, (), 1_000, additions).now == expected


@pytest.mark.parametrize(
    ("ends_ms", "additions", "gone_ms"),
    [(1_101, (), 1_100), (1_100, (), None), (1_100, (Addition(1),), 1_091), (1_091, (Addition(1),), None)],
)
def test_a_budget_that_is_renewed_before_it_is_gone_lasts(
    ends_ms: int, additions: tuple[Addition, ...], gone_ms: int | None
) -> None:
    found = forecast(1_000, 10, (0,), 1_000, additions, ends_ms)

    assert found.now.gone_ms == found.fastest.gone_ms == gone_ms


def test_an_account_of_each_kind_is_forecast_within_its_period_alone(town: Town) -> None:
    periods = {"team-d": "day", "team-w": "week", "team-m": "month", "team-o": "once"}
    entries = {name: f"gpuHours: 300\nperiod: {period}" for name, period in periods.items()}
    town.begin(("nodes", node(cards=4)), ("configmaps", budgets(**entries)))
    for card, name in enumerate(periods):
        town.hear("pods", gpu_pod(name, namespace=name, started_ms=T0, card=card))
    town.advance(HOUR)

    found = forecasts(town)

    assert {name: found[name]["now"]["goneAt"] is not None for name in periods} == {
        "team-d": False,
        "team-w": False,
        "team-m": False,
        "team-o": True,
    }


def test_what_a_group_leaves_a_namespace_is_gone_at_the_groups_pace(town: Town) -> None:
    """Of team-a's thousand hours a rest is left when the hundred of the group are gone, which both use; the
    ten of team-c are gone before, and team-b has no budget of its own."""
    own = {"team_a": "gpuHours: 1000\nperiod: once", "team_b": "gpuHours: unlimited"}
    entries = {name: f"{text}\ngroup: lab" for name, text in own.items()}
    entries["team_c"] = "gpuHours: 10\nperiod: once\ngroup: lab"
    lab = {"_group.lab": "gpuHours: 100\nperiod: once"}
    town.begin(
        ("nodes", node(cards=4)),
        ("configmaps", budgets(**entries, **lab, _settings="lookahead: 0s")),
    )
    for card, name in enumerate(("team-a", "team-b", "team-c")):
        town.hear("pods", gpu_pod(name, namespace=name, started_ms=T0, card=card))
    town.advance(HOUR)

    found, now_ms = forecasts(town), town.clock()

    of_group = {"subject": "_group.lab", "remaining": 97 * GPU * HOUR, "to": None}
    assert {name: found[name]["deciding"] for name in found} == {
        **{"team-a": of_group, "team-b": of_group, "_group.lab": of_group},
        "team-c": {"subject": "team-c", "remaining": 9 * GPU * HOUR, "to": None},
    }
    assert {name: found[name]["remaining"] for name in ("team-a", "team-b")} == {
        **{"team-a": 999 * GPU * HOUR, "team-b": None}
    }
    gone_ms = now_ms + 97 * HOUR // 3 + 1
    assert {name: found[name]["now"]["goneAt"] - now_ms for name in found} == {
        **dict.fromkeys(("team-a", "team-b", "_group.lab"), gone_ms - now_ms - (97 * HOUR % 3 == 0)),
        "team-c": 9 * HOUR,
    }
    assert found["team-a"]["now"]["rateMilli"] == GPU
    for name in found:
        assert forecasts(town, f"namespace={name}") == {name: found[name]}
        assert town.get(f"/v1/budgets/{name}").get_json()["deciding"] == found[name]["deciding"]


def forecasts(town: Town, query: str = "") -> dict[str, Json]:
    found: list[Json] = town.get(f"/v1/forecast?{query}").get_json()["forecasts"]
    return {each["namespace"]: each for each in found}


def test_the_band_has_the_pace_of_now_and_of_the_days_before_of_namespace_and_group(town: Town) -> None:
    entries = budgets(team_a="gpuHours: 1000\nperiod: once\ngroup: lab", team_b="gpuHours: 5")
    entries["data"]["_group.lab"] = "gpuHours: 4000\nperiod: once"
    town.begin(("nodes", node()), ("configmaps", entries))
    first, second = gpu_pod("p", started_ms=T0), gpu_pod("q", started_ms=T0, card=1)
    town.hear("pods", first)
    town.hear("pods", second)
    for _ in range(3):
        town.advance(DAY)
    town.change("pods", gpu_pod("q", started_ms=T0, ended_ms=town.clock(), card=1))

    found = forecasts(town)

    mine, lab, now_ms = found["team-a"], found["_group.lab"], town.clock()
    assert mine["now"] == {"rateMilli": GPU, "goneAt": now_ms + mine["remaining"] // GPU}
    assert mine["fastest"] == {"rateMilli": 2 * GPU, "goneAt": now_ms + mine["remaining"] // (2 * GPU)}
    assert mine["slowest"] == {"rateMilli": 0, "goneAt": None}
    assert mine["remaining"] < 1000 * GPU * HOUR
    assert (lab["now"]["rateMilli"], lab["fastest"]["rateMilli"]) == (GPU, 2 * GPU)
    assert found["team-b"]["now"] == {"rateMilli": 0, "goneAt": None}
    assert forecasts(town, "namespace=team-a") == {"team-a": mine}
    assert forecasts(town, "namespace=_group.lab") == {"_group.lab": lab}
    page = town.get("/v1/forecast?limit=1").get_json()
    assert [each["namespace"] for each in page["forecasts"]] == ["team-a"]
    assert set(forecasts(town, f"after={page['next']}")) == {"team-b", "_group.lab"}


@pytest.mark.parametrize(
    ("zone", "now"),
    [
        ("Europe/Budapest", "2026-10-28"),  # the 25th had 25 hours
        ("America/Los_Angeles", "2026-11-04"),  # so had the 1st
        ("Pacific/Auckland", "2026-09-29"),  # the 27th had 23
        ("Australia/Lord_Howe", "2026-10-06"),  # the 4th had 23.5
        ("Pacific/Kiritimati", "2026-11-04"),
    ],
)
def test_a_pace_is_by_the_length_of_its_day(books: Books, zone: str, now: str) -> None:
    """One card all the time is a pace of one card on each of the last seven days, and no day is left out."""
    now_ms = int(datetime.fromisoformat(f"{now}T12:00:00").replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)
    books.entries(("_settings", f"timeZone: {zone}", 0), ("team-a", "gpuHours: 9000\nperiod: year", 0))
    books.write(Run("u", started_ms=now_ms - 9 * DAY, heard_ms=now_ms, settled=False))
    books.clock.at_ms = now_ms

    (found,) = books.get("/v1/forecast?namespace=team-a").get_json()["forecasts"]

    assert {name: found[name]["rateMilli"] for name in ("now", "fastest", "slowest")} == dict.fromkeys(
        ("now", "fastest", "slowest"), GPU
    )


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    built = Books(database_url)
    yield built
    built.close()
