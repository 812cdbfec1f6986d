"""What pods that `protect` of a budget entry selects use, in answers, on both databases."""

import pytest

from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.store.retention import roll_up_all

SERVING = {"tier": "serving"}
HOURS = "gpuHours: 1\nperiod: month\nonExhausted: evict\nprotect: {labels: {tier: serving}, hours: 4}"
CARDS = (
    "gpuHours: 1\nperiod: month\nonExhausted: deny\nprotect: {owners: [Deployment, StatefulSet], cards: 1.5}"
)


def serving(name: str, card: int = 0, **fields: object) -> Json:
    return gpu_pod(name, card=card, started_ms=T0, labels=SERVING, **fields)  # type: ignore[arg-type]


@pytest.fixture
def home(town: Town) -> Town:
    """A protected pod on half a card, and another on a whole one."""
    town.begin(
        ("nodes", node(cards=4)),
        ("configmaps", budgets(_settings="lookahead: 10m", team_a=HOURS)),
        ("pods", serving("web", percent=50)),
        ("pods", gpu_pod("train", card=1, started_ms=T0)),
    )
    return town


def test_a_budget_says_what_it_protects_and_what_that_uses(home: Town) -> None:
    home.advance(2 * HOUR)

    assert home.budget()["protect"] == {
        "labels": SERVING,
        "owners": [],
        "cardsMilli": None,
        "amount": 4 * GPU * HOUR,
        "used": GPU * HOUR,
        "gpuHours": "1",
        "rateMilli": GPU // 2,
        "left": 3 * GPU * HOUR - GPU // 2 * 10 * MINUTE,
        "pods": 1,
    }
    assert home.budget("team-b")["protect"] is None
    assert home.get("/v1/budgets").get_json()["budgets"][0]["protect"] == home.budget()["protect"]


def test_a_forecast_says_when_the_floor_is_used_up_at_the_present_rate(home: Town) -> None:
    home.advance(2 * HOUR)

    (forecast,) = home.get("/v1/forecast?namespace=team-a").get_json()["forecasts"]

    assert forecast["protected"] == {"rateMilli": GPU // 2, "usedUpAt": T0 + 8 * HOUR}


def test_explain_says_what_is_protected_and_that_this_pod_is(home: Town) -> None:
    home.advance(2 * HOUR)

    said = home.get("/v1/explain/team-a/web").get_json()["protected"]
    others = home.get("/v1/explain/team-a/train").get_json()["protected"]

    assert said == [
        "team-a protects pods with tier=serving, up to 4.00 GPU-hours a period: once the budget is spent, "
        "they keep class and cards; they have used 1 GPU-hours in this period",
        "protected now: web",
    ]
    assert others == said[:1]
    assert home.get("/v1/explain/team-b/web").get_json()["protected"] == []


def test_what_was_used_counts_from_the_periods_beginning_by_the_labels_of_the_binding(home: Town) -> None:
    """An ended pod counts, one of an earlier period does not; a later label neither adds nor takes away."""
    home.hear("pods", serving("web", percent=50, ended_ms=T0 + HOUR))
    home.hear("pods", gpu_pod("train", card=1, started_ms=T0, labels=SERVING))
    home.advance(2 * HOUR)
    assert home.budget()["protect"]["used"] == GPU // 2 * HOUR
    assert home.budget()["protect"]["rateMilli"] == 0
    assert home.settler.ledger.protected["team-a"].uids == frozenset()

    home.hear("pods", gpu_pod("train", card=1, started_ms=T0, ended_ms=T0 + 2 * HOUR))
    home.advance(3 * HOUR)
    assert roll_up_all(home.store, home.clock, HOUR).sessions == 1
    home.restart()
    home.advance(0)
    assert home.budget()["protect"]["used"] == GPU // 2 * HOUR
    assert home.settler.ledger.protected["team-a"].used == GPU // 2 * HOUR

    home.advance(30 * DAY)
    assert home.budget()["protect"]["used"] == 0


def table(town: Town) -> Json:
    """Of the namespace's entry, what concerns protected pods."""
    entry: Json = town.get("/v1/standings").get_json()["namespaces"]["team-a"]
    protect = entry["protect"]
    return {"standing": entry["standing"], "left": protect["left"], "uids": protect["uids"]}


def test_the_table_names_the_protected_pods_while_the_namespace_is_over_budget(town: Town) -> None:
    """A controller selects. The older pod of a card has room, the younger one has not."""
    old, young = (
        gpu_pod(name, card=card, started_ms=T0 - age_ms)
        for name, card, age_ms in (("old", 0, MINUTE), ("young", 1, 0))
    )
    for each in (old, young):
        each["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "web", "controller": True}]
    town.begin(("nodes", node(cards=4)), ("configmaps", budgets(team_a=CARDS)))
    for each in (young, old, gpu_pod("train", card=2, started_ms=T0)):
        town.hear("pods", each)
    town.advance(HOUR)

    assert table(town) == {"standing": "OVER_BUDGET", "left": 0, "uids": ["uid-old"]}

    town.hear("pods", old, deleted=True)
    town.advance(MINUTE)
    after = {"standing": "OVER_BUDGET", "left": 500, "uids": ["uid-young"]}
    assert table(town) == after
    town.restart()
    town.advance(MINUTE)
    assert table(town) == after

    town.change("configmaps", budgets(team_a=CARDS.replace("gpuHours: 1", "gpuHours: 99")))
    town.advance(MINUTE)
    assert table(town) == {"standing": "IN_BUDGET", "left": 500, "uids": []}


def test_it_protects_also_where_the_groups_budget_is_spent_and_counts_in_its_period(town: Town) -> None:
    own = "gpuHours: unlimited\ngroup: all\nprotect: {labels: {tier: serving}, hours: 0.4}"
    town.begin(
        ("nodes", node(cards=4)),
        (
            "configmaps",
            budgets(team_a=own, **{"_group.all": "gpuHours: 0.1\nperiod: hour\nonExhausted: deny"}),
        ),
        ("pods", serving("web", percent=50)),
    )
    town.advance(30 * MINUTE)
    spent = table(town)
    town.advance(45 * MINUTE)
    later = table(town)
    town.advance(30 * MINUTE)

    assert (spent["standing"], spent["uids"]) == ("OVER_BUDGET", ["uid-web"])
    assert later["uids"] == ["uid-web"]
    assert town.budget()["protect"]["used"] == GPU // 2 * 45 * MINUTE
    assert (table(town)["standing"], table(town)["uids"]) == ("OVER_BUDGET", [])


def test_what_is_posted_of_a_pod_that_runs_on_counts_once(home: Town) -> None:
    """Its node was silent, so what it used until then was posted; then the node is heard again."""
    home.advance(HOUR)
    home.advance(3 * HOUR, heard=False)
    posted = home.postings("uid-web")
    home.advance(HOUR)

    assert posted == [(T0, T0 + HOUR, GPU // 2, "settled")]
    assert home.budget()["protect"]["used"] == GPU // 2 * 5 * HOUR
    assert home.settler.ledger.protected["team-a"].used == GPU // 2 * 5 * HOUR
