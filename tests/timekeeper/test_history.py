"""Entries dated by when they took effect, and the accounts that follow from them."""

from tests.timekeeper.clocks import at_ms
from tests.timekeeper.worlds import DAY
from timekeeper.accounts.history import Entry, History, history_of
from timekeeper.core.ledger import FOREVER_MS, Interval
from timekeeper.core.policy import UNLIMITED, Budget, Settings

MONTH = "gpuHours: 10\nperiod: month"
WEEK = "gpuHours: 10\nperiod: week"
NOV_1, NOV_10, NOV_16 = (at_ms(f"2026-11-{day:02}T00:00:00Z") for day in (1, 10, 16))
NOV_12, NOV_20, NOV_23, DEC_1 = (
    at_ms(text)
    for text in (
        "2026-11-12T12:00:00Z",
        "2026-11-20T10:00:00Z",
        "2026-11-23T00:00:00Z",
        "2026-12-01T00:00:00Z",
    )
)


def history(*entries: tuple[str, str | None, int]) -> History:
    return history_of(Entry(*each) for each in entries)


def span(of: History, at: int, namespace: str = "team-a") -> Interval:
    return of.account(namespace, at).span


def test_each_moment_has_the_entry_of_that_moment() -> None:
    of = history(("team-a", MONTH, 100), ("team-a", WEEK, 200), ("team-a", None, 300))

    assert of.budget("team-a", 99).budget == UNLIMITED
    assert of.budget("team-a", 100).budget.period == "month"
    assert of.budget("team-a", 299).budget.period == "week"
    assert of.budget("team-a", 300).budget == UNLIMITED
    assert of.living() == frozenset()


def test_a_namespace_without_an_entry_has_the_default() -> None:
    of = history(("_defaults", WEEK, 100), ("team-b", MONTH, 100))

    assert of.budget("team-a", 150).key == "_defaults"
    assert of.budget("team-b", 150).key == "team-b"


def test_settings_have_defaults_until_they_are_written() -> None:
    of = history(("_settings", "lookahead: 1s", 100))

    assert of.settings(99) == Settings()
    assert of.settings(100).lookahead_ms == 1000


def test_an_entry_of_before_an_upgrade_counts_whatever_rules_of_admission_it_names() -> None:
    of = history(("team-a", MONTH + "\nrules: {gone-since: warn, share-range: warn, host-pid: warn}", 100))

    assert of.unread == ()
    assert of.budget("team-a", 100).budget == Budget(36_000_000_000, rules=(("host-pid", "warn"),))


def test_an_entry_that_no_longer_parses_counts_as_never_written() -> None:
    of = history(("team-a", MONTH, 100), ("team-a", "gpuHours: many", 200))

    assert [error.key for error in of.unread] == ["team-a"]
    assert of.budget("team-a", 300).budget.period == "month"


def test_an_account_is_the_calendars_period() -> None:
    assert span(history(("team-a", MONTH, NOV_10)), NOV_20) == Interval(NOV_1, DEC_1)
    assert span(history(("team-a", "gpuHours: 1\nperiod: once", NOV_10)), NOV_20) == Interval(0, FOREVER_MS)


def test_a_changed_period_closes_the_account_then() -> None:
    of = history(("team-a", MONTH, NOV_10), ("team-a", WEEK, NOV_20))

    assert span(of, NOV_12) == Interval(NOV_1, NOV_20)
    assert span(of, NOV_20) == Interval(NOV_20, NOV_23)


def test_a_changed_amount_closes_nothing() -> None:
    of = history(("team-a", MONTH, NOV_10), ("team-a", "gpuHours: 99\nperiod: month", NOV_20))

    assert span(of, NOV_20) == Interval(NOV_1, DEC_1)


def test_a_budget_taken_away_and_given_again_refills_nothing() -> None:
    of = history(("team-a", MONTH, NOV_10), ("team-a", None, NOV_12), ("team-a", MONTH, NOV_20))

    assert span(of, NOV_20) == Interval(NOV_1, DEC_1)


def test_a_changed_time_zone_closes_the_account_then() -> None:
    of = history(("team-a", MONTH, NOV_10), ("_settings", "timeZone: Europe/Berlin", NOV_20))

    assert span(of, NOV_20) == Interval(NOV_20, DEC_1 - 3_600_000)


def test_from_the_default_to_an_own_entry_of_the_same_kind_the_account_goes_on() -> None:
    of = history(("_defaults", MONTH, NOV_10), ("team-a", "gpuHours: 99\nperiod: month", NOV_20))

    assert span(of, NOV_20) == Interval(NOV_1, DEC_1)


def test_without_any_budget_there_is_one_account_of_all_time() -> None:
    assert span(history(), NOV_20) == Interval(0, FOREVER_MS)


def test_an_interval_is_cut_at_every_bound_of_an_account_and_at_each_midnight_in_utc() -> None:
    of = history(("team-a", WEEK, NOV_1), ("team-a", "gpuHours: 1\nperiod: month", NOV_12))
    start, end = NOV_10 - DAY - 1, DEC_1 + 5
    midnights = {at for at in range(0, end, DAY) if at > start}

    pieces = list(of.pieces("team-a", Interval(start, end)))

    assert [each.start_ms for each in pieces] == sorted({start, NOV_10 - DAY, NOV_12, DEC_1} | midnights)
    assert [each.end_ms for each in pieces] == [*(each.start_ms for each in pieces[1:]), end]
    assert list(of.pieces("team-a", Interval(NOV_16, NOV_16))) == []
