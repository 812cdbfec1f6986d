"""Budgets that a simulation supposes."""

from timekeeper.accounts.budget_history import BudgetEntry, entry_value
from timekeeper.accounts.decisions.simulation import supposed
from timekeeper.core.budgets.mistakes import EntryError

AT_MS = 1_000


def test_a_supposed_budget_counts_from_its_moment() -> None:
    entries = [BudgetEntry("team-a", "gpuHours: 1\nperiod: once", 0)]

    history = supposed(entries, "team-a", "gpuHours: 7\nperiod: once", AT_MS)

    assert not isinstance(history, EntryError)
    granted = [history.budget("team-a", at).budget.amount for at in (0, AT_MS)]
    assert granted == [3_600_000_000, 7 * 3_600_000_000]


def test_no_supposed_budget_is_remembered() -> None:
    """Users may suppose any number of texts, valid or not."""
    before = entry_value.cache_info().currsize

    for at in range(50):
        supposed((), "team-a", f"gpuHours: {at}.125\nperiod: once", AT_MS)
        supposed((), "team-a", f"@{at}", AT_MS)

    assert entry_value.cache_info().currsize == before
