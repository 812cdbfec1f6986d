"""What pods are told about their namespace's budget, as Events."""

import pytest

from tests.timekeeper.worlds import HOUR, SECOND, T0, Town, budgets, gpu_pod, node

ONE_DATABASE = "messages follow from standings, which other tests compare on both"

ENTRY = "gpuHours: 1\nperiod: month\nwarnAt: 0.8"


def told(town: Town) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = [
        (notice.pod.name, notice.reason, notice.type) for notice in town.pod_notices
    ]
    town.pod_notices.clear()
    return found


@pytest.fixture(params=[ENTRY, "gpuHours: 1\nperiod: month"], ids=["warnAt", "no warnAt"])
def spending(town: Town, request: pytest.FixtureRequest) -> Town:
    """A pod on a whole card has run for half of its namespace's hour."""
    town.begin(
        ("nodes", node()),
        ("configmaps", budgets(_settings="lookahead: 0s", team_a=request.param)),
        ("pods", gpu_pod("train", started_ms=T0)),
    )
    run_on(town, HOUR // 2)
    assert told(town) == []
    return town


def run_on(town: Town, ms: int) -> None:
    town.clock.turn(ms)
    town.node_heard()
    town.tick()


def test_a_running_pod_gets_an_event_when_the_budget_is_nearly_and_then_wholly_used_and_when_there_is_more(
    spending: Town,
) -> None:
    run_on(spending, HOUR // 3)
    first = spending.pod_notices[0].message
    assert told(spending) == [("train", "BudgetNearlyUsed", "Warning")]
    assert first == "Namespace team-a has used or reserved 0.83 of 1.00 GPU-hours of its budget."

    run_on(spending, HOUR // 5)
    assert told(spending) == [("train", "OverBudget", "Warning")]

    spending.clock.turn(SECOND)
    spending.hear("configmaps", budgets(_settings="lookahead: 0s", team_a="gpuHours: 9\nperiod: month"))
    spending.tick()
    assert told(spending) == [("train", "BackInBudget", "Normal")]


def test_a_standing_that_stays_is_reported_once_also_after_a_restart(spending: Town) -> None:
    run_on(spending, HOUR)
    assert told(spending) == [("train", "OverBudget", "Warning")]

    run_on(spending, SECOND)
    spending.restart()
    run_on(spending, SECOND)

    assert told(spending) == []


def test_amounts_of_a_small_budget_are_reported_with_the_digits_that_they_have(town: Town) -> None:
    entry = "gpuHours: 0.0001\nperiod: month"
    town.begin(("nodes", node()), ("configmaps", budgets(_settings="lookahead: 0s", team_a=entry)))

    town.hear("pods", gpu_pod("train", started_ms=T0))
    town.tick()
    run_on(town, 26 * SECOND)

    (notice,) = town.pod_notices
    assert "used or reserved 0.0072 of 0.0001 GPU-hours" in notice.message


@pytest.mark.parametrize("bound_to", ["", "n1"], ids=["waiting", "bound before the settler saw it"])
def test_a_pod_that_is_admitted_over_budget_gets_an_event_that_it_was_demoted(
    spending: Town, bound_to: str
) -> None:
    run_on(spending, HOUR)
    spending.pod_notices.clear()
    now = spending.clock()
    late = gpu_pod("late", node=bound_to, bound_ms=now, standing="OVER_BUDGET", created_ms=now, card=1)

    spending.hear("pods", late)
    spending.tick()

    (notice,) = spending.pod_notices
    assert (notice.pod.name, notice.reason, notice.type) == ("late", "Demoted", "Warning")
    assert "team-a was over its GPU budget" in notice.message
    assert "gpu-lower-priority" in notice.message


def test_the_event_names_the_class_that_its_group_gives_it_over_budget(spending: Town) -> None:
    spending.clock.turn(SECOND)
    lab = "gpuHours: unlimited\npriorityClasses: {overBudget: tier-low}"
    spending.hear("configmaps", budgets(**{"team_a": ENTRY + "\ngroup: lab", "_group.lab": lab}))
    spending.tick()
    spending.pod_notices.clear()
    now = spending.clock()

    spending.hear("pods", gpu_pod("late", node="", standing="OVER_BUDGET", created_ms=now))
    spending.tick()

    assert [" at most tier-low," in notice.message for notice in spending.pod_notices] == [True]


def test_where_nothing_is_demoted_no_pod_gets_such_an_event(spending: Town) -> None:
    spending.clock.turn(SECOND)
    spending.hear("configmaps", budgets(_settings="mode: observe", team_a=ENTRY))
    spending.tick()
    spending.pod_notices.clear()

    spending.hear("pods", gpu_pod("late", node="", standing="OVER_BUDGET", created_ms=spending.clock()))
    spending.tick()

    assert "Demoted" not in [notice.reason for notice in spending.pod_notices]
