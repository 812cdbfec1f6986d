"""Standings: what is left, what is reserved, and the document that webhooks poll."""

import gzip

import pytest

from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
)
from tests.worlds import Json, container
from timekeeper.core.budgets.policy import GPU_HOUR

BOTH_DATABASES = "open sums are read by another statement on each database"

ENTRY = "gpuHours: 1\nperiod: month\nonExhausted: deprioritize"


@pytest.fixture
def home(town: Town) -> Town:
    """team-a has one GPU-hour a month; two cards of 16000 MiB."""
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=ENTRY)))
    return town


def reserved(town: Town, namespace: str = "team-a") -> int:
    town.tick()
    return int(town.get(f"/v1/budgets/{namespace}").get_json()["reserved"])


def test_a_live_session_admitted_in_budget_reserves_its_lookahead(home: Town) -> None:
    home.hear("pods", gpu_pod(percent=50))

    assert reserved(home) == GPU // 2 * 10 * MINUTE


def test_a_session_admitted_over_budget_reserves_nothing(home: Town) -> None:
    home.hear("pods", gpu_pod(standing="OVER_BUDGET"))

    assert reserved(home) == 0


def test_how_a_pod_was_admitted_is_fixed_at_its_opening(home: Town) -> None:
    home.change("pods", gpu_pod(percent=50))
    home.hear("pods", gpu_pod(percent=50, standing="OVER_BUDGET"))

    assert reserved(home) == GPU // 2 * 10 * MINUTE


@pytest.mark.parametrize(
    ("unknown", "standing", "share"),
    [
        ("inBudget", "UNKNOWN", 1),
        ("overBudget", "UNKNOWN", 0),
        ("inBudget", "UNLIMITED", 1),
        ("inBudget", "", 0),
        ("inBudget", "FORGED", 0),
    ],
)
def test_an_unknown_standing_reserves_as_the_settings_treat_it(
    home: Town, unknown: str, standing: str, share: int
) -> None:
    home.change("configmaps", budgets(team_a=ENTRY, _settings=f"unknownStanding: {unknown}"))
    home.hear("pods", gpu_pod(percent=10, standing=standing))

    assert reserved(home) == share * GPU // 10 * 10 * MINUTE


def test_nothing_is_reserved_beyond_the_period(home: Town) -> None:
    home.hear("configmaps", budgets(team_a="gpuHours: 1\nperiod: hour"))
    home.clock.at_ms = T0 + 59 * MINUTE
    home.hear("pods", gpu_pod(percent=50, bound_ms=home.clock()))

    assert reserved(home) == GPU // 2 * MINUTE


def test_an_ended_session_reserves_nothing(home: Town) -> None:
    home.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + SECOND))

    assert reserved(home) == 0


def test_an_admitted_pod_without_a_node_reserves_at_the_highest_rate_it_may_get(home: Town) -> None:
    settings = "weights: {H100: 3}"
    home.hear("configmaps", budgets(team_a=ENTRY, _settings=settings))
    home.hear("nodes", node("n2", model="H100"))
    home.hear("pods", gpu_pod("waits", percent=10, node=""))

    assert reserved(home) == 300 * 10 * MINUTE


def test_the_models_a_pod_allows_bound_what_it_reserves(home: Town) -> None:
    home.hear("configmaps", budgets(team_a=ENTRY, _settings="weights: {H100: 3}"))
    home.hear("nodes", node("n2", model="H100"))
    only = {"bursar.dev/gpu-models": "A100"}
    home.hear("pods", gpu_pod("waits", percent=10, node="", annotations=only))

    assert reserved(home) == 100 * 10 * MINUTE


def test_a_named_card_bounds_what_a_pod_reserves(home: Town) -> None:
    home.hear("configmaps", budgets(team_a=ENTRY, _settings="weights: {H100: 3}"))
    home.hear("nodes", node("n2", cards=4, model="H100"))
    only = {"bursar.dev/gpu-uuids": "GPU-3"}
    home.hear("pods", gpu_pod("waits", percent=10, node="", annotations=only))

    assert reserved(home) == 300 * 10 * MINUTE


def test_a_pod_that_waits_long_no_longer_reserves(home: Town) -> None:
    home.hear("pods", gpu_pod("waits", percent=10, node=""))
    home.clock.turn(10 * MINUTE - 1)
    assert reserved(home) == 100 * 10 * MINUTE

    home.clock.turn(1)

    assert reserved(home) == 0


def test_pods_that_no_cluster_could_place_reserve_no_more_than_all_cards(home: Town) -> None:
    for number in range(9):
        home.hear("pods", gpu_pod(f"waits-{number}", percent=100, node=""))

    assert reserved(home) == 2 * GPU * 10 * MINUTE


def test_without_any_card_a_waiting_pod_reserves_nothing(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=ENTRY)))
    town.hear("pods", gpu_pod("waits", node=""))

    assert reserved(town) == 0


def test_containers_that_run_one_after_the_other_reserve_the_most_of_them(home: Town) -> None:
    waits = gpu_pod("waits", node="", percent=20)
    waits["spec"]["initContainers"] = [container("prepare", gpu_percent="50")]
    waits["spec"]["containers"].append(container("second", gpu_percent="10"))
    home.hear("pods", waits)

    assert reserved(home) == 500 * 10 * MINUTE


def test_a_waiting_pod_that_ends_or_goes_reserves_no_more(home: Town) -> None:
    first, second = gpu_pod("one", node="", percent=10), gpu_pod("two", node="", percent=20)
    home.hear("pods", first)
    home.hear("pods", second)
    assert reserved(home) == 300 * 10 * MINUTE

    home.hear("pods", first, deleted=True)
    home.hear("pods", gpu_pod("two", node="", percent=20, phase="Failed"))

    assert reserved(home) == 0


def test_another_namespaces_pods_reserve_nothing_here(home: Town) -> None:
    home.hear("pods", gpu_pod("theirs", namespace="team-b", node=""))
    home.hear("pods", gpu_pod("also-theirs", namespace="team-b"))

    assert reserved(home) == 0


def test_a_standing_flips_by_time_alone(home: Town) -> None:
    """Nothing happens but that the node is heard: the tick looks anew."""
    home.hear("configmaps", budgets(team_a=ENTRY, _settings="lookahead: 0s"))
    home.hear("pods", gpu_pod(started_ms=T0))
    home.advance(HOUR - SECOND)
    assert home.standing() == "IN_BUDGET"

    home.advance(SECOND)

    assert home.standing() == "OVER_BUDGET"
    budget = home.budget()
    assert budget["posted"] + budget["pending"] == budget["granted"] == GPU_HOUR


def test_the_next_period_starts_in_budget_without_an_event(home: Town) -> None:
    home.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))
    assert home.standing() == "OVER_BUDGET"

    home.advance(12 * DAY, heard=False)

    assert home.standing() == "IN_BUDGET"


def test_the_document_stays_byte_for_byte_while_no_reader_would_act_differently(home: Town) -> None:
    home.change("pods", gpu_pod(started_ms=T0))
    first = home.get("/v1/standings")
    home.advance(SECOND)
    second = home.get("/v1/standings")

    assert home.budget()["pending"] == GPU * SECOND
    assert (second.headers["ETag"], second.data) == (first.headers["ETag"], first.data)
    assert first.headers["ETag"] == f'"{first.get_json()["revision"]}"'


def test_a_document_that_stays_is_made_anew_so_that_its_moment_is_never_far_behind(home: Town) -> None:
    for _ in range(60):
        home.advance(10 * SECOND, heard=False)
        assert home.clock() - home.get("/v1/standings").get_json()["generated"] < 5 * MINUTE


def test_who_has_the_document_is_answered_304(home: Town) -> None:
    tag = home.get("/v1/standings").headers["ETag"]

    answer = home.get("/v1/standings", **{"If-None-Match": tag})

    assert (answer.status_code, answer.data, answer.headers["ETag"]) == (304, b"", tag)


def test_who_takes_gzip_gets_the_same_document_packed_under_an_etag_of_its_own(home: Town) -> None:
    plain = home.get("/v1/standings")

    packed = home.get("/v1/standings", **{"Accept-Encoding": "gzip"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.data) == plain.data
    assert packed.headers["ETag"] != plain.headers["ETag"]
    known = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]}
    assert home.get("/v1/standings", **known).status_code == 304
    known["If-None-Match"] = plain.headers["ETag"]
    assert home.get("/v1/standings", **known).status_code == 200


def test_a_changed_standing_is_another_document(home: Town) -> None:
    tag = home.get("/v1/standings").headers["ETag"]
    home.clock.turn(SECOND)
    home.change("configmaps", budgets(team_a="gpuHours: 0\nperiod: month"))

    answer = home.get("/v1/standings", **{"If-None-Match": tag})

    assert answer.status_code == 200
    assert answer.get_json()["namespaces"]["team-a"] == {
        "standing": "OVER_BUDGET",
        "onExhausted": "deprioritize",
        "priorityClass": "gpu-lower-priority",
        "ratio": 1_000_000,
        "warnAt": None,
        "remaining": 0,
        "spent": True,
        "validUntil": T0 + 10 * DAY + 14 * HOUR,
        "mode": "enforce",
        "rules": {},
        "exempt": [],
        "policy": "",
        "group": "",
    }


def test_a_grant_is_spent_by_charges_and_not_by_reservations(home: Town) -> None:
    home.hear("configmaps", budgets(team_a="gpuHours: 0.25\nperiod: month\nonExhausted: deny"))
    home.hear("pods", gpu_pod("waits-1", node=""))
    home.hear("pods", gpu_pod("waits-2", node=""))
    home.advance(SECOND, heard=False)

    def entry() -> tuple[str, str, bool]:
        said = home.get("/v1/standings").get_json()["namespaces"]["team-a"]
        return said["standing"], said["onExhausted"], said["spent"]

    assert entry() == ("OVER_BUDGET", "deny", False)

    home.hear("configmaps", budgets(team_a="gpuHours: 0\nperiod: month\nonExhausted: deny"))
    home.advance(SECOND, heard=False)

    assert entry() == ("OVER_BUDGET", "deny", True)


def test_the_grant_that_is_spent_is_that_of_a_budget_with_the_published_mode(home: Town) -> None:
    own, group = "gpuHours: 0.25\ngroup: pool\nonExhausted: deny", "gpuHours: 0\nonExhausted: deprioritize"
    home.hear("configmaps", budgets(**{"team_a": own, "_group.pool": group}))
    home.hear("pods", gpu_pod("waits-1", node=""))
    home.hear("pods", gpu_pod("waits-2", node=""))
    home.advance(SECOND, heard=False)

    said = home.get("/v1/standings").get_json()["namespaces"]["team-a"]

    assert (said["standing"], said["onExhausted"], said["spent"]) == ("OVER_BUDGET", "deny", False)


def test_the_remainder_is_reported_anew_when_it_has_moved_by_a_thousandth(home: Town) -> None:
    tag = home.get("/v1/standings").headers["ETag"]
    home.change("pods", gpu_pod("waits", percent=1, node=""))

    document = home.get("/v1/standings", **{"If-None-Match": tag}).get_json()

    assert document["namespaces"]["team-a"]["remaining"] == GPU_HOUR - 10 * 10 * MINUTE


def test_the_document_carries_the_classes_of_an_entry_with_their_values_of_now(home: Town) -> None:
    home.hear("priorityclasses", {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000})
    home.hear("priorityclasses", {"metadata": {"name": "gold"}, "value": 7})
    own = "gpuHours: 1\ngroup: lab\npriorityClasses: {overBudget: keep}"
    group = "gpuHours: unlimited\npriorityClasses: {inBudget: gold, overBudget: lead}"
    texts = {"team_a": own, "team_b": "gpuHours: 0\ngroup: lab", "_group.lab": group, "team_c": "gpuHours: 1"}
    home.clock.turn(SECOND)
    home.change("configmaps", budgets(**texts))

    def said(name: str) -> tuple[object, object]:
        entry = home.get("/v1/standings").get_json()["namespaces"][name]
        return entry["priorityClass"], entry.get("priorityClasses")

    gold = {"name": "gold", "value": 7, "preemptionPolicy": "PreemptLowerPriority"}
    lead: Json = {"name": "lead", "value": None, "preemptionPolicy": None}
    assert said("team-a") == ("gold", {"inBudget": gold, "overBudget": gold, "keep": True})
    assert said("team-b") == ("lead", {"inBudget": gold, "overBudget": lead})
    assert said("team-c") == ("gpu-default-priority", None)
    (of_users,) = home.get("/v1/standings").get_json()["settings"]["classes"]
    assert of_users == gold

    home.change("priorityclasses", {"metadata": {"name": "lead"}, "value": 3, "preemptionPolicy": "Never"})

    lead = {"name": "lead", "value": 3, "preemptionPolicy": "Never"}
    assert said("team-b") == ("lead", {"inBudget": gold, "overBudget": lead})


def test_the_document_carries_the_settings_and_the_classes_values(home: Town) -> None:
    gold = {"metadata": {"name": "gold"}, "value": 7, "preemptionPolicy": "Never"}
    home.hear("priorityclasses", gold)
    # Kubernetes takes the lowest of several defaults
    for name, value in (("everyday", 1000), ("night", 5)):
        home.hear("priorityclasses", {"metadata": {"name": name}, "value": value, "globalDefault": True})
    settings = (
        "priorityClasses: {inBudget: gold, overBudget: lead}\nmode: observe\nsidecar: off\n"
        "unknownAccelerators: meter\ndevices: {example.com/npu: NPU, example.com/nic: none}\n"
        "rules: {privileged: warn}\nexempt: [admins]"
    )
    home.clock.turn(SECOND)
    home.change("configmaps", budgets(_settings=settings))

    assert home.get("/v1/standings").get_json()["settings"] == {
        "mode": "observe",
        "rules": {"privileged": "warn"},
        "exempt": ["admins"],
        "schedulerName": "bursar-scheduler",
        "sidecar": False,
        "priorityClasses": {
            "inBudget": {"name": "gold", "value": 7, "preemptionPolicy": "Never"},
            "overBudget": {"name": "lead", "value": None, "preemptionPolicy": None},
            "clusterDefault": {"name": "night", "value": 5, "preemptionPolicy": "PreemptLowerPriority"},
        },
        "classes": [
            {"name": "everyday", "value": 1000, "preemptionPolicy": "PreemptLowerPriority"},
            {"name": "gold", "value": 7, "preemptionPolicy": "Never"},
            {"name": "night", "value": 5, "preemptionPolicy": "PreemptLowerPriority"},
        ],
        "unknownStanding": "inBudget",
        "maxGracePeriodMs": 600_000,
        "pdbGraceMs": 600_000,
        "lookaheadMs": 600_000,
        "policy": "fragmentation",
        "unknownAccelerators": "meter",
        "devices": {"example.com/npu": True, "example.com/nic": False},
    }


def test_the_document_carries_what_a_namespace_has_settled_for_itself(home: Town) -> None:
    home.clock.turn(SECOND)
    own = "gpuHours: 1\nmode: enforce\nrules: {host-pid: off}\nexempt: [ci]\nonExhausted: deny"
    home.change("configmaps", budgets(_settings="mode: observe", _defaults="gpuHours: 1", team_a=own))

    document = home.get("/v1/standings").get_json()
    fields = ("mode", "rules", "exempt", "onExhausted")
    assert [document["namespaces"]["team-a"][each] for each in fields] == [
        "enforce",
        {"host-pid": "off"},
        ["ci"],
        "deny",
    ]
    assert [document["default"][each] for each in fields] == ["observe", {}, [], "deprioritize"]


def test_a_class_that_is_deleted_loses_its_value(home: Town) -> None:
    gold = {"metadata": {"name": "gpu-default-priority"}, "value": 7}
    home.hear("priorityclasses", gold)
    home.change("priorityclasses", gold, deleted=True)

    classes = home.get("/v1/standings").get_json()["settings"]["priorityClasses"]
    assert classes["inBudget"] == {
        "name": "gpu-default-priority",
        "value": None,
        "preemptionPolicy": None,
    }


def test_outdated_standings_are_not_served(home: Town) -> None:
    home.clock.turn(61 * SECOND)

    answer = home.get("/v1/standings")

    assert answer.status_code == 503
    assert "made no decision recently" in answer.get_json()["detail"]


def test_before_the_first_decision_there_are_no_standings(town: Town) -> None:
    assert town.get("/v1/standings").status_code == 503


def test_a_settler_that_only_waits_keeps_nothing_up(home: Town) -> None:
    """Alive but deaf: the standings age, though its pulse is fresh."""
    home.start_anew()
    home.advance(61 * SECOND, heard=False)

    assert home.get("/v1/standings").status_code == 503


def test_a_restarted_settler_publishes_the_same_standing(home: Town) -> None:
    home.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))

    home.resume()

    assert home.standing() == "OVER_BUDGET"
