"""`onExhausted: hold` from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and a
timekeeper that is killed while it releases. What a tenant holds without a charge, or goes on reserving, keeps
nothing from others: pods that wait for volumes, and pods that are deleted while they wait."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import gpu_pod, set_budget, set_budgets
from tests.support.control_plane import MERGE, create_namespace
from tests.support.scenes import Scene, scene
from tests.support.waiting import at_once
from tests.worlds import Json

GATE = [{"name": "bursar.dev/budget"}]
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
TOO_LONG_S = 1_000_000
LOOKAHEAD_MS = 600_000


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


def add_node(stack: Stack, name: str) -> None:
    """With four cards, for pods that select it by this name."""
    node = kwok_node(f"{name}-0", cards=4, memory_mib=16_000, model="T4", labels={"of": name})
    stack.cp.api.call("POST", "/api/v1/nodes", node)


@scene
def test_a_deployment_waits_for_its_budget_and_then_runs(stack: Stack) -> Scene:
    """While it waits, quota counts its pods, its deadline of progress passes, an autoscaler changes nothing,
    and nobody lifts the gate."""
    path = create_namespace(stack.cp, "waits")
    add_node(stack, "waits")
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.bursar.dev/gpu-percent": "30"}}}
    stack.cp.api.call("POST", path.replace("/pods", "/resourcequotas"), quota)
    set_budget(stack, "waits", "gpuHours: 0\nonExhausted: hold\n")
    dry = f"{path}?dryRun=All"

    def is_held() -> bool:
        metadata = {"name": "dry"}
        made = stack.cp.api.call("POST", dry, template(nodeSelector={"of": "waits"}) | {"metadata": metadata})
        return bool(made["spec"].get("schedulingGates") == GATE)

    yield "both workers to hold", lambda: all(at_once(is_held))
    deployment = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 3,
            "progressDeadlineSeconds": 3,
            "minReadySeconds": 0,
            "selector": {"matchLabels": {"app": "a"}},
            "template": template(nodeSelector={"of": "waits"}),
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
    yield "three held pods", lambda: len(gated(pods(stack, path))) == 3
    held = pods(stack, path)
    assert {each["spec"]["priorityClassName"] for each in held} == {"gpu-default-priority"}
    assert {each["status"]["conditions"][0]["reason"] for each in held} == {"SchedulingGated"}
    used = f"{path.replace('/pods', '/resourcequotas')}/q"
    yield (
        "the quota to count them",
        lambda: stack.cp.api.call("GET", used)["status"]["used"]["requests.bursar.dev/gpu-percent"] == "30",
    )
    one = f"{path}/{held[0]['metadata']['name']}"
    lifted: Json = {"spec": {"schedulingGates": []}}
    with pytest.raises(ApiError, match="only Bursar removes this gate"):
        stack.cp.api.call("PATCH", one, lifted, "application/merge-patch+json")

    def progress() -> str:
        found = stack.cp.api.call("GET", f"{deployments}/d")["status"].get("conditions", [])
        return next((each["reason"] for each in found if each["type"] == "Progressing"), "")

    yield "the deadline to pass", lambda: progress() == "ProgressDeadlineExceeded"

    def scaling() -> str:
        found = stack.cp.api.call("GET", f"{scalers}/d")["status"].get("conditions") or []
        return next((each["status"] for each in found if each["type"] == "ScalingActive"), "")

    yield "the autoscaler to look", lambda: scaling() == "False"
    assert len(gated(pods(stack, path))) == 3

    set_budget(stack, "waits", "gpuHours: 9\nonExhausted: hold\n")
    yield "all to run", lambda: len(running(pods(stack, path))) == 3
    yield "the Deployment to be complete", lambda: progress() == "NewReplicaSetAvailable"

    def reasons() -> Counter[str]:
        found = stack.cp.api.call("GET", "/apis/events.k8s.io/v1/namespaces/waits/events")["items"]
        return Counter(each["reason"] for each in found)

    yield "the Events", lambda: reasons()["Released"] == 3
    assert reasons()["HeldByBudget"] == 3


def all_cards(stack: Stack) -> int:
    """What all cards of the cluster cost for the lookahead."""
    nodes = stack.cp.api.call("GET", "/api/v1/nodes")["items"]
    return sum(
        10 * LOOKAHEAD_MS * int(node["status"]["capacity"]["bursar.dev/gpu-percent"]) for node in nodes
    )


def on_node(name: str, pod: Json) -> Json:
    """The pod, on the node of this name alone."""
    pod["spec"]["nodeSelector"] = {"of": name}
    return pod


def reading(stack: Stack, path: str) -> Callable[[str], Json]:
    """A function that reads a pod by name."""

    def read(name: str) -> Json:
        found: Json = stack.cp.api.call("GET", f"{path}/{name}")
        return found

    return read


@scene
def test_a_pod_whose_volume_nothing_provisions_keeps_no_cards_from_others(stack: Stack) -> Scene:
    api = stack.cp.api
    api.call(
        "POST",
        CLASSES,
        {
            "metadata": {"name": "never"},
            "provisioner": "disk.example.com",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    add_node(stack, "greedy")
    greedy, calm = create_namespace(stack.cp, "greedy"), create_namespace(stack.cp, "thrifty")
    claim = {"storageClassName": "never", "accessModes": ["ReadWriteOnce"]}
    claims = greedy.removesuffix("pods") + "persistentvolumeclaims"
    body = {"metadata": {"name": "disk"}, "spec": claim | {"resources": {"requests": {"storage": "1Gi"}}}}
    api.call("POST", claims, body)
    pod = on_node("greedy", gpu_pod("waits", 400, "2s"))
    pod["spec"]["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    api.call("POST", greedy, pod)

    def selected() -> bool:
        annotations = api.call("GET", f"{claims}/disk")["metadata"].get("annotations", {})
        return "volume.kubernetes.io/selected-node" in annotations

    yield "kube-scheduler to wait for the volume", selected

    api.call("POST", calm, on_node("greedy", gpu_pod("paid", 400, "2s")))

    read = reading(stack, calm)
    yield "the other pod to end", lambda: read("paid")["status"]["phase"] == "Succeeded"
    assert "nodeName" not in reading(stack, greedy)("waits")["spec"]
    its = api.call("GET", f"{claims}/disk")["metadata"]
    volume = {
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/data"},
        "claimRef": {key: its[key] for key in ("namespace", "name", "uid")},
        **claim,
    }
    api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "disk"}, "spec": volume})
    waits = reading(stack, greedy)
    yield "the pod with a volume", lambda: waits("waits")["status"]["phase"] == "Succeeded"


@scene
def test_a_pod_that_is_deleted_while_it_waits_reserves_nothing_more(stack: Stack, reader: str) -> Scene:
    """A deletion of a pod without a node is immediate whatever its grace period, and passes the policy. A
    finalizer keeps the object, and no more."""
    add_node(stack, "leaving")
    for name in ("leaving", "staying"):
        set_budget(stack, name, "gpuHours: 100\n")
    paths = {name: create_namespace(stack.cp, name) for name in ("leaving", "staying")}

    def reserved(namespace: str) -> int:
        amount: int = stack.get(f"/v1/budgets/{namespace}", reader)["reserved"]
        return amount

    for name, path in paths.items():
        pod = on_node("leaving", gpu_pod("huge", 6_400, "1s"))
        pod["metadata"]["finalizers"] = ["example.com/keep"]
        stack.cp.api.call("POST", path, pod)
        yield f"{name} to reserve", lambda name=name: reserved(name) == all_cards(stack)  # type: ignore[misc]
    huge = f"{paths['leaving']}/huge"

    left = stack.cp.api.call("DELETE", huge, {"gracePeriodSeconds": TOO_LONG_S})

    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    yield "its reservation to go", lambda: reserved("leaving") == 0
    assert reserved("staying") == all_cards(stack)
    target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "leaving-0"}}
    with pytest.raises(ApiError, match="is being deleted, cannot be assigned to a host"):
        stack.cp.api.call("POST", f"{huge}/binding", target | {"metadata": {"name": "huge"}})
    with pytest.raises(ApiError, match="grace-period"):
        stack.cp.api.call("DELETE", huge, {"gracePeriodSeconds": TOO_LONG_S})

    def waiting(namespace: str) -> list[str]:
        return [pod["name"] for pod in stack.get(f"/v1/waiting?namespace={namespace}", reader)["pods"]]

    yield (
        "the one that stays to be the only one that waits",
        lambda: (waiting("leaving"), waiting("staying")) == ([], ["huge"]),
    )
    for path in paths.values():
        stack.cp.api.call("PATCH", f"{path}/huge", {"metadata": {"finalizers": None}}, MERGE)
    stack.cp.api.call("DELETE", f"{paths['staying']}/huge")
    yield "the pod to go", lambda: not stack.exists(huge)


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
