"""What a running extender posts for the live map: cards, who sits where, what waits, and why; its metrics."""

import copy

import pytest

from tests.scheduler_ext.reserving import held
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.worlds import Json, asking, bound, node, on, percent
from tests.worlds import card, limits_of


@pytest.fixture
def world(running: Stepped) -> Stepped:
    """Node a with a half-used card, node b empty, and one that is closed."""
    running.put_node(node("a"))
    running.put_node(node("b"))
    running.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))
    running.put_node(node("closed"))
    running.put_pod(bound(percent(10, "other"), "closed", None))
    return running


def samples(running: Stepped) -> dict[str, float]:
    """The values of the extender's metrics by name and labels, without the common prefix."""
    lines = running.client.get("/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("bursar_extender_"): float(value) for name, _, value in pairs}


# nodes


def test_the_map_shows_which_pod_holds_which_card(world: Stepped) -> None:
    nodes = world.posted()["nodes"]

    assert {name: node["closed"] for name, node in nodes.items()} == {
        "a": "",
        "b": "",
        "closed": "a GPU pod was bound to it without a placement",
    }
    assert nodes["a"]["cards"] == [
        {
            "uuid": "a-GPU-0",
            "index": 0,
            "model": "A100",
            "memory_mib": 16000,
            "healthy": True,
            "cordoned": False,
            "used_share_milli": 500,
            "used_memory_mib": 8000,
            "pods": [
                {
                    "namespace": "team-a",
                    "name": "user",
                    "uid": "uid-user",
                    "share_milli": 500,
                    "memory_mib": 8000,
                    "held": "bound",
                }
            ],
            "more_pods": 0,
        }
    ]


def test_the_metrics_have_the_figures_of_open_nodes(world: Stepped) -> None:
    world.filter(world.put_pod(percent(60, "waiter")), "a")

    found = samples(world)

    wanted = {"nodes": 3.0, 'nodes_closed{reason="unplaced"}': 1, 'pods_waiting{standing="UNKNOWN"}': 1}
    wanted |= {"cards": 2, "cards_untouched": 1, "free_gpus": 1.5}
    # no node of this world tells of any CPU: nobody could use its free cards
    wanted |= {"fragmented_gpus": 1.5}
    assert {name: found[name] for name in wanted} == wanted


def test_what_is_held_for_a_waiting_pod_is_not_free_but_shown(running: Stepped) -> None:
    now_ms = running.now_ms
    running.put_node(node("a", card(0), card(1)))
    running.put_pod(held(percent(60, "p"), "a", "a-GPU-1", since_ms=now_ms, until_ms=now_ms + 60_000))

    found = samples(running)

    assert (found["free_gpus"], found["reserved_gpus"], found["cards_untouched"]) == (1.4, 0.6, 1)
    assert running.posted()["waiting"]["p"]["state"] == "reserved"


def test_before_the_cache_is_complete_there_are_metrics(start: Start, running: Stepped) -> None:
    running.api.faults.clear()
    running.api.end()
    late = start(wait=False)

    assert late.client.get("/readyz").status_code == 503
    assert late.client.get("/metrics").status_code == 200


# what waits


def test_a_waiting_pod_is_posted_with_the_reason_of_most_nodes(world: Stepped) -> None:
    world.put_node(node("also-a"))
    world.put_pod(on(percent(50, "second"), "also-a", "also-a-GPU-0"))
    raw = world.put_pod(percent(60, "waiter", priority=7))
    world.filter(raw, "a", "also-a", "closed")

    pod = world.posted()["waiting"]["waiter"]

    assert pod.pop("age_ms") >= 0
    assert pod == {
        "namespace": "team-a",
        "name": "waiter",
        "uid": "uid-waiter",
        "priority": 7,
        "standing": "UNKNOWN",
        "state": "refused",
        "reason": "no card has 60 percent free (2 of 3 nodes)",
    }


def test_who_is_bound_waits_no_more(world: Stepped) -> None:
    raw = world.put_pod(percent(60, "waiter"))
    world.filter(raw, "a")

    assert world.bind(raw, "b") == ""

    world.hears(world.api.pod("waiter"))
    assert world.posted()["waiting"] == {}


def test_what_became_of_the_last_bind_is_reported(world: Stepped) -> None:
    raw = world.put_pod(percent(60, "waiter"))

    world.bind(raw, "a")

    assert world.posted()["waiting"]["waiter"]["reason"] == "no card has 60 percent free"


def test_each_state_of_a_waiting_pod_has_its_word(world: Stepped) -> None:
    world.put_pod(percent(60, "gated", schedulingGates=[{"name": "x"}]))
    world.put_pod(percent(60, "unasked"))
    world.put_pod(percent(150, "malformed"))
    world.filter(world.put_pod(percent(60, "refused")), "a")
    gone = percent(60, "deleting")
    gone["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    world.put_pod(gone)

    waiting = world.posted()["waiting"]

    assert {name: pod["state"] for name, pod in waiting.items()} == {
        "gated": "gated",
        "malformed": "not-asked",
        "refused": "refused",
        "unasked": "not-asked",
    }
    assert [name for name, pod in waiting.items() if "more than one card" in pod["reason"]] == ["malformed"]


def test_a_pod_that_kube_schedulers_own_sums_refuse_is_shown_with_its_message(world: Stepped) -> None:
    raw = percent(60, "unasked")
    message = "0/3 nodes are available: 3 Insufficient bursar.dev/gpu-percent."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw["status"] = {"phase": "Pending", "conditions": [refused]}
    world.put_pod(raw)

    pod = world.posted()["waiting"]["unasked"]

    assert (pod["state"], pod["reason"]) == ("not-asked", message)


SHORT = "0/3 nodes are available: 3 cannot allocate all claims."
QUOTA = 'running PreBind plugin "DynamicResources": resourceclaims is forbidden: exceeded quota: one'
NONE_YET = "it waits for its claims, which a ResourceQuota may refuse: kubectl describe pod has the reason"
FABRIC = "0/3 nodes are available: 3 the compute domain is not ready."
BY_CLAIM: Json = {"schedulerName": "default-scheduler", "annotations": {"bursar.dev/claims": "1"}}
BY_LIMIT: Json = {"schedulerName": "default-scheduler"}


@pytest.mark.parametrize(
    ("limits", "fields", "reason", "message"),
    [
        ({}, BY_CLAIM, "Unschedulable", SHORT),
        ({}, BY_CLAIM, "Unschedulable", FABRIC),
        ({}, BY_CLAIM, "", NONE_YET),
        ({"nvidia_com__gpu": "1"}, BY_LIMIT, "Unschedulable", SHORT),
        ({"nvidia_com__gpu": "1"}, BY_LIMIT, "SchedulerError", QUOTA),
        ({"bursar_dev__gpu_percent": "100"}, BY_LIMIT, "Unschedulable", SHORT),  # beside a claim
    ],
)
def test_a_pod_that_waits_for_devices_of_claims_says_what_kube_scheduler_says_and_waits_for_no_card(
    world: Stepped, limits: dict[str, str], fields: Json, reason: str, message: str
) -> None:
    raw = asking(limits_of("main", **limits), name="claimant", **copy.deepcopy(fields))
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    raw["status"] = {"phase": "Pending", "conditions": [condition] if reason else []}
    world.put_pod(raw)

    assert world.posted()["waiting"]["claimant"]["reason"] == message
    assert samples(world)['pods_waiting{standing="UNKNOWN"}'] == 0


# metrics


def test_the_metrics_show_what_waits_and_why(world: Stepped) -> None:
    world.filter(world.put_pod(percent(60, "waiter")), "a", "closed")
    world.passes()
    lines = world.client.get("/metrics").text.splitlines()

    for line in (
        'bursar_extender_events_total{result="posted"} 1.0',
        'bursar_extender_nodes_refused_total{reason="full"} 1.0',
        'bursar_extender_nodes_refused_total{reason="closed"} 1.0',
        'bursar_extender_nodes_refused_total{reason="search"} 0.0',
        'bursar_extender_pods_waiting{standing="UNKNOWN"} 1.0',
        'bursar_extender_pods_waiting{standing="OVER_BUDGET"} 0.0',
        "bursar_extender_reservations 0.0",
        "bursar_extender_reserved_gpus 0.0",
        "bursar_extender_fragmented_gpus 1.5",
        'bursar_extender_events_total{result="dropped"} 0.0',
    ):
        assert line in lines
