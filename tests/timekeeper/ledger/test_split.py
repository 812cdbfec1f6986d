"""The split of a group's budget is passed on anew in each period, adds to what a namespace has of its own,
and is never more than the group has."""

from datetime import UTC, datetime

import pytest

from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.worlds import DAY, HOUR, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.api.sheets.budgets import BUDGETS, GROUP_GRANTS
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding

HOURS = 3_600_000_000
DECEMBER = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp()) * 1000
JANUARY = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()) * 1000
GROUP = "gpuHours: 100\nperiod: month\nsplit: {a: 30, b: 20.5}"
OWN = "gpuHours: 10\nperiod: month\ngroup: lab"
NONE = "gpuHours: 0\nperiod: month\ngroup: lab"


def entries(group: str = GROUP, a: str = OWN, b: str = NONE, c: str = NONE) -> Json:
    found = budgets(a=a, b=b, c=c)
    found["data"]["_group.lab"] = group
    return found


def begun(town: Town, **texts: str) -> Town:
    town.begin(("configmaps", entries(**texts)), ("nodes", node("n1", 2)))
    return town


def passes_to(town: Town, ms: int) -> None:
    town.clock.turn(ms - town.clock())
    town.node_heard()
    town.tick()


def granted(town: Town) -> dict[str, int | None]:
    return {name: town.budget(name)["granted"] for name in ("a", "b", "c")}


def transfers(town: Town) -> list[tuple[str, int, int]]:
    """Namespace, amount, and the beginning of the period of each grant that was passed on."""
    found = town.get("/v1/grants").get_json()["grants"]
    return [(each["subject"], each["amount"], each["from"]) for each in found if each["kind"] == "transfer"]


def of_group(town: Town) -> Json:
    answer: Json = town.get("/v1/groups/lab/grants").get_json()
    return answer


def pass_on(town: Town, namespace: str, hours: str, key: str = "k") -> tuple[int, str]:
    body = {"namespace": namespace, "gpuHours": hours, "reason": "by hand"}
    answer = town.post("/v1/groups/lab/grants", body, **{"Idempotency-Key": key})
    return answer.status_code, answer.get_json().get("detail", "")


def audited(town: Town) -> list[Finding]:
    found: list[Finding] = []
    with town.store.reading() as connection:
        audit(connection, town.clock(), found.append)
    return found


def test_each_period_has_its_split_once(town: Town) -> None:
    begun(town)
    november = T0 - 19 * DAY - 10 * HOUR
    assert granted(town) == {"a": 40 * HOURS, "b": 41 * HOURS // 2, "c": 0}
    assert transfers(town) == [("a", 30 * HOURS, november), ("b", 41 * HOURS // 2, november)]

    passes_to(town, DECEMBER - 1)
    assert len(transfers(town)) == 2
    passes_to(town, DECEMBER)
    town.resume()
    passes_to(town, DECEMBER + HOUR)

    assert granted(town) == {"a": 40 * HOURS, "b": 41 * HOURS // 2, "c": 0}
    assert transfers(town)[2:] == [("a", 30 * HOURS, DECEMBER), ("b", 41 * HOURS // 2, DECEMBER)]
    assert (of_group(town)["passedOn"], of_group(town)["left"]) == (101 * HOURS // 2, 99 * HOURS // 2)
    assert audited(town) == []


def test_nothing_is_passed_on_before_the_first_tick_of_a_period_which_splits(town: Town) -> None:
    begun(town)
    town.clock.turn(DECEMBER - town.clock())

    assert pass_on(town, "c", "1") == (503, "the settler has not written the accounts yet: ask again")
    town.tick()
    assert granted(town) == {"a": 40 * HOURS, "b": 41 * HOURS // 2, "c": 0}
    assert (of_group(town)["passedOn"], of_group(town)["left"]) == (101 * HOURS // 2, 99 * HOURS // 2)
    assert pass_on(town, "c", "49.6") == (
        409,
        "100 GPU-hours were granted to group lab, and 50.5 of them are passed on: 49.5 are left",
    )
    assert pass_on(town, "c", "49.5")[0] == 200
    town.tick()
    assert of_group(town)["left"] == 0
    assert audited(town) == []


def test_a_changed_split_counts_from_the_next_period_on(town: Town) -> None:
    begun(town)
    changed = "gpuHours: 100\nperiod: month\nsplit: {a: 1, c: 99}"
    town.change("configmaps", entries(changed))
    passes_to(town, town.clock() + HOUR)
    assert granted(town) == {"a": 40 * HOURS, "b": 41 * HOURS // 2, "c": 0}

    passes_to(town, DECEMBER)

    assert granted(town) == {"a": 11 * HOURS, "b": 0, "c": 99 * HOURS}
    passes_to(town, DECEMBER + HOUR)
    town.change("configmaps", entries("gpuHours: 100\nperiod: month"))
    passes_to(town, JANUARY)
    assert granted(town) == {"a": 10 * HOURS, "b": 0, "c": 0}
    assert audited(town) == []


def test_a_group_that_has_less_than_its_parts_cuts_each_alike(town: Town) -> None:
    begun(town, group="gpuHours: 100\nperiod: month")
    town.change("configmaps", entries("gpuHours: 100\nperiod: month\nsplit: {a: 70, b: 30}"))
    assert transfers(town) == []  # the period had begun without it
    passes_to(town, DECEMBER - 1)
    # read in the first tick of December: of the split that the month began with, only 33 hours are there
    town.hear("configmaps", entries("gpuHours: 33\nperiod: month"))
    passes_to(town, DECEMBER + SECOND)

    assert [each[:2] for each in transfers(town)] == [("a", 231 * HOURS // 10), ("b", 99 * HOURS // 10)]
    assert of_group(town)["left"] == 0
    assert audited(town) == []


@ON_BOTH
def test_who_has_another_period_or_no_limit_or_is_in_no_group_gets_no_part(town: Town) -> None:
    split_ = "gpuHours: 100\nperiod: month\nsplit: {a: 30, b: 20, c: 10}"
    week, free = "gpuHours: 1\nperiod: week\ngroup: lab", "gpuHours: unlimited\ngroup: lab"
    begun(town, group=split_, a=week, b=free, c="gpuHours: 1\nperiod: month")

    passes_to(town, DECEMBER)

    assert (transfers(town), granted(town)) == ([], {"a": HOURS, "b": None, "c": HOURS})
    assert of_group(town)["left"] == 100 * HOURS  # nothing is kept back for them
    assert [each["problem"] for each in of_group(town)["split"]] == [
        "its period is week, and the group's is month",
        "its own budget has no limit",
        "it is not in the group",
    ]
    assert GROUP_GRANTS.table(of_group(town), 0)["notes"] == [
        "The split of _group.lab gives a nothing of its 30.00 GPU-hours: its period is week, and the group's"
        " is month.",
        "The split of _group.lab gives b nothing of its 20.00 GPU-hours: its own budget has no limit.",
        "The split of _group.lab gives c nothing of its 10.00 GPU-hours: it is not in the group.",
    ]


def test_who_changes_groups_keeps_its_part_and_gets_no_second_one_in_the_period(town: Town) -> None:
    begun(town)
    moved = entries(a="gpuHours: 10\nperiod: month\ngroup: pool")
    moved["data"]["_group.pool"] = "gpuHours: 60\nperiod: month\nsplit: {a: 60}"
    town.change("configmaps", moved)
    assert granted(town)["a"] == 40 * HOURS

    passes_to(town, DECEMBER)

    assert granted(town)["a"] == 70 * HOURS
    assert audited(town) == []


def test_how_a_part_adds_to_the_own_budget_is_said_by_budget_grants_and_explain(town: Town) -> None:
    begun(town)
    town.change("pods", gpu_pod("p", namespace="a", started_ms=T0))

    raw = town.budget("a")

    assert raw["received"] == {
        **{"amount": 30 * HOURS, "gpuHours": "30", "eachPeriod": 30 * HOURS, "eachPeriodGpuHours": "30"},
    }
    assert (town.budget("c")["received"], town.budget("_group.lab")["received"]) == (None, None)
    said = (
        "a has 40.00 GPU-hours of this period: 10.00 by its own budget and grants, and 30.00 that its group"
        " passed on beside them; the split of its group passes 30.00 on at the start of each period; what it"
        " uses counts in its group's budget too"
    )
    assert BUDGETS.table({"budgets": [raw, town.budget("c")], "groups": [], "silentSince": None}, 0)[
        "notes"
    ] == [f"{said}."]
    assert town.get("/v1/explain/a/p").get_json()["received"] == said
    assert GROUP_GRANTS.table(of_group(town), 0)["notes"] == [
        "Anew in each period, by the split of _group.lab, in GPU-hours: a 30.00, b 20.50. A part adds to the"
        " namespace's own gpuHours, and its use counts in both budgets."
    ]


@pytest.mark.parametrize("hours", ["9.5", "10.5"])
def test_what_the_group_cannot_pay_the_own_part_does_not_pay_either(town: Town, hours: str) -> None:
    """The use of a namespace with 10 hours of its own in a group that has 10 for all of them."""
    begun(town, group="gpuHours: 10\nperiod: month\nsplit: {a: 10}")
    pod = gpu_pod("p", namespace="a", started_ms=T0, card=0)
    town.change("pods", pod)
    town.clock.turn(int(float(hours) * HOUR))
    town.node_heard()
    town.tick()

    assert town.budget("a")["granted"] == 20 * HOURS
    assert town.budget("a")["remaining"] > 0
    assert town.standing("a") == ("IN_BUDGET" if hours == "9.5" else "OVER_BUDGET")
