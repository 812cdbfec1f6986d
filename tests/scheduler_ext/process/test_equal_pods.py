"""Two equal pods bound to one node at nearly the same moment: each gets its own cards, by the rule by which
its system's node plugin finds the pod that the kubelet starts.

The rules are written from those systems' sources and import nothing of ours. The kubelet starts pods one
after the other, in the order in which their Bindings were made.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.scheduler_ext.conftest import Running, Start
from tests.scheduler_ext.worlds import asking, node
from tests.support.waiting import eventually
from tests.worlds import Json, card, of_resources

OVERTAKEN_S = 1.0  # how long the first Binding waits for one that overtakes it


def amount(container: Json, resource: str) -> int:
    return int(container["resources"].get("limits", {}).get(resource, 0))


def by_gpushare(pods: list[Json], started: Json) -> str:
    """Of the pods that are not assigned and request as many units in all, the one with the earliest assume
    time; it is marked as assigned."""
    resource, stem = "aliyun.com/gpu-mem", "ALIYUN_COM_GPU_MEM_"
    units = sum(amount(each, resource) for each in started["spec"]["containers"])
    found = min(
        (
            each["metadata"]["annotations"]
            for each in pods
            if each["metadata"]["annotations"][f"{stem}ASSIGNED"] == "false"
            and sum(amount(one, resource) for one in each["spec"]["containers"]) == units
        ),
        key=lambda annotations: int(annotations[f"{stem}ASSUME_TIME"]),
    )
    found[f"{stem}ASSIGNED"] = "true"
    return str(found[f"{stem}IDX"])


def by_gpu_manager(pods: list[Json], started: Json) -> str:
    """Of the pods of the node that are not assigned, by predicate time, the first container with as much
    vcore; its pod is marked as assigned."""
    resource, domain = "tencent.com/vcuda-core", "tencent.com/"
    (units,) = filter(None, (amount(each, resource) for each in started["spec"]["containers"]))
    waiting = [each for each in pods if each["metadata"]["annotations"][f"{domain}gpu-assigned"] == "false"]
    waiting.sort(key=lambda each: int(each["metadata"]["annotations"][f"{domain}predicate-time"]))
    for each in waiting:
        for index, container in enumerate(each["spec"]["containers"]):
            if amount(container, resource) == units:
                annotations = each["metadata"]["annotations"]
                annotations[f"{domain}gpu-assigned"] = "true"
                return str(annotations[f"{domain}predicate-gpu-idx-{index}"])
    raise AssertionError("no pod waits")


def by_intels_plugin(pods: list[Json], started: Json) -> str:
    """Of the pods that the kubelet has not started, the one with the earliest ``gas-ts``, and of it the
    container with as many devices. The plugin keeps in memory which it has handed out."""
    resource = "gpu.intel.com/i915"
    (devices,) = filter(None, (amount(each, resource) for each in started["spec"]["containers"]))
    waiting = [each["metadata"]["annotations"] for each in pods if "handed-out" not in each]
    earliest = min(waiting, key=lambda annotations: int(annotations["gas-ts"]))
    (found,) = (each for each in pods if each["metadata"]["annotations"] is earliest)
    found["handed-out"] = True
    parts = earliest["gas-container-cards"].split("|")
    (cards,) = (
        part
        for part, container in zip(parts, found["spec"]["containers"], strict=True)
        if amount(container, resource) == devices
    )
    return str(cards.removeprefix("card"))


def by_name(stem: str) -> Callable[[list[Json], Json], str]:
    """nano-gpu's and elastic-gpu's agents learn pod and container from the kubelet by the devices that it
    gave them, and read that container's annotation."""
    return lambda _pods, started: str(started["metadata"]["annotations"][f"{stem}main"])


@dataclass
class System:
    """``node``: of two cards; ``limits``: more than half a card."""

    node: Json
    limits: Mapping[str, str]
    finds: Callable[[list[Json], Json], str]


def of(capacity: Json, labels: Json | None = None) -> Json:
    """A node without Bursar's agent."""
    status = {"capacity": capacity, "allocatable": capacity}
    return {"metadata": {"name": "n", "labels": labels or {}}, "status": status}


INTEL = "gpu.intel.com/"
SYSTEMS = {
    "gpushare": System(
        of({"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "2"}),
        {"aliyun.com/gpu-mem": "5"},
        by_gpushare,
    ),
    "gpu-manager": System(
        node(
            "n",
            card(0, 8192),
            card(1, 8192),
            capacity={"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"},
        ),
        {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "20"},
        by_gpu_manager,
    ),
    "gas": System(
        of({f"{INTEL}i915": "8", f"{INTEL}millicores": "2000"}, {f"{INTEL}gpu-numbers": "0.1"}),
        {f"{INTEL}i915": "1", f"{INTEL}millicores": "600"},
        by_intels_plugin,
    ),
    "nano-v0.1": System(
        of({"nano-gpu.io/gpu-core": "200", "nano-gpu.io/gpu-memory": "16000"}),
        {"nano-gpu.io/gpu-core": "60"},
        by_name("nano-gpu.io/gpu-"),
    ),
    "nano-v0.3": System(
        of({"nano-gpu/gpu-percent": "200"}, {"nvidia.com/gpu.memory": "8000"}),
        {"nano-gpu/gpu-percent": "60"},
        by_name("nano-gpu/container-"),
    ),
    "qgpu": System(
        of({"nano-gpu/qgpu-core": "200", "nano-gpu/qgpu-memory": "16000"}),
        {"nano-gpu/qgpu-core": "60"},
        by_name("nano-gpu/container-"),
    ),
    "elastic": System(
        of({"elasticgpu.io/gpu-core": "200", "elasticgpu.io/gpu-memory": "16000"}),
        {"elasticgpu.io/gpu-core": "60"},
        by_name("elasticgpu.io/container-"),
    ),
}


def both_bound(world: Running, pods: list[Json], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Binds the second while the API server is slow to make the first's Binding; the names in the order in
    which the Bindings were made."""
    made: list[str] = []
    second, obey = threading.Event(), world.api.bind

    def bind(namespace: str, name: str, body: Json) -> tuple[int, Json]:
        if name == "first":
            second.wait(OVERTAKEN_S)
        answer = obey(namespace, name, body)
        made.append(name)
        if name == "second":
            second.set()
        return answer

    monkeypatch.setattr(world.api, "bind", bind)
    errors: list[str] = []
    threads = [
        threading.Thread(target=lambda raw=raw: errors.append(world.bind(raw, "n")), daemon=True)
        for raw in pods
    ]
    threads[0].start()
    eventually(lambda: world.api.made("bind"))
    threads[1].start()
    for each in threads:
        each.join()
    assert errors == ["", ""]
    return made


@pytest.mark.parametrize("sees_all", [True, False], ids=["sees both pods", "sees one pod"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_each_of_two_equal_pods_gets_its_own_cards(
    start: Start, monkeypatch: pytest.MonkeyPatch, system: str, sees_all: bool
) -> None:
    """``sees_all``: when the kubelet starts the first pod, the plugin sees both."""
    world, there = start(), SYSTEMS[system]
    world.put_node(there.node)
    containers = of_resources({}, "idle"), of_resources(dict(there.limits))
    pods = [world.put_pod(asking(*containers, name=name)) for name in ("first", "second")]

    order = both_bound(world, pods, monkeypatch)

    bound = {name: world.api.pod(name) for name in order}
    meant = {
        name: str(
            json.loads(raw["metadata"]["annotations"]["bursar.dev/devices"])["containers"]["main"][0]["index"]
        )
        for name, raw in bound.items()
    }
    shown = {}
    for at, name in enumerate(order, 1):
        visible = list(bound.values()) if sees_all else [bound[each] for each in order[:at]]
        shown[name] = there.finds(visible, bound[name])
    assert shown == meant
    assert sorted(meant.values()) == ["0", "1"]
