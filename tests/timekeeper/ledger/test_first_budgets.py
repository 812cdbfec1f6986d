"""A first budget in mid-period: what was used since the period began counts at once, and is told."""

from tests.timekeeper.worlds import DAY, HOUR, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.settler.budget_entries import BudgetNotice

ZONE = "timeZone: Europe/Budapest"
LIMIT = "gpuHours: 100\nperiod: month"


def used(town: Town, hours: int, **entries: str) -> None:
    """A pod of team-a runs so long without a limit."""
    town.begin(
        ("configmaps", budgets(_settings=ZONE, **entries)),
        ("nodes", node()),
        ("leases", lease(T0)),
        ("pods", gpu_pod(started_ms=T0)),
    )
    town.advance(hours * HOUR)


def told(town: Town) -> list[BudgetNotice]:
    return [each for each in town.notices if each.reason == "UsedBefore"]


def test_who_writes_it_is_told_what_is_used_since_the_period_began(town: Town) -> None:
    """From the 20th on 120 hours of one card; the month began on the 1st, by clocks of Budapest."""
    used(town, 120)
    town.change("configmaps", budgets(_settings=ZONE, team_a=LIMIT))

    (notice,) = told(town)
    assert (notice.config_map.name, notice.key) == ("bursar-budgets", "team-a")
    assert notice.message == "team-a: 120.00 of 100.00 GPU-hours are used since 2026-11-01 00:00+01:00"
    assert town.budget()["standing"] == "OVER_BUDGET"
    town.change("configmaps", budgets(_settings=ZONE, team_a="gpuHours: 90\nperiod: month"))
    assert len(told(town)) == 1  # it had a limit


def test_of_a_groups_first_budget_too(town: Town) -> None:
    used(town, 5, team_a="gpuHours: unlimited\ngroup: lab", **{"_group.lab": "gpuHours: unlimited"})
    town.change(
        "configmaps",
        budgets(
            _settings=ZONE,
            team_a="gpuHours: unlimited\ngroup: lab",
            **{"_group.lab": "gpuHours: 2\nperiod: month"},
        ),
    )

    assert [each.message for each in told(town)] == [
        "_group.lab: 5.00 of 2.00 GPU-hours are used since 2026-11-01 00:00+01:00"
    ]


def test_where_nothing_was_used_nothing_is_told(town: Town) -> None:
    town.begin(("configmaps", budgets(_settings=ZONE)))
    town.change("configmaps", budgets(_settings=ZONE, team_a=LIMIT))

    assert told(town) == []


def grant(town: Town, subject: str, key: str, **more: str) -> list[str]:
    body: Json = {"subject": subject, "gpuHours": "1", "reason": "r", **more}
    answer = town.post("/v1/grants", body, **{"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.get_json()["warnings"]
    return found


def test_hours_for_an_account_that_ends_tonight_are_warned_of_with_the_date(town: Town) -> None:
    """Lent by a grant, by another namespace of the group, or by the group; the lender's own end is nobody's
    concern."""
    monthly, weekly = "gpuHours: 9\nperiod: month\ngroup: lab", "gpuHours: 9\nperiod: week\ngroup: lab"
    entries = budgets(_settings=ZONE, team_a=weekly, team_b=monthly, **{"_group.lab": LIMIT})
    town.begin(("configmaps", entries))
    assert grant(town, "team-a", "1") == []
    town.advance(2 * DAY + 2 * HOUR)  # T0 is a Friday, 10:00: now it is Sunday, 12:00

    ends = (
        "the period of team-a ends at 2026-11-23 00:00+01:00: what is left of it then is gone, but for its"
        " carryOver"
    )
    assert grant(town, "team-a", "2") == [ends]
    assert grant(town, "team-a", "3", **{"from": "team-b"}) == [ends]
    assert grant(town, "team-b", "4", **{"from": "team-a"}) == []
    passed = {"namespace": "team-a", "gpuHours": "1", "reason": "r"}
    answer = town.post("/v1/groups/lab/grants", passed, **{"Idempotency-Key": "5"})
    assert answer.get_json()["warnings"] == [ends]
