"""`onExhausted: hold` from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and a
timekeeper that is killed while it releases."""

import os
import signal
from collections import Counter
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import at_once

Json = dict[str, Any]
GATE = [{"name": "bursar.dev/budget"}]


def template(percent: int = 10, **fields: Any) -> Json:
    """A pod's labels and spec."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container], **fields}}


def pods(stack: Stack, path: str) -> list[Json]:
    """All pods of the namespace."""
    found: list[Json] = stack.cp.api.call("GET", path)["items"]
    return found


def gated(found: list[Json]) -> list[Json]:
    """Those that wait behind the gate."""
    return [each for each in found if each["spec"].get("schedulingGates") == GATE]


def running(found: list[Json]) -> list[Json]:
    return [each for each in found if each["status"].get("phase") == "Running"]


def test_a_deployment_waits_for_its_budget_and_then_runs(stack: Stack) -> None:
    """While it waits, quota counts its pods, its deadline of progress passes, an autoscaler changes nothing,
    and nobody lifts the gate."""
    path = create_namespace(stack.cp, "waits")
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=4, memory_mib=16_000, model="T4"))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.bursar.dev/gpu-percent": "30"}}}
    stack.cp.api.call("POST", path.replace("/pods", "/resourcequotas"), quota)
    set_budgets(stack, waits="gpuHours: 0\nonExhausted: hold\n")
    dry = f"{path}?dryRun=All"

    def is_held() -> bool:
        metadata = {"name": "dry"}
        made = stack.cp.api.call("POST", dry, template() | {"metadata": metadata})
        return bool(made["spec"].get("schedulingGates") == GATE)

    stack.wait("both workers to hold", lambda: all(at_once(is_held)))
    deployment = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 3,
            "progressDeadlineSeconds": 3,
            "minReadySeconds": 0,
            "selector": {"matchLabels": {"app": "a"}},
            "template": template(),
        },
    }
    deployments = "/apis/apps/v1/namespaces/waits/deployments"
    stack.cp.api.call("POST", deployments, deployment)

    target = {"type": "Utilization", "averageUtilization": 50}
    scaler = {
        "metadata": {"name": "d"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }
    scalers = "/apis/autoscaling/v2/namespaces/waits/horizontalpodautoscalers"
    stack.cp.api.call("POST", scalers, scaler)

    # the controllers of a busy machine take their time
    stack.wait("three held pods", lambda: len(gated(pods(stack, path))) == 3)
    held = pods(stack, path)
    assert {each["spec"]["priorityClassName"] for each in held} == {"gpu-default-priority"}
    assert {each["status"]["conditions"][0]["reason"] for each in held} == {"SchedulingGated"}
    used = f"{path.replace('/pods', '/resourcequotas')}/q"
    stack.wait(
        "the quota to count them",
        lambda: stack.cp.api.call("GET", used)["status"]["used"]["requests.bursar.dev/gpu-percent"] == "30",
    )
    one = f"{path}/{held[0]['metadata']['name']}"
    lifted: Json = {"spec": {"schedulingGates": []}}
    with pytest.raises(ApiError, match="only Bursar's timekeeper removes this gate"):
        stack.cp.api.call("PATCH", one, lifted, "application/merge-patch+json")

    def progress() -> str:
        found = stack.cp.api.call("GET", f"{deployments}/d")["status"].get("conditions", [])
        return next((each["reason"] for each in found if each["type"] == "Progressing"), "")

    stack.wait("the deadline to pass", lambda: progress() == "ProgressDeadlineExceeded")

    def scaling() -> str:
        found = stack.cp.api.call("GET", f"{scalers}/d")["status"].get("conditions") or []
        return next((each["status"] for each in found if each["type"] == "ScalingActive"), "")

    stack.wait("the autoscaler to look", lambda: scaling() == "False")
    assert len(gated(pods(stack, path))) == 3

    set_budgets(stack, waits="gpuHours: 9\nonExhausted: hold\n")
    stack.wait("all to run", lambda: len(running(pods(stack, path))) == 3)
    stack.wait("the Deployment to be complete", lambda: progress() == "NewReplicaSetAvailable")

    def reasons() -> Counter[str]:
        found = stack.cp.api.call("GET", "/apis/events.k8s.io/v1/namespaces/waits/events")["items"]
        return Counter(each["reason"] for each in found)

    stack.wait("the Events", lambda: reasons()["Released"] == 3)
    assert reasons()["HeldByBudget"] == 3


def test_a_timekeeper_that_is_killed_while_it_releases_releases_no_more_than_can_be_paid(
    stack: Stack,
) -> None:
    """Each pod reserves a sixtieth of a GPU-hour: the budget pays twelve."""
    path = create_namespace(stack.cp, "killed-holding")
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("n2", cards=8, memory_mib=16_000, model="T4"))
    set_budgets(stack, **{"killed-holding": "gpuHours: 0\nonExhausted: hold\n"})

    def one(name: str) -> Json:
        return template() | {"metadata": {"name": name}}

    def is_held() -> bool:
        made = stack.cp.api.call("POST", f"{path}?dryRun=All", one("dry"))
        return bool(made["spec"].get("schedulingGates") == GATE)

    stack.wait("both workers to hold", lambda: all(at_once(is_held)))
    for index in range(30):
        stack.cp.api.call("POST", path, one(f"p{index:02}"))
    set_budgets(stack, **{"killed-holding": "gpuHours: 0.209\nonExhausted: hold\n"})
    stack.wait("the first releases", lambda: len(gated(pods(stack, path))) < 30)
    os.killpg(stack.processes["timekeeper"].pid, signal.SIGKILL)
    stack.processes.pop("timekeeper").wait()
    stack.start("timekeeper")

    stack.wait("what can be paid to run", lambda: len(running(pods(stack, path))) >= 11, "timekeeper")
    most = max(30 - len(gated(pods(stack, path))) for _ in range(40))
    assert most in (11, 12)  # the first of them have used a little before the last was released
    set_budgets(stack, **{"killed-holding": "gpuHours: 9\nonExhausted: hold\n"})
    stack.wait("all to run", lambda: len(running(pods(stack, path))) == 30, "timekeeper")
