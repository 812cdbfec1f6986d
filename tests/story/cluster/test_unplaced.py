"""A namespace with `placement: off`, with nodes of its own: the cluster's kube-scheduler places its pods, as
NVIDIA's device plugin counts cards; budget, cap and eviction hold all the same."""

from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import gated, pods, running
from tests.story.cluster.test_metering import held_ms, set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import at_once

pytestmark = pytest.mark.timeout(300)

Json = dict[str, Any]

LABELS = {
    **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "4"},
    **{"nvidia.com/gpu.memory": "40960", "team": "plain"},
}
SETTINGS = (
    "lookahead: 0s\nsettleAfter: 5s\nevictGrace: 1s\npdbGrace: 1s\nevictRate: 60\nweights: {A100: 2.5}\n"
)
ENTRY = "onExhausted: evict\nmaxGPUs: 2\nplacement: off\n"
RUN_FOR = "local.bursar.dev/run-for"


def pod(name: str, limits: Json, run_for: str = "") -> Json:
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    annotations = {RUN_FOR: run_for} if run_for else {}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def whole(name: str, run_for: str = "") -> Json:
    return pod(name, {"nvidia.com/gpu": "1"}, run_for)


def test_pods_on_the_clusters_own_scheduler_are_gated_charged_and_evicted(stack: Stack, reader: str) -> None:
    path = create_namespace(stack.cp, "plain")
    call = stack.cp.api.call
    call("POST", "/api/v1/nodes", kwok_node("plain-0", capacity=nvidia_capacity(4), labels=LABELS))
    set_budgets(stack, _settings=SETTINGS, plain=f"gpuHours: 100\n{ENTRY}")

    def refuses_a_share() -> bool:
        try:
            call("POST", f"{path}?dryRun=All", pod("share", {"bursar.dev/gpu-percent": "50"}))
        except ApiError as error:
            return "or an administrator sets placement: on" in str(error)
        return False

    stack.wait("both workers to refuse a share", lambda: all(at_once(refuses_a_share)))

    # classed, recorded and gated, and otherwise as its user wrote it
    made = [call("POST", path, whole(name, run_for)) for name, run_for in (("a", "2s"), ("b", ""), ("c", ""))]
    for each in made:
        spec, annotations = each["spec"], each["metadata"]["annotations"]
        assert each["metadata"]["labels"] == {"bursar.dev/governed": "true"}
        assert (annotations["bursar.dev/standing"], annotations["bursar.dev/held"]) == ("IN_BUDGET", "turn")
        assert (spec["schedulerName"], spec["priorityClassName"]) == (
            *("default-scheduler", "gpu-default-priority"),
        )
        assert spec["schedulingGates"] == [{"name": "bursar.dev/budget"}]
        assert "initContainers" not in spec
        assert "env" not in spec["containers"][0]

    # two within the cap; the third once the first has ended by itself
    stack.wait("two releases", lambda: len(gated(pods(stack, path))) == 1, "timekeeper")
    stack.wait("the third", lambda: not gated(pods(stack, path)), "timekeeper", 60)

    def found(name: str) -> Json:
        one: Json = call("GET", f"{path}/{name}")
        return one

    stack.wait("the first to end", lambda: found("a")["status"].get("phase") == "Succeeded", within_s=60)
    stack.wait("the others to run", lambda: len(running(pods(stack, path))) == 2, within_s=60)
    for name in "abc":
        assert found(name)["spec"]["nodeName"] == "plain-0"
        assert "bursar.dev/devices" not in found(name)["metadata"]["annotations"]

    # charged to the millisecond, at the weight of its card
    def charged() -> dict[str, int]:
        rows = stack.get("/v1/usage?namespace=plain&group=pod", reader)["rows"]
        return {str(row["pod"]): int(row["amount"]) for row in rows}

    owed = 2_500 * held_ms(found("a"))
    stack.wait("the settlement", lambda: charged().get("a") == owed, "timekeeper", 60)
    sessions = stack.get("/v1/sessions?namespace=plain", reader)["sessions"]
    assert {(each["rateMilli"], each["models"]) for each in sessions} == {(2_500, "NVIDIA-A100-SXM4-40GB")}

    # spent: new pods wait, and those that run leave
    set_budgets(stack, _settings=SETTINGS, plain=f"gpuHours: 0\n{ENTRY}")
    stack.wait("the evictions", lambda: not running(pods(stack, path)), "timekeeper", 90)
    assert charged()["a"] == owed
    budget = stack.get("/v1/budgets/plain", reader)
    assert (budget["placement"], budget["standing"]) == ("off", "OVER_BUDGET")

    def is_held() -> bool:
        dry = call("POST", f"{path}?dryRun=All", whole("later"))
        return bool(dry["metadata"]["annotations"].get("bursar.dev/held") == "budget")

    stack.wait("both workers to hold new pods", lambda: all(at_once(is_held)))
