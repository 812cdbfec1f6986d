"""Which rows of accounts a tick writes, and what a reader makes of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timekeeper.worlds import DAY, GPU, HOUR, SECOND, T0
from timekeeper.accounts.account_rows import (
    EVERY_MS,
    AccountChanges,
    changed_accounts,
    moments_of,
    row_of,
    statement_of,
)
from timekeeper.accounts.balance import BalanceFigures, Rates, Statement, statement, untouched
from timekeeper.accounts.budget_history import DEFAULTS, BudgetEntry, history_of
from timekeeper.accounts.statements import Statements

HISTORY = history_of(
    [
        BudgetEntry("team-a", "gpuHours: 10\ngroup: ab", 0),
        BudgetEntry("team-b", "gpuHours: 10\ngroup: ab", 0),
        BudgetEntry("team-c", "gpuHours: 10", 0),
        BudgetEntry("_group.ab", "gpuHours: 15", 0),
        BudgetEntry("_defaults", "gpuHours: 1", 0),
    ]
)
ALL = ("team-a", "team-b", "team-c", "_group.ab")


def stated(now_ms: int = T0, **pending: int) -> Statements:
    """The accounts, with what is pending in each."""
    figures = {name: BalanceFigures(10 * HOUR * GPU, pending=pending.get(name, 0)) for name in "abc"}
    whole = BalanceFigures(15 * HOUR * GPU, pending=pending.get("a", 0) + pending.get("b", 0))
    group = statement(HISTORY, "_group.ab", whole, now_ms)
    groups = {"a": group, "b": group}
    namespaces = {
        f"team-{name}": statement(HISTORY, f"team-{name}", each, now_ms, groups.get(name))
        for name, each in figures.items()
    }
    default = untouched(HISTORY, now_ms, {"ab": group})
    return Statements(namespaces, default, {"_group.ab": group})


def changed(
    before: Statements, after: Statements, *moved: str, since_ms: int = T0, now_ms: int = T0 + 1
) -> AccountChanges:
    written = {**before.namespaces, **before.groups, DEFAULTS: before.default}
    moments = moments_of(written, {})
    return changed_accounts(HISTORY, after, written, moments, ALL, set(moved), since_ms, now_ms)


def test_a_first_tick_writes_every_account() -> None:
    first = changed_accounts(HISTORY, stated(), {}, {}, (*ALL, DEFAULTS), set(), T0, T0 + 1)

    assert first.written.keys() == {*ALL, DEFAULTS}
    assert not first.left


def test_what_is_the_same_is_not_written() -> None:
    assert changed(stated(), stated()) == AccountChanges({})


def test_what_happened_to_a_member_is_written_with_its_group_and_what_the_other_members_lack() -> None:
    found = changed(stated(), stated(a=1, b=1, c=1), "team-a")

    assert found.written.keys() == {"team-a", "team-b", "_group.ab"}
    assert found.left == {"team-c"}


@pytest.mark.parametrize(
    "changes",
    [
        {"carried": 1},
        {"received": 1},
        {"rates": Rates(running_milli=1)},
        {"balance": replace(stated().namespaces["team-c"].balance, posted=1)},
        {"balance": replace(stated().namespaces["team-c"].balance, granted=HOUR * GPU)},
        {"balance": replace(stated().namespaces["team-c"].balance, pending=10 * HOUR * GPU)},
    ],
    ids=["carried", "received", "rates", "posted", "granted", "standing"],
)
def test_what_time_alone_does_not_change_is_written_at_once(changes: dict[str, object]) -> None:
    before = stated()
    now: Statement = replace(before.namespaces["team-c"], **changes)  # type: ignore[arg-type]
    after = replace(before, namespaces={**before.namespaces, "team-c": now})

    assert changed(before, after).written == {"team-c": now}


def test_what_time_alone_changed_is_written_within_ten_seconds_each_unit_at_its_own_moment() -> None:
    names = [f"n{number}" for number in range(1_000)]
    history = history_of([BudgetEntry(name, "gpuHours: 10", 0) for name in names])
    figures = BalanceFigures(10 * HOUR * GPU)
    one = {name: statement(history, name, figures, T0) for name in names}
    other = {name: statement(history, name, replace(figures, pending=1), T0) for name in names}
    made = Statements(other, untouched(history, T0, {}))

    moments = moments_of(names, {})
    ticks = [
        changed_accounts(history, made, one, moments, names, set(), at_ms, at_ms + SECOND).written.keys()
        for at_ms in range(T0, T0 + EVERY_MS, SECOND)
    ]

    assert sorted(name for tick in ticks for name in tick) == sorted(names)
    assert {len(tick) for tick in ticks} == {len(names) // len(ticks)}
    places = {name: place for place, name in enumerate(sorted(names))}
    assert sum(places[max(tick)] - places[min(tick)] < len(tick) for tick in ticks) >= len(ticks) - 1


def test_a_new_account_is_written_with_its_neighbours_and_moves_none() -> None:
    known = moments_of(("a", "c", "e"), {})

    found = moments_of(("a", "b", "c", "d"), known)

    assert found == {"a": known["a"], "b": known["a"], "c": known["c"], "d": known["c"]}
    assert moments_of(("0",), known) == {"0": known["a"]}


def test_who_has_no_account_any_more_loses_the_row() -> None:
    before, after = stated(), stated()
    without = replace(
        after, namespaces={name: each for name, each in after.namespaces.items() if "c" not in name[5:]}
    )

    assert changed(before, without).gone == {"team-c"}


@given(
    amounts=st.lists(st.integers(0, 2**50), min_size=3, max_size=3),
    rates=st.lists(st.integers(0, 10_000), min_size=3, max_size=3),
    after_ms=st.integers(0, DAY),
)
def test_a_statement_is_read_back_as_it_was(amounts: list[int], rates: list[int], after_ms: int) -> None:
    now_ms = T0 + after_ms
    granted, posted, pending = amounts
    figures = BalanceFigures(granted, posted, pending, Rates(*rates), carried=1, declared=2, received=3)
    group = statement(HISTORY, "_group.ab", figures, now_ms)
    made = {
        "team-a": statement(HISTORY, "team-a", figures, now_ms, group),
        "_group.ab": group,
        DEFAULTS: untouched(HISTORY, now_ms, {}),
    }
    rows = {subject: row_of(subject, each, now_ms, 7) for subject, each in made.items()}

    assert statement_of(HISTORY, "team-a", rows) == made["team-a"]
    assert statement_of(HISTORY, "_group.ab", rows) == group
    assert statement_of(HISTORY, "nobody", rows) == made[DEFAULTS]
    assert statement_of(HISTORY, "_group.none", rows).balance.granted is None
