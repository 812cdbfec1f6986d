"""Namespaces with `placement: off`: pods that admission left to another scheduler are charged by their spec,
reserve, and are evicted as others are; what only Bursar's scheduler does is said to have no effect."""

from typing import Any

import pytest

from tests.timekeeper.ledger.test_metered import NODES, holding
from tests.timekeeper.ledger.test_simulate_api import Planner, planner, pod
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.accounts.exhaustion.evictions import BudgetEvictionMemory, due
from timekeeper.accounts.exhaustion.terms import terms_of

ONE_DATABASE = (
    "which terms and views follow; the histories of test_machine.py charge such pods on both databases"
)
__all__ = ["planner"]  # a fixture

CARD = "nvidia.com/gpu"
OFF = "gpuHours: {hours}\nperiod: month\nplacement: off\n"


def left(limits: Json, node: str = "whole", name: str = "p", **annotations: str) -> Json:
    """A pod that admission governed and left to the default scheduler, which bound it at T0."""
    return holding(limits, node, name, **{"bursar.dev/standing": "IN_BUDGET", **annotations})


def begun(town: Town, *pods: Json, hours: str = "100", more: str = "", settings: str = "") -> None:
    """The nodes of an ordinary cluster, these pods, and team-a without Bursar's scheduler."""
    entry = OFF.format(hours=hours) + more
    town.begin(
        *(("nodes", raw) for raw in NODES),
        ("configmaps", budgets(team_a=entry, _settings=settings)),
        *(("pods", raw) for raw in pods),
    )


def sessions(town: Town) -> Json:
    """Name -> rate, models and doubt."""
    found = town.settler.ledger.sessions.values()
    return {each.name: (each.rate_milli, each.models, each.doubt or "") for each in found}


@pytest.mark.parametrize(
    ("raw", "rate", "models", "doubt"),
    [
        (left({CARD: "2"}), 2_000, "NVIDIA-A100-SXM4-40GB", ""),
        (left({CARD: "1"}, "shared"), 250, "Tesla-T4", ""),
        (left({CARD: "1"}, "single"), 286, "NVIDIA-A100-SXM4-40GB", ""),
        (left({CARD: "1"}, "plain"), 1_000, "", "nothing describes its node's cards"),
        (left({CARD: "1"}, "whole", **{"bursar.dev/gpu-models": "H100"}), 1_000, "NVIDIA-A100-SXM4-40GB", ""),
    ],
)
def test_a_pod_is_charged_by_its_spec_with_its_model_and_its_doubt(
    town: Town, raw: Json, rate: int, models: str, doubt: str
) -> None:
    begun(town, raw)

    (found,) = sessions(town).values()

    assert found[:2] == (rate, models)
    assert found[2].startswith(doubt)
    assert bool(found[2]) == bool(doubt)


def test_its_standing_declared_time_and_charge_count_as_those_of_any_governed_pod(town: Town) -> None:
    declared = {"bursar.dev/held": "budget", "bursar.dev/declared": "3600"}
    demoted = left({CARD: "1"}, name="demoted", **{"bursar.dev/standing": "OVER_BUDGET"})
    begun(town, left({CARD: "1"}), left({CARD: "1"}, name="long", **declared), demoted)

    found = {each.name: each for each in town.settler.ledger.sessions.values()}

    assert {name: each.admitted_in_budget for name, each in found.items()} == {
        "p": True,
        "long": True,
        "demoted": False,
    }
    assert found["long"].reserves_until_ms == T0 + HOUR + 30 * SECOND
    assert found["p"].reserves_until_ms is None
    lookahead, whole = 10 * MINUTE, HOUR + 30 * SECOND
    assert town.budget()["reserved"] == GPU * (lookahead + whole)


def test_a_flip_changes_no_session_and_charges_nothing_twice(town: Town) -> None:
    """Each pod has the terms of its creation, also where its session opens after the flip."""
    town.begin(("nodes", node(cards=2)), *(("nodes", raw) for raw in NODES))
    entry = "gpuHours: 100\nperiod: month\nplacement: "
    placed, unplaced = gpu_pod("placed", percent=50, started_ms=T0), left({CARD: "1"}, "shared", "unplaced")
    late = gpu_pod("late", percent=50, started_ms=T0, card=1), left({CARD: "2"}, "shared", "later")
    for number, (switch, pods) in enumerate(
        [("on", [placed]), ("off", [unplaced, late[0]]), ("on", [late[1]]), ("off", []), ("on", [])]
    ):
        town.hear("configmaps", budgets(team_a=entry + switch))
        for raw in pods:
            town.hear("pods", raw)
        town.tick()
        town.clock.turn(MINUTE)
        for name in ("n1", "shared"):
            town.node_heard(name)
        town.tick()
        town.resume() if number == 2 else None

    assert {name: rate for name, (rate, _, _) in sessions(town).items()} == {
        **{"placed": 500, "late": 500},
        **{"unplaced": 250, "later": 500},
    }
    assert town.charged() == 5 * MINUTE * (500 + 500 + 250 + 500)


def test_a_pod_of_bursars_scheduler_without_a_placement_keeps_its_doubt(town: Town) -> None:
    raw = left({"bursar.dev/gpu-percent": "100"})
    raw["spec"]["schedulerName"] = "bursar-scheduler"
    begun(town, raw)

    assert sessions(town)["p"][2] == "the pod has no placement"


def served(town: Town) -> Json:
    """What webhooks and extenders read of team-a."""
    document = town.get("/v1/standings").get_json()
    return dict(document["namespaces"].get("team-a", document["default"]))


@pytest.mark.parametrize(
    ("entries", "placement", "on_exhausted"),
    [
        ({"team_a": "gpuHours: 1\nonExhausted: reclaim\nplacement: off"}, "off", "deprioritize"),
        ({"team_a": "gpuHours: 1\nonExhausted: evict\nplacement: off"}, "off", "evict"),
        (
            {"team_a": "gpuHours: 1\nonExhausted: reclaim", "_settings": "placement: off"},
            "off",
            "deprioritize",
        ),
        (
            {"team_a": "gpuHours: 1\nonExhausted: reclaim\nplacement: on", "_settings": "placement: off"},
            "on",
            "reclaim",
        ),
        ({"_defaults": "gpuHours: 1\nonExhausted: reclaim\nplacement: off"}, "off", "deprioritize"),
        ({"team_a": "gpuHours: 1\nonExhausted: reclaim"}, "on", "reclaim"),
    ],
)
def test_the_table_says_where_pods_are_placed_and_nobody_reclaims_elsewhere(
    town: Town, entries: dict[str, str], placement: str, on_exhausted: str
) -> None:
    town.begin(("configmaps", budgets(**entries)))

    entry = served(town)

    assert (entry.get("placement", "on"), entry["onExhausted"]) == (placement, on_exhausted)
    answer = town.budget()
    says = any("onExhausted: reclaim acts as deprioritize" in each for each in answer["warnings"])
    assert (answer["placement"], says) == (placement, on_exhausted == "deprioritize")


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ({"team_a": "gpuHours: 1"}, None),
        ({"team_a": "gpuHours: 1\nsidecar: off"}, "off"),
        ({"team_a": "gpuHours: 1\nsidecar: on", "_settings": "sidecar: off"}, "on"),
        ({"_defaults": "gpuHours: 1\nsidecar: off"}, "off"),
        ({"team_a": "gpuHours: 1\nsidecar: on\nplacement: off"}, "on"),
    ],
)
def test_the_table_says_whether_an_entry_wants_sidecars(
    town: Town, entries: dict[str, str], word: str | None
) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(**entries)))

    assert served(town).get("sidecar") == word
    off = "placement: off" in entries.get("team_a", "")
    assert any("sidecar: it has no effect" in each for each in town.budget()["warnings"]) == off


@pytest.mark.parametrize(
    ("entries", "takes"),
    [
        ({"team_a": "gpuHours: 1\nwholeCards: bursar"}, True),
        ({"team_a": "gpuHours: 1"}, False),
        ({"team_a": "gpuHours: 1", "_settings": "wholeCards: bursar"}, True),
        ({"team_a": "gpuHours: 1\nwholeCards: plugin", "_settings": "wholeCards: bursar"}, False),
        ({"_settings": "wholeCards: bursar"}, True),
        ({"team_a": "gpuHours: 1\nwholeCards: bursar\nplacement: off"}, False),
    ],
)
def test_the_table_says_whose_whole_cards_pods_get(town: Town, entries: dict[str, str], takes: bool) -> None:
    town.begin(("configmaps", budgets(**entries)))

    assert served(town).get("wholeCards", "plugin") == ("bursar" if takes else "plugin")
    off = "placement: off" in entries.get("team_a", "")
    assert any("wholeCards: it has no effect" in each for each in town.budget()["warnings"]) == off


def test_the_author_of_an_entry_hears_what_has_no_effect_also_when_the_cluster_changes(town: Town) -> None:
    def said() -> list[tuple[str, str]]:
        found = [(each.reason, each.message.partition(":")[0], each.message) for each in town.notices]
        town.notices.clear()
        return [(key, text) for reason, key, text in found if reason == "IneffectiveField"]

    reclaims = "team-a: onExhausted: reclaim acts as deprioritize"
    town.begin(("configmaps", budgets(team_a="gpuHours: 1\nonExhausted: reclaim", _settings="idle: reclaim")))
    assert said() == []

    town.hear(
        "configmaps",
        budgets(team_a="gpuHours: 1\nonExhausted: reclaim", _settings="idle: reclaim\nplacement: off"),
    )
    town.tick()
    one, other = said()
    assert one[1].startswith(reclaims)
    assert other[1].startswith("_settings: idle: reclaim has no effect")

    town.hear(
        "configmaps",
        budgets(
            team_a="gpuHours: 1\nonExhausted: reclaim",
            team_b="gpuHours: 1\npolicy: spread\nplacement: off",
            _settings="idle: reclaim\nplacement: off",
        ),
    )
    town.tick()
    assert said() == [("team-b", "team-b: policy: it has no effect where placement is off")]


def test_idle_pods_are_evicted_there_and_never_marked_to_be_reclaimed(town: Town) -> None:
    begun(town, settings="idle: reclaim")
    history = town.settler.ledger.history

    assert history.idle_terms("team-a", T0) is None
    terms = history.idle_terms("team-b", T0)
    assert terms is not None
    assert terms.action == "reclaim"
    said = {name: town.get(f"/v1/budgets/{name}").get_json()["idle"] for name in ("team-a", "team-b")}
    assert said == {"team-a": None, "team-b": "reclaim"}
    begun(town, more="idle: evict\n")
    assert town.settler.ledger.history.idle_terms("team-a", T0 + 1) is not None


def test_the_event_on_its_pods_says_what_reclaim_comes_to(town: Town) -> None:
    begun(town, left({CARD: "2"}), hours="1", more="onExhausted: reclaim\n")
    town.clock.turn(HOUR)
    town.node_heard("whole")
    town.tick()

    (notice,) = [each for each in town.pod_notices if each.reason == "OverBudget"]

    assert "Its new pods get lower priority" in notice.message
    assert "evicted" not in notice.message


def test_its_pods_leave_when_the_budget_is_spent(town: Town) -> None:
    begun(town, left({CARD: "2"}), hours="1", more="onExhausted: evict\nevictGrace: 0s\n")
    for _ in range(2):
        town.clock.turn(HOUR)
        town.node_heard("whole")
        town.tick()
    settler, now_ms = town.settler, town.clock()
    statement = settler.ledger.statement_cache.statements.namespaces["team-a"]  # type: ignore[union-attr]
    terms = terms_of("team-a", statement, settler.ledger.history.settings(now_ms), now_ms)
    assert terms is not None
    exhausted = {"team-a": terms}

    (change,) = due(settler.cluster.pods.values(), exhausted, BudgetEvictionMemory(0), now_ms, HOUR).changes
    town.hear("pods", left({CARD: "2"}, **{"bursar.dev/evict-after": "2026-11-20T12:00:00Z"}))
    town.tick()
    pods = settler.cluster.pods.values()
    (eviction,) = due(pods, exhausted, BudgetEvictionMemory(0), now_ms, HOUR).evictions

    assert (change.pod.name, eviction.pod.name, terms.is_spent) == ("p", "p", True)


NOT_KNOWN = "placement is off here: a pod's own scheduler chooses its node and cards"


def test_explain_says_what_is_not_known(town: Town) -> None:
    waiting = left({CARD: "1"}, "", "waits")
    waiting["status"] = {"phase": "Pending"}
    begun(town, waiting, left({CARD: "1"}))

    def waits_for(name: str) -> list[str]:
        found: list[str] = town.get(f"/v1/explain/team-a/{name}").get_json()["waitsFor"]
        return found

    assert waits_for("waits")[-1].startswith(NOT_KNOWN)
    assert waits_for("p") == []
    town.hear("configmaps", budgets(team_a="gpuHours: 100\nperiod: month"))
    town.tick()
    assert waits_for("waits") == []


def test_a_simulation_says_what_is_not_known_and_asks_no_extender(planner: Planner) -> None:
    whole = pod("one")
    whole["spec"]["containers"][0]["resources"] = {"limits": {CARD: "1"}}
    placed: Any = planner.asks(whole)
    planner.budget_is("gpuHours: 100\nperiod: month\nplacement: off")

    answer: Any = planner.asks(whole)

    (one,), (share,) = answer["pods"], planner.asks(pod("share"))["pods"]
    assert (one["outcome"], one["standing"]) == ("unknown", "IN_BUDGET")
    assert (share["outcome"], "placement is off here" in share["refusal"]) == ("refused", True)
    assert answer["note"].startswith(NOT_KNOWN)
    assert answer["note"].endswith("So neither place, cost nor forecast of these pods is known")
    assert placed["note"] == ""


@pytest.mark.parametrize(
    ("entries", "finds"),
    [
        ({"team_a": "gpuHours: 1\ngangs: auto"}, True),
        ({"team_a": "gpuHours: 1"}, False),
        ({"_defaults": "gpuHours: 1\ngangs: auto"}, True),
        ({"team_a": "gpuHours: 1\ngangs: auto\nplacement: off"}, False),
    ],
)
def test_the_table_says_where_gangs_are_found(town: Town, entries: dict[str, str], finds: bool) -> None:
    town.begin(("configmaps", budgets(**entries)))

    assert served(town).get("gangs") == ("auto" if finds else None)
