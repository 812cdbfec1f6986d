"""Terms that are reused are those that follow from statement, settings and time."""

from dataclasses import replace

from tests.timekeeper.worlds import T0
from timekeeper.accounts.balance import BalanceFigures, Statement, statement
from timekeeper.accounts.budget_history import BudgetEntry, history_of
from timekeeper.accounts.exhaustion.terms import EvictingNamespaces, terms_of

ENTRY = "gpuHours: 1\nperiod: day\nonExhausted: evict"
HISTORY = history_of([BudgetEntry(name, ENTRY, T0) for name in ("a", "b")])


def stated(name: str, posted: int) -> Statement:
    return statement(HISTORY, name, BalanceFigures(granted=1, posted=posted), T0)


def test_terms_follow_statements_settings_and_the_end_of_the_period() -> None:
    settings, spent = HISTORY.settings(T0), {"a": stated("a", 1), "b": stated("b", 0)}
    end_ms = spent["a"].ends_ms
    evicting = EvictingNamespaces()
    for statements, settings_now, now_ms in (
        (spent, settings, T0),
        (spent, replace(settings, evict_grace_ms=5), T0),
        (spent, replace(settings, mode="observe"), T0),
        ({**spent, "b": stated("b", 2)}, settings, T0),
        ({**spent, "b": stated("b", 2)}, settings, end_ms),
        ({**spent, "a": stated("a", 0)}, settings, end_ms - 1),
        ({}, settings, T0),
        (spent, settings, T0),
    ):
        expected = {name: terms_of(name, each, settings_now, now_ms) for name, each in statements.items()}
        found = evicting.terms(statements, settings_now, now_ms)
        assert found == {name: each for name, each in expected.items() if each is not None}
    assert [*found] == ["a"]
