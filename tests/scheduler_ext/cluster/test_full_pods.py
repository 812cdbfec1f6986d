"""Pods that fill the space which etcd gives an object, on a real API server: what fencing concludes from a
refused touch holds, and such a pod keeps nobody else from being bound."""

import http.client
import re
import shlex
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.local.api import AdminApi, ApiError
from deploy.local.cluster import ControlPlane
from scheduler_ext.clients.pod_patches import touch_patch
from tests.scheduler_ext.clusters import PODS, World, placed
from tests.scheduler_ext.processes import ROOT
from tests.support.control_plane import MERGE, kubectl
from tests.support.waiting import eventually

STRATEGIC = "application/strategic-merge-patch+json"
HALF = {"bursar.dev/gpu-percent": "50"}
SAID = "0/1 nodes are available: 1 no card has 50 percent free. preemption: 0/1 nodes are available"
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
    has_condition = "PodScheduled" in str(pod["status"].get("conditions"))
    patch = touch_patch(pod["metadata"]["uid"], WORD, has_condition=has_condition)
    api.call("PATCH", f"{PODS}/{name}/status", patch, STRATEGIC)


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
    taken, refused = -1, 64  # lengths of a last label's value
    while refused - taken > 1:
        length = (taken + refused) // 2
        try:
            api.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"z": "v" * length}}}, MERGE)
            taken = length
        except ApiError:
            refused = length


def refused(call: Any) -> str:
    """What the API server says against it."""
    with pytest.raises(ApiError) as raised:
        call()
    return str(raised.value)


@pytest.fixture
def full(world: World) -> Iterator[str]:
    """A governed pod that takes nothing more, from before the policies, which are in force now. It has a
    finalizer: to delete it the API server has to write it."""
    api = world.plane.api
    container = {"name": "main", "image": "x", "args": ["x" * 900_000], "resources": {"limits": HALF}}
    plain(api, "full", containers=[container])
    metadata = {"finalizers": ["example.com/kept"], "labels": {"bursar.dev/governed": "true"}}
    api.call("PATCH", f"{PODS}/full", {"metadata": metadata}, MERGE)
    fill(api, "full")
    files = [f"-f={ROOT}/deploy/manifests/admission-{name}.yaml" for name in ("policies", "updates")]
    kubectl(world.plane, "apply", *files)
    patch = '{"labels":null}'
    eventually(
        lambda: "only Bursar writes this" in patched(world.plane, patch), lambda: patched(world.plane, patch)
    )
    yield "full"
    kubectl(world.plane, "delete", *files)
    with suppress(ApiError):
        api.call("PATCH", f"{PODS}/full", {"metadata": {"labels": None, "finalizers": None}}, MERGE)
        api.call("DELETE", f"{PODS}/full")


def patched(plane: ControlPlane, metadata: str) -> str:
    """What kubectl says against a patch of the full pod's metadata."""
    patch = ("patch", "pod", "full", f'-p={{"metadata":{metadata}}}', "--dry-run=server")
    return str(plane.kubectl(*patch).stderr)


def shows(world: World, figure: str) -> bool:
    """Whether the extender has this figure among its metrics."""
    return f"\nbursar_extender_{figure}\n" in world.extender.get("/metrics")[1]


def remedy(name: str) -> list[list[str]]:
    """The commands of docs/troubleshooting.md, for this pod."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    chapter = page.partition("## A pod is too large for etcd\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```console\n(.*?)^```", chapter, re.DOTALL | re.MULTILINE)
    text = block.replace("POD", name).replace("NAMESPACE", "default")
    return [shlex.split(line)[1:] for line in text.splitlines()]


def test_a_pod_that_fills_etcd_keeps_no_extender_from_leading_and_leaves_by_the_remedy(
    world: World, full: str
) -> None:
    api = world.plane.api

    world.node("n", cards=1)

    world.extender.kill()
    world.extender.start()
    world.extender.ready()

    eventually(lambda: shows(world, "leads 1.0"))
    assert shows(world, "pods_too_large 1.0")
    world.pod("neighbour", HALF)
    placed(world, "neighbour")
    uid = api.call("GET", f"{PODS}/{full}")["metadata"]["uid"]
    order = {"PodName": full, "PodNamespace": "default", "PodUID": uid, "Node": "n"}
    assert "too large for the API server's store" in world.extender.call("POST", "/bind", order)[1]
    assert "request is too large" in refused(lambda: bind(api, full))
    assert "request is too large" in refused(lambda: api.call("DELETE", f"{PODS}/{full}"))

    remove, delete = remedy(full)
    kubectl(world.plane, *remove)
    eventually(lambda: shows(world, "pods_too_large 0.0"))
    api.call("PATCH", f"{PODS}/{full}", {"metadata": {"finalizers": None}}, MERGE)
    kubectl(world.plane, *delete)


FROZEN = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen}
spec:
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [pods/status]
        resourceNames: [frozen]
  validations: [{expression: "false", message: "the status is frozen"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen}
spec: {policyName: frozen, validationActions: [Deny]}
"""


def test_a_pod_that_admission_keeps_from_being_touched_is_reported_until_it_is_touched(world: World) -> None:
    api = world.plane.api
    plain(api, "frozen", containers=[{"name": "main", "image": "x", "resources": {"limits": HALF}}])
    kubectl(world.plane, "apply", "-f", "-", input=FROZEN)
    status = {"status": {"message": "probe"}}
    eventually(
        lambda: "frozen" in attempted(lambda: api.call("PATCH", f"{PODS}/frozen/status", status, MERGE))
    )

    world.extender.kill()
    world.extender.start()

    eventually(lambda: answered(world) and shows(world, "fencing_stuck_pods 1.0"))
    assert shows(world, "leads 0.0")
    code, said = world.extender.get("/readyz")
    assert code == 503
    assert "fencing is stuck: the status of 1 pods cannot be changed, first default/frozen: " in said

    kubectl(world.plane, "delete", "-f", "-", input=FROZEN)
    eventually(lambda: shows(world, "leads 1.0"))
    assert shows(world, "fencing_stuck_pods 0.0")
    world.extender.ready()


def attempted(call: Any) -> str:
    """What the API server says against it; empty where it does it."""
    try:
        call()
    except ApiError as error:
        return str(error)
    return ""


def answered(world: World) -> bool:
    """Whether the extender listens."""
    try:
        return bool(world.extender.get("/livez")[0])
    except (OSError, http.client.HTTPException):
        return False
