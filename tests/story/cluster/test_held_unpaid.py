"""What a tenant holds without a charge, or goes on reserving, keeps nothing from others: pods that wait for
volumes, pods that are deleted while they wait, and copies of a pod."""

import json
from collections.abc import Callable

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import Json, gpu_pod, held_ms, set_budgets
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually

MERGE = "application/merge-patch+json"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
TOO_LONG_S = 1_000_000
ALL_CARDS = 4_000 * 600_000  # for the lookahead


@pytest.fixture(scope="module", autouse=True)
def node(stack: Stack) -> None:
    """One node with four cards."""
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("only", cards=4, memory_mib=16_000, model="T4"))


def reading(stack: Stack, pods: str) -> Callable[[str], Json]:
    """A function that reads a pod by name."""

    def read(name: str) -> Json:
        found: Json = stack.cp.api.call("GET", f"{pods}/{name}")
        return found

    return read


def test_a_pod_whose_volume_nothing_provisions_keeps_no_cards_from_others(stack: Stack) -> None:
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
    greedy, calm = create_namespace(stack.cp, "greedy"), create_namespace(stack.cp, "thrifty")
    claim = {"storageClassName": "never", "accessModes": ["ReadWriteOnce"]}
    claims = greedy.removesuffix("pods") + "persistentvolumeclaims"
    body = {"metadata": {"name": "disk"}, "spec": claim | {"resources": {"requests": {"storage": "1Gi"}}}}
    api.call("POST", claims, body)
    pod = gpu_pod("waits", 400, "2s")
    pod["spec"]["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    api.call("POST", greedy, pod)

    def selected() -> bool:
        annotations = api.call("GET", f"{claims}/disk")["metadata"].get("annotations", {})
        return "volume.kubernetes.io/selected-node" in annotations

    stack.wait("kube-scheduler to wait for the volume", selected)

    api.call("POST", calm, gpu_pod("paid", 400, "2s"))

    read = reading(stack, calm)
    stack.wait("the other pod to end", lambda: read("paid")["status"]["phase"] == "Succeeded", "extender")
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
    stack.wait("the pod with a volume", lambda: waits("waits")["status"]["phase"] == "Succeeded", "extender")


def test_a_pod_that_is_deleted_while_it_waits_reserves_nothing_more(stack: Stack, reader: str) -> None:
    """A deletion of a pod without a node is immediate whatever its grace period, and passes the policy. A
    finalizer keeps the object, and no more."""
    set_budgets(stack, leaving="gpuHours: 100\n", staying="gpuHours: 100\n")
    pods = {name: create_namespace(stack.cp, name) for name in ("leaving", "staying")}

    def reserved(namespace: str) -> int:
        amount: int = stack.get(f"/v1/budgets/{namespace}", reader)["reserved"]
        return amount

    for name, path in pods.items():
        pod = gpu_pod("huge", 800, "1s")
        pod["metadata"]["finalizers"] = ["example.com/keep"]
        stack.cp.api.call("POST", path, pod)
        stack.wait(f"{name} to reserve", lambda name=name: reserved(name) == ALL_CARDS)  # type: ignore[misc]
    huge = f"{pods['leaving']}/huge"

    left = stack.cp.api.call("DELETE", huge, {"gracePeriodSeconds": TOO_LONG_S})

    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    stack.wait("its reservation to go", lambda: reserved("leaving") == 0, "timekeeper")
    assert reserved("staying") == ALL_CARDS
    target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "only"}}
    with pytest.raises(ApiError, match="is being deleted, cannot be assigned to a host"):
        stack.cp.api.call("POST", f"{huge}/binding", target | {"metadata": {"name": "huge"}})
    with pytest.raises(ApiError, match="grace-period"):
        stack.cp.api.call("DELETE", huge, {"gracePeriodSeconds": TOO_LONG_S})

    def waiting() -> list[str]:
        return [pod["name"] for pod in stack.get("/v1/waiting", reader)["pods"]]

    stack.wait("the one that stays to be the only one that waits", lambda: waiting() == ["huge"], "extender")
    for path in pods.values():
        stack.cp.api.call("PATCH", f"{path}/huge", {"metadata": {"finalizers": None}}, MERGE)
    stack.cp.api.call("DELETE", f"{pods['staying']}/huge")
    eventually(lambda: not stack.exists(huge), "the pod to go")


def test_a_copy_of_a_pod_is_charged_beside_it(stack: Stack, sidecars: Sidecars, reader: str) -> None:
    set_budgets(stack, copied="gpuHours: 100\n")
    pods = create_namespace(stack.cp, "copied")
    stack.cp.api.call("POST", pods, gpu_pod("first", 50, "20s"))
    read = reading(stack, pods)
    stack.wait("the pod to run", lambda: read("first")["status"]["phase"] == "Running", "extender")

    command = ("debug", "first", "-n", "copied", "--copy-to=second", "--image=example/tools:1", "-c", "shell")
    kubectl(stack.cp, *command, "--", "sleep", "1")

    run_for = {"metadata": {"annotations": {"local.bursar.dev/run-for": "5s"}}}
    stack.cp.api.call("PATCH", f"{pods}/second", run_for, MERGE)
    for name in ("first", "second"):
        stack.wait(f"{name} to end", lambda name=name: read(name)["status"]["phase"] == "Succeeded")  # type: ignore[misc]

    def posted() -> dict[str, int]:
        rows = stack.get("/v1/usage?namespace=copied&group=pod", reader)["rows"]
        return {each["pod"]: each["posted"] for each in rows if not each["pending"]}

    stack.wait("both to be posted", lambda: posted().keys() == {"first", "second"}, "timekeeper")
    assert posted() == {name: 500 * held_ms(read(name)) for name in ("first", "second")}
    cards = [json.loads(read(name)["metadata"]["annotations"]["bursar.dev/devices"]) for name in posted()]
    assert [each["containers"].keys() for each in cards] == [{"main"}, {"main"}]
