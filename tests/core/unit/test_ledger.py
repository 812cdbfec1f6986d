"""Periods by the calendar, evidence by its rank, balances by addition."""

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.budgets.policy import GPU_HOUR, PERIODS
from timekeeper.core.ledger.metering import (
    FOREVER_MS,
    Balance,
    Evidence,
    Interval,
    charge,
    period_at,
    reserved,
    witnessed,
)

HOUR_MS = 3_600_000


def at(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("kind", "zone", "when", "start", "end"),
    [
        ("hour", "UTC", "2026-11-20T10:20:30.5Z", "2026-11-20T10:00Z", "2026-11-20T11:00Z"),
        ("hour", "Asia/Kolkata", "2026-11-20T10:20:00Z", "2026-11-20T09:30Z", "2026-11-20T10:30Z"),
        ("day", "UTC", "2026-11-20T23:59:59.999Z", "2026-11-20T00:00Z", "2026-11-21T00:00Z"),
        ("day", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        ("day", "Europe/Berlin", "2026-10-25T12:00Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        ("week", "UTC", "2026-11-20T00:00Z", "2026-11-16T00:00Z", "2026-11-23T00:00Z"),
        ("month", "UTC", "2028-02-29T12:00Z", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),
        ("month", "UTC", "2026-12-31T23:00Z", "2026-12-01T00:00Z", "2027-01-01T00:00Z"),
        ("month", "Europe/Berlin", "2026-11-30T23:30Z", "2026-11-30T23:00Z", "2026-12-31T23:00Z"),
        ("quarter", "UTC", "2026-05-31T00:00Z", "2026-04-01T00:00Z", "2026-07-01T00:00Z"),
        ("year", "UTC", "2028-12-31T00:00Z", "2028-01-01T00:00Z", "2029-01-01T00:00Z"),
    ],
)
def test_a_period_follows_the_calendar_of_its_zone(
    kind: str, zone: str, when: str, start: str, end: str
) -> None:
    assert period_at(kind, zone, at(when)) == Interval(at(start), at(end))


def test_once_is_all_of_time() -> None:
    assert period_at("once", "UTC", at("2026-11-20T00:00Z")) == Interval(0, FOREVER_MS)


@given(
    st.sampled_from([kind for kind in PERIODS if kind != "once"]),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia"]
    ),
    st.integers(at("2020-01-01T00:00Z"), at("2035-01-01T00:00Z")),
)
def test_periods_follow_one_another_without_gap_or_overlap(kind: str, zone: str, when_ms: int) -> None:
    period = period_at(kind, zone, when_ms)

    assert period.start_ms <= when_ms < period.end_ms
    assert period_at(kind, zone, period.start_ms) == period
    assert period_at(kind, zone, period.end_ms).start_ms == period.end_ms
    assert period_at(kind, zone, period.end_ms - 1) == period


@pytest.mark.parametrize(
    ("evidence", "now", "interval", "closed"),
    [
        (Evidence(50), 90, Interval(50, 50), False),
        (Evidence(50, started_ms=100), 900, Interval(50, 50), False),
        (Evidence(50, beat_ms=500), 900, Interval(50, 500), False),
        (Evidence(50, beat_ms=500, watermark_ms=700), 900, Interval(50, 700), False),
        (Evidence(50, beat_ms=5000), 900, Interval(50, 900), False),
        (Evidence(50, beat_ms=20), 900, Interval(50, 50), False),
        (Evidence(50, started_ms=100, ended_ms=300, beat_ms=800), 900, Interval(50, 300), True),
        (Evidence(50, started_ms=100, ended_ms=800, beat_ms=300), 900, Interval(50, 800), True),
        (Evidence(50, ended_ms=40), 900, Interval(50, 50), True),
        (Evidence(50, ended_ms=0), 900, Interval(50, 50), True),
        (Evidence(50, ended_ms=0, beat_ms=500, watermark_ms=700), 900, Interval(50, 700), True),
        (Evidence(50, vanished_ms=500, grace_ms=300), 600, Interval(50, 600), False),
        (Evidence(50, vanished_ms=500, grace_ms=300), 900, Interval(50, 800), True),
        (Evidence(50, vanished_ms=500, grace_ms=300, is_listed=True), 900, Interval(50, 800), False),
    ],
)
def test_a_hold_is_charged_from_its_binding_to_its_last_evidence_and_proof_replaces_estimates(
    evidence: Evidence, now: int, interval: Interval, closed: bool
) -> None:
    found = witnessed(evidence, now)

    assert found.interval == interval
    assert found.closed is closed
    assert found.proven is bool(evidence.ended_ms)


times = st.none() | st.integers(0, 2000)


@given(
    times,
    times,
    times,
    times,
    st.integers(0, 2000),
    st.integers(0, 2000),
)
def test_no_charge_reaches_beyond_now_or_below_nothing(
    started: int | None,
    ended: int | None,
    beat: int | None,
    watermark: int | None,
    first: int,
    second: int,
) -> None:
    evidence = Evidence(0, started, None if ended is None else min(ended, first), beat, watermark)
    earlier, later = sorted((first, second))

    before, after = witnessed(evidence, earlier), witnessed(evidence, later)

    assert before.interval.length_ms >= 0
    assert after.interval.length_ms >= before.interval.length_ms
    if evidence.ended_ms is None and started is not None and started <= later:
        assert after.interval.end_ms <= later


def test_a_balance_adds_up() -> None:
    balance = Balance(granted=100, posted=60, pending=20, reserved=15)

    assert (balance.spent, balance.remaining, balance.ratio_milli, balance.standing) == (
        80,
        5,
        800,
        "IN_BUDGET",
    )


@pytest.mark.parametrize(
    ("balance", "standing"),
    [
        (Balance(None, 5, 5, 5), "UNLIMITED"),
        (Balance(10, 4, 5, 0), "IN_BUDGET"),
        (Balance(10, 5, 5, 0), "OVER_BUDGET"),
        (Balance(10, 0, 0, 10), "OVER_BUDGET"),
        (Balance(0, 0, 0, 0), "OVER_BUDGET"),
    ],
)
def test_a_namespace_is_in_budget_while_something_remains(balance: Balance, standing: str) -> None:
    assert balance.standing == standing


def test_reservations_reach_no_further_than_the_period() -> None:
    period = Interval(0, 1000)

    assert reserved([500, 250], 100, period, 200) == 75_000
    assert reserved([500], 100, period, 950) == 25_000
    assert reserved([500], 100, period, 1200) == 0


def test_one_gpu_for_one_hour_is_one_gpu_hour() -> None:
    assert charge(1000, Interval(0, HOUR_MS)) == GPU_HOUR


def test_the_zones_are_there_without_those_of_the_machine() -> None:
    assert zoneinfo.ZoneInfo("Europe/Berlin").key == "Europe/Berlin"
