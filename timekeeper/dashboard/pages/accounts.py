"""One account over its period: the burn-down with its forecast."""

from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

from timekeeper.dashboard.api_caller import Json
from timekeeper.dashboard.charts.burn_down import BurnDown, burn_down
from timekeeper.dashboard.visits import Visit, part

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_DAYS_BY_HOUR = 3  # a shorter time is drawn by the hour
_DAYS_BY_DAY = 400
_MOST_STEPS = 10_000


def account_values(visit: Visit, key: str, budget: Json) -> dict[str, Any]:
    """The forecast and the picture of a namespace's or group's account. ``key``: its name, or
    ``_group.NAME``."""
    forecast = part(lambda: visit.api.get("/v1/forecast", namespace=key))
    paces = forecast.answer["forecasts"][0] if forecast.answer else None
    begin_ms = budget["period"]["from"]
    step = step_of(visit.now_ms - begin_ms)
    spent = part(lambda: _spent(visit, key, max(0, begin_ms), step))
    rows = [] if spent.answer is None else spent.answer["rows"]
    picture = picture_of(visit.now_ms, budget, paces, rows) if spent.answer is not None else None
    return {
        "budget": budget,
        "forecast": forecast,
        "paces": paces,
        "burn": picture,
        "spent": spent,
        "step": step,
    }


def step_of(length_ms: int) -> str:
    """The calendar's step in which a time is drawn."""
    if length_ms <= _DAYS_BY_HOUR * DAY_MS:
        return "hour"
    return "day" if length_ms <= _DAYS_BY_DAY * DAY_MS else "month"


def _spent(visit: Visit, key: str, begin_ms: int, step: str) -> Json:
    """What was charged in each step of the period so far."""
    return visit.api.get(
        "/v1/usage",
        namespace=key,
        group="group" if key.startswith("_group.") else "namespace",
        by=step,
        from_=begin_ms,
        to=max(visit.now_ms, begin_ms + 1),
        limit=_MOST_STEPS,
    )


def picture_of(now_ms: int, budget: Json, paces: Json | None, rows: list[Json]) -> BurnDown | None:
    """The burn-down; without a limit there is no period, and it begins with the first use."""
    begin_ms = budget["period"]["from"]
    if begin_ms <= 0:
        rows = list(dropwhile(lambda each: not each["amount"], rows))
        begin_ms = rows[0]["from"] if rows else now_ms
    return burn_down(budget, paces, list(_steps(rows, begin_ms)), begin_ms, now_ms)


def _steps(rows: list[Json], begin_ms: int) -> Iterator[tuple[int, int]]:
    """The end of each step and its charge. A step without a charge has no row: the line stays level until the
    next one begins."""
    at_ms = begin_ms
    for each in rows:
        if each["from"] > at_ms:
            yield each["from"], 0
        at_ms = each["to"]
        yield at_ms, each["amount"]
