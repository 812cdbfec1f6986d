"""Entries dated by when they took effect, and the accounts that follow from them."""

import sys
from dataclasses import replace
from types import FrameType
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tests.timekeeper.clocks import at_ms
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, gpu_pod
from timekeeper.accounts.budget_history import BillingInterval, BudgetEntry, History, entry_value, history_of
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.usage import price_intervals
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import UNLIMITED, Budget, BudgetSettings
from timekeeper.core.ledger.metering import FOREVER_MS, Interval

POD = cast(LedgerPod, read_pod(gpu_pod("p")))
MONTH = "gpuHours: 10\nperiod: month"
WEEK = "gpuHours: 10\nperiod: week"
OBSERVED = f"{MONTH}\nmode: observe"
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
    return history_of(BudgetEntry(*each) for each in entries)


def span(of: History, at: int, namespace: str = "team-a") -> Interval:
    return of.account(namespace, at).span


def test_each_moment_has_the_entry_of_that_moment() -> None:
    of = history(("team-a", MONTH, 100), ("team-a", WEEK, 200), ("team-a", None, 300))

    assert of.budget("team-a", 99).budget == UNLIMITED
    assert of.budget("team-a", 100).budget.period == "month"
    assert of.budget("team-a", 299).budget.period == "week"
    assert of.budget("team-a", 300).budget == UNLIMITED
    assert of.current_keys() == frozenset()


def test_a_namespace_without_an_entry_has_the_default() -> None:
    of = history(("_defaults", WEEK, 100), ("team-b", MONTH, 100))

    assert of.budget("team-a", 150).key == "_defaults"
    assert of.budget("team-b", 150).key == "team-b"


def test_settings_have_defaults_until_they_are_written() -> None:
    of = history(("_settings", "lookahead: 1s", 100))

    assert of.settings(99) == BudgetSettings()
    assert of.settings(100).lookahead_ms == 1000


def test_an_entry_of_before_an_upgrade_counts_whatever_rules_of_admission_it_names() -> None:
    of = history(("team-a", MONTH + "\nrules: {gone-since: warn, share-range: warn, host-pid: warn}", 100))

    assert of.unreadable_entries == ()
    assert of.budget("team-a", 100).budget == Budget(36_000_000_000, rules=(("host-pid", "warn"),))


def test_an_entry_that_no_longer_parses_counts_as_never_written() -> None:
    of = history(("team-a", MONTH, 100), ("team-a", "gpuHours: many", 200))

    assert [error.key for error in of.unreadable_entries] == ["team-a"]
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


BERLIN, TOKYO, NEW_YORK = (
    f"timeZone: {zone}" for zone in ("Europe/Berlin", "Asia/Tokyo", "America/New_York")
)


def test_a_changed_time_zone_counts_from_the_end_of_the_running_period_on() -> None:
    """So nothing is refilled by it, and no grant is left behind in an account that nobody reads any more."""
    of = history(("team-a", MONTH, NOV_10), ("_settings", BERLIN, NOV_20))

    assert span(of, NOV_20) == Interval(NOV_1, DEC_1)
    assert span(of, DEC_1) == Interval(DEC_1, DEC_1 + 31 * DAY - HOUR)


def test_the_first_period_in_another_zone_is_never_a_remnant() -> None:
    """In New York it is still November when December begins in UTC: five hours are no month."""
    of = history(("team-a", MONTH, NOV_10), ("_settings", NEW_YORK, NOV_20))

    assert span(of, DEC_1) == Interval(DEC_1, DEC_1 + 31 * DAY + 5 * HOUR)
    assert span(of, DEC_1 + 31 * DAY + 5 * HOUR).start_ms == DEC_1 + 31 * DAY + 5 * HOUR


def test_a_time_zone_changed_again_before_it_counted_never_counts() -> None:
    of = history(
        ("team-a", MONTH, NOV_10),
        ("_settings", TOKYO, NOV_12),
        ("_settings", BERLIN, NOV_16),
        ("_settings", "timeZone: UTC", NOV_20),
    )

    assert span(of, NOV_20) == Interval(NOV_1, DEC_1)
    assert span(of, DEC_1) == Interval(DEC_1, DEC_1 + 31 * DAY)


def test_a_period_changed_after_the_time_zone_closes_the_account_then_all_the_same() -> None:
    of = history(("team-a", MONTH, NOV_10), ("_settings", BERLIN, NOV_12), ("team-a", WEEK, NOV_20))

    assert span(of, NOV_12) == Interval(NOV_1, NOV_20)
    assert span(of, NOV_20) == Interval(NOV_20, NOV_23 - HOUR)


def test_accounts_follow_each_other_whatever_was_changed() -> None:
    of = history(
        ("team-a", WEEK, NOV_1),
        ("_settings", TOKYO, NOV_10),
        ("team-a", MONTH, NOV_12),
        ("_settings", NEW_YORK, NOV_16),
        ("team-a", None, NOV_20),
    )
    at, end = NOV_1, DEC_1 + 70 * DAY
    while at < end:
        account = of.account("team-a", at)
        assert account.span.start_ms <= at < account.span.end_ms
        assert of.account("team-a", account.span.end_ms - 1) == account
        assert of.account("team-a", account.span.end_ms).span.start_ms == account.span.end_ms
        at = account.span.end_ms


def test_an_account_that_a_changed_period_closed_is_followed_by_none() -> None:
    of = history(("team-a", MONTH, NOV_10), ("team-a", WEEK, NOV_20))

    assert of.preceding("team-a", of.account("team-a", NOV_20)) is None
    week = of.account("team-a", NOV_23)
    assert of.preceding("team-a", week) == of.account("team-a", NOV_20)


def test_a_group_has_its_own_entry_or_no_limit_and_never_the_default() -> None:
    of = history(("_defaults", WEEK, 100), ("_group.lab", MONTH, 200))

    assert of.budget("_group.lab", 150).budget == UNLIMITED
    assert of.budget("_group.lab", 200).key == "_group.lab"
    assert span(of, NOV_20, "_group.lab") == Interval(NOV_1, DEC_1)


def test_a_namespace_is_in_a_group_while_its_entry_says_so() -> None:
    of = history(
        ("_defaults", "gpuHours: 1\ngroup: pool", 100),
        ("team-a", MONTH + "\ngroup: lab", 200),
        ("team-a", MONTH + "\ngroup: lab\nprice: 1", 300),
        ("team-a", MONTH, 400),
        ("team-a", None, 500),
    )

    assert [of.group("team-a", at) for at in (99, 100, 200, 300, 400, 500)] == [
        *("", "pool", "lab"),
        *("lab", "", "pool"),
    ]
    assert of.memberships("team-a") == (
        (Interval(100, 200), "pool"),
        (Interval(200, 400), "lab"),
        (Interval(500, FOREVER_MS), "pool"),
    )
    assert of.groups_of("team-a") == {"pool", "lab"}
    assert of.groups == {"pool"}


def test_a_price_is_the_namespaces_own_else_the_defaults_else_the_clusters() -> None:
    of = history(
        ("_settings", "price: 1.5\ncurrency: EUR", 100),
        ("_defaults", "gpuHours: 1\nprice: 2", 200),
        ("team-a", "gpuHours: 1\nprice: 3", 300),
        ("team-a", "gpuHours: 1", 400),
        ("_settings", "", 500),
    )

    assert [of.price("team-a", at) for at in (99, 100, 200, 300, 400, 500)] == [
        *(("", "USD"), ("1.5", "EUR"), ("2", "EUR")),
        *(("3", "EUR"), ("2", "EUR"), ("2", "USD")),
    ]


def test_a_report_is_cut_where_group_or_price_changed_and_nowhere_else() -> None:
    of = history(
        ("_settings", "price: 1", 100),
        ("team-a", "gpuHours: 1\ngroup: lab", 200),
        ("team-a", "gpuHours: 2\ngroup: lab", 300),
        ("team-a", "gpuHours: 2\nprice: 2", 400),
        ("_defaults", "gpuHours: 2\nprice: 9", 500),
    )

    assert list(of.billing_intervals("team-a", Interval(50, 900))) == [
        BillingInterval(Interval(50, 100), "", "", "USD"),
        BillingInterval(Interval(100, 200), "", "1", "USD"),
        BillingInterval(Interval(200, 400), "lab", "1", "USD"),
        BillingInterval(Interval(400, 900), "", "2", "USD"),
    ]
    assert list(of.billing_intervals("team-a", Interval(200, 200))) == []


def test_a_price_for_each_hour_is_cut_once_for_all_namespaces_with_the_same_terms() -> None:
    hours = 31 * 24
    of = history(
        *(("_settings", f"price: {1 + hour % 7}", NOV_1 + hour * HOUR) for hour in range(-48, hours)),
        *((f"own-{number}", MONTH, NOV_1 - number * DAY) for number in range(1, 30)),
        ("lab", f"{MONTH}\ngroup: lab", NOV_1 - DAY),
        ("lab", MONTH, NOV_10),
    )
    names = [
        *(f"own-{number}" for number in range(1, 30)),
        *(f"bare-{number}" for number in range(30)),
        "lab",
    ]
    asked: list[int] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is History.price.__code__:
            asked.append(frame.f_locals["at_ms"])

    sys.setprofile(count)
    try:
        found = list(price_intervals(of, names, Interval(NOV_1, NOV_1 + hours * HOUR)))
    finally:
        sys.setprofile(None)

    # those with an entry, those without, and the one that left its group at a full hour: an hour each
    assert [(len(each.namespaces), each.from_ms) for each in found] == [
        (count, NOV_1 + hour * HOUR) for count in (29, 30, 1) for hour in range(hours)
    ]
    assert {each.price for each in found if each.from_ms == NOV_10} == {str(1 + 9 * 24 % 7)}
    assert [each.group for each in found if each.namespaces == ("lab",)] == [
        "lab" if hour < 9 * 24 else "" for hour in range(hours)
    ]
    assert len(asked) == 3 * hours


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


def test_the_mode_is_the_entrys_then_the_labels_then_the_defaults_then_the_clusters() -> None:
    labelled = ("_mode.team-a", "meter", 100)

    def modes(*entries: tuple[str, str | None, int]) -> tuple[str, str]:
        of = history(*entries)
        return of.mode("team-a", 200), of.mode("team-b", 200)

    assert modes() == ("enforce", "enforce")
    assert modes(("_settings", "mode: observe", 0)) == ("observe", "observe")
    assert modes(("_defaults", OBSERVED, 0)) == ("observe", "observe")
    assert modes(("_defaults", OBSERVED, 0), labelled) == ("meter", "observe")
    assert modes(("_defaults", OBSERVED, 0), ("team-a", MONTH, 0)) == ("enforce", "observe")
    assert modes(("team-a", MONTH, 0), labelled) == ("meter", "enforce")
    assert modes(("team-a", f"{MONTH}\nmode: observe", 0), labelled) == ("observe", "enforce")
    assert modes(labelled, ("_mode.team-a", None, 150)) == ("enforce", "enforce")


def test_a_label_changes_nothing_of_a_budget_but_its_mode() -> None:
    of = history(("team-a", MONTH, 0), ("_mode.team-a", "meter", 100), ("_mode.team-b", "observe", 100))

    before, after = of.budget("team-a", 99), of.budget("team-a", 100)
    assert after == replace(before, budget=replace(before.budget, mode="meter"))
    assert of.version("team-a", 100) == of.version("team-a", 99)
    assert of.budget("team-b", 100).key == ""
    assert of.labelled == {"team-a", "team-b"}
    assert of.groups == frozenset()


def test_a_pod_was_created_under_the_mode_of_that_time_and_near_a_change_as_admission_wrote() -> None:
    of = history(
        ("_settings", "mode: meter", HOUR),
        ("_mode.team-a", "enforce", 2 * HOUR),
        ("_mode.team-a", None, 3 * HOUR),
    )

    def was_enforced(at: int) -> tuple[bool, bool]:
        pod = replace(POD, created_ms=at)
        return of.was_enforced(pod), of.was_enforced(replace(pod, is_governed=True))

    assert was_enforced(0) == was_enforced(HOUR - 1) == (False, True)  # before the first entry
    assert was_enforced(2 * HOUR - MINUTE) == (False, False)
    assert was_enforced(2 * HOUR - MINUTE + 1) == (False, True)
    assert was_enforced(2 * HOUR + MINUTE - 1) == (False, True)
    assert was_enforced(2 * HOUR + MINUTE) == (True, True)
    assert was_enforced(3 * HOUR + MINUTE) == (False, False)
    assert history(("team-a", MONTH, HOUR)).was_enforced(replace(POD, created_ms=0))


KEYS = ("team-a", "team-b", "_group.lab", "_defaults", "_settings", "_mode.team-a", "_period.team-a")
TEXTS = (MONTH, WEEK, OBSERVED, f"{MONTH}\ngroup: lab", "gpuHours: lots", "timeZone: Europe/Berlin", None)


def dated(key: str, text: str | None, at: int) -> BudgetEntry:
    if key == "_period.team-a":
        return BudgetEntry(key, f"{at}/{at + DAY}", at)
    return BudgetEntry(key, "observe" if key == "_mode.team-a" and text else text, at)


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TEXTS)), max_size=12),
    st.integers(0, 12),
    st.booleans(),
)
def test_a_history_followed_by_entries_is_that_of_all_of_them(
    written: list[tuple[str, str | None]], first: int, only_meter: bool
) -> None:
    entries = [dated(*each, NOV_1 + place * DAY) for place, each in enumerate(written)]
    whole = history_of(entries, only_meter)

    before = history_of(entries[:first], only_meter)
    before.memberships("team-a")
    before.budget("team-a", NOV_20)
    then = before.followed_by(entries[first:])

    assert then == whole
    assert [then.budget("team-a", at) for at in (NOV_1, NOV_10, NOV_20)] == [
        whole.budget("team-a", at) for at in (NOV_1, NOV_10, NOV_20)
    ]
    assert then.memberships("team-a") == whole.memberships("team-a")
    assert then.account("team-a", NOV_12) == whole.account("team-a", NOV_12)


def test_no_text_is_parsed_twice_as_long_as_a_history_has_it_however_many_there_are() -> None:
    texts = {f"team-{number}": f"gpuHours: {number % 17_000}" for number in range(17_100)}
    of = history(*((key, text, 100) for key, text in texts.items()))

    later = of.followed_by([BudgetEntry("team-1", WEEK, 200)])

    assert all(entry_value(key, text) is of.budget(key, 100).budget for key, text in texts.items())
    assert entry_value("team-17099", "gpuHours: 99") is of.budget("team-99", 100).budget
    assert later.budget("team-2", 300).budget is of.budget("team-2", 300).budget
    assert isinstance(entry_value("_settings", "gpuHours: 99"), EntryError)
    assert isinstance(entry_value("No_Such", "gpuHours: 99"), EntryError)
