"""Pods that fill the space which etcd gives an object, on a real API server: what fencing concludes from a
refused touch holds, and such a pod keeps nobody else from being bound."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.local.api import AdminApi, ApiError
from scheduler_ext.clients.pod_patches import touch_patch
from tests.scheduler_ext.clusters import PODS, World, extender, placed, plane, world
from tests.support.control_plane import kubectl
from tests.support.waiting import eventually

__all__ = ["extender", "plane", "world"]

Json = dict[str, Any]

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
HALF = {"bursar.dev/gpu-percent": "50"}
SAID = "0/1 nodes are available: 1 no card has 50% free. preemption: 0/1 nodes are available"
CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SAID}
CARD = '[{"index":0,"memory_mib":1,"share_milli":1,"uuid":""}]'
LEAST = {"bursar.dev/devices": f'{{"containers":{{"a":{CARD}}},"version":1}}'}  # even without a UUID
WORD = "w" * 17


def size(api: AdminApi, name: str) -> int:
    """The bytes of a pod as etcd stores it."""
    target = urlsplit(api.url)
    tls = ssl.create_default_context(cafile=str(api.ca_file))
    headers = {"Authorization": f"Bearer {api.token}", "Accept": "application/vnd.kubernetes.protobuf"}
    with closing(http.client.HTTPSConnection(target.hostname or "", target.port, context=tls)) as connection:
        connection.request("GET", f"{PODS}/{name}", headers=headers)
        return len(connection.getresponse().read())


def touch(api: AdminApi, name: str) -> None:
    """What fencing does to the pod as it is."""
    pod = api.call("GET", f"{PODS}/{name}")
    tried = "PodScheduled" in str(pod["status"].get("conditions"))
    api.call(
        "PATCH", f"{PODS}/{name}/status", touch_patch(pod["metadata"]["uid"], WORD, tried=tried), STRATEGIC
    )


def bind(api: AdminApi, name: str) -> None:
    """The smallest Binding that any extender sends."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": LEAST},
        "target": {"kind": "Node", "name": "n"},
    }
    api.call("POST", f"{PODS}/{name}/binding", body)


def plain(api: AdminApi, name: str, **spec: Any) -> None:
    """A pod that no scheduler looks at."""
    spec = {"schedulerName": "nobody", "containers": [{"name": "a", "image": "x"}]} | spec
    api.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("state", ["new", "tried", "tried and touched"])
def test_a_touch_adds_less_to_a_pod_than_any_binding_does(world: World, state: str) -> None:
    api, added = world.plane.api, {}
    for number, write in enumerate((touch, bind)):
        name = f"p{number}"
        plain(api, name, terminationGracePeriodSeconds=0)  # no kubelet would end it on a node that is missing
        if state != "new":
            body = {"status": {"conditions": [CONDITION]}}
            api.call("PATCH", f"{PODS}/{name}/status?fieldManager=kube-scheduler", body, STRATEGIC)
        if state == "tried and touched":
            message = {"status": {"conditions": [{"type": "PodScheduled", "message": None}]}}
            api.call("PATCH", f"{PODS}/{name}/status", message, STRATEGIC)
        before = size(api, name)
        write(api, name)
        added[write] = size(api, name) - before

    assert added[touch] < added[bind]


def fill(api: AdminApi, name: str) -> None:
    """Labels by PATCH until the store takes no more."""
    made, step = 0, 1024
    while step:
        labels = {f"{'k' * 240}/{'n' * 50}{made + at:06d}": "v" * 63 for at in range(step)}
        try:
            api.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": labels}}, MERGE)
            made += step
        except ApiError:
            step //= 4
    for length in range(63, -1, -1):
        with suppress(ApiError):
            api.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"z": "v" * length}}}, MERGE)
            break


def refused(call: Any) -> str:
    """What the API server says against it."""
    with pytest.raises(ApiError) as raised:
        call()
    return str(raised.value)


@pytest.fixture
def full(world: World) -> Iterator[str]:
    """A pod that takes nothing more, with a finalizer: to delete it the API server has to write it."""
    api = world.plane.api
    container = {"name": "main", "image": "x", "args": ["x" * 900_000], "resources": {"limits": HALF}}
    plain(api, "full", containers=[container])
    api.call("PATCH", f"{PODS}/full", {"metadata": {"finalizers": ["example.com/kept"]}}, MERGE)
    fill(api, "full")
    yield "full"
    with suppress(ApiError):
        api.call("PATCH", f"{PODS}/full", {"metadata": {"labels": None, "finalizers": None}}, MERGE)
        api.call("DELETE", f"{PODS}/full")


def test_a_pod_that_fills_etcd_keeps_no_extender_from_leading_and_leaves_by_the_remedy(
    world: World, full: str
) -> None:
    api = world.plane.api

    def metrics() -> str:
        return world.extender.get("/metrics")[1]

    world.node("n", cards=1)

    world.extender.kill()
    world.extender.start()
    world.extender.ready()

    eventually(lambda: "bursar_extender_leads 1.0" in metrics())
    assert "bursar_extender_pods_too_large 1.0" in metrics()
    world.pod("neighbour", HALF)
    placed(world, "neighbour")
    uid = api.call("GET", f"{PODS}/{full}")["metadata"]["uid"]
    order = {"PodName": full, "PodNamespace": "default", "PodUID": uid, "Node": "n"}
    assert "too large for the API server's store" in world.extender.call("POST", "/bind", order)[1]
    assert "request is too large" in refused(lambda: bind(api, full))
    assert "request is too large" in refused(lambda: api.call("DELETE", f"{PODS}/{full}"))

    # the remedy that docs/troubleshooting.md gives
    kubectl(
        world.plane,
        "patch",
        "pod",
        full,
        "--type=merge",
        '-p={"metadata":{"labels":null,"annotations":null}}',
    )
    eventually(lambda: "bursar_extender_pods_too_large 0.0" in metrics())
    api.call("PATCH", f"{PODS}/{full}", {"metadata": {"finalizers": None}}, MERGE)
    assert world.plane.kubectl("delete", "pod", full).returncode == 0
