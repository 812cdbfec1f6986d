"""What a decision says about a changed budget entry."""

import pytest

from timekeeper.accounts.budget_history import BudgetEntry, history_of
from timekeeper.accounts.decisions.ledger_decisions import of_changes
from timekeeper.core.decisions import MESSAGE

OLD = "gpuHours: 20\nperiod: month\nexempt: [bot-1]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OLD.replace("20", "40.5"), "was changed: gpuHours from 20 to 40.5."),
        (
            OLD.replace("month", "week").replace("bot-1", "bot-2"),
            "was changed: period from month to week, exempt.",
        ),
        (OLD + "rules: {host-pid: warn}\n", "was changed: rules."),
        (OLD + "reserve: declared\n", "was changed: reserve from none to declared."),
        (OLD + "price: 2.5\n", "was changed: price from none to 2.5."),
        (OLD.replace("20", "unlimited"), "was changed: gpuHours from 20 to unlimited."),
        (OLD + "\n# a comment\n", "was changed."),
        ("gpuHours: [", "was changed."),
        (None, "was removed."),
    ],
)
def test_a_changed_entry_is_told_by_its_fields_with_values_that_are_short(
    text: str | None, sentence: str
) -> None:
    (run,) = of_changes([BudgetEntry("team-d", text, 9)], (), history_of([BudgetEntry("team-d", OLD, 1)]))

    assert run.decision.figures[MESSAGE] == f"The budget entry team-d {sentence}"


def test_a_new_entry_is_added() -> None:
    (run,) = of_changes([BudgetEntry("team-d", OLD, 9)], (), history_of([]))

    assert run.decision.figures[MESSAGE] == "The budget entry team-d was added."


def test_a_changed_price_of_all_namespaces_is_told_with_both_values() -> None:
    before = history_of([BudgetEntry("_settings", "price: 2\ncurrency: EUR\ntimeZone: UTC\n", 1)])
    (run,) = of_changes([BudgetEntry("_settings", "price: 2.5\ncurrency: EUR\n", 9)], (), before)

    assert (run.decision.at_ms, run.decision.figures[MESSAGE]) == (
        9,
        "The budget entry _settings was changed: price from 2 to 2.5, timeZone from UTC to none.",
    )
