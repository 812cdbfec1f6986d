"""Claims on the devices of the real node's DRA drivers, and pods that have them, in a namespace of their own.

Its mode is ``meter``: nothing of Bursar refuses or changes its pods.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import device_class
from deploy.local.limits import LONGEST_S
from tests.kubelet.images import CUDA
from tests.kubelet.worlds import Json, World, state
from tests.support.waiting import at_once

NAMESPACE = "claims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_RESOURCES = "/apis/resource.k8s.io/v1"
CLASSES = f"{_RESOURCES}/deviceclasses"
CLAIMS = f"{_RESOURCES}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"{_RESOURCES}/namespaces/{NAMESPACE}/resourceclaimtemplates"
_CONFIG_MAPS, _SETTINGS = "/api/v1/namespaces/bursar-system/configmaps", "bursar-settings"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"

# Prints what CDI has given the container, and lasts so long.
SHOWS_DEVICES = """
import json, os, time
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(("GPU_", "DRA_"))}))
time.sleep(%s)
"""


def wanted(driver: str, where: str = "", **fields: Any) -> Json:
    """What one request wants. ``where``: a CEL condition of the device's attributes ``has``, of its driver's
    domain."""
    asked: Json = {"deviceClassName": driver, **fields}
    if where:
        expression = where.replace("has.", f'device.attributes["{driver}"].')
        asked["selectors"] = [{"cel": {"expression": expression}}]
    return asked


def claim_spec(*requests: Json) -> Json:
    """The spec of a claim. A request is that of `wanted` with its ``name``, or a ``firstAvailable``."""
    return {"devices": {"requests": [_request(each) for each in requests]}}


def _request(given: Json) -> Json:
    if "firstAvailable" in given:
        return given
    return {"name": given["name"], "exactly": {key: given[key] for key in given if key != "name"}}


def claiming_pod(name: str, runs_s: float, claim: Json | None = None, resource: str = "") -> Json:
    """A pod that shows its devices. ``claim``: ``resourceClaimName`` or ``resourceClaimTemplateName``; else
    ``resource``: one of these."""
    container: Json = {
        "name": "main",
        "image": CUDA,
        "imagePullPolicy": "Never",
        "command": ["python", "-u", "-c", SHOWS_DEVICES % runs_s],
    }
    spec: Json = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    if claim is not None:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", **claim}]
    else:
        container["resources"] = {"limits": {resource: "1"}}
    return {"metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True, slots=True)
class Seen:
    """A claim as a watch told of it. ``at_ms``: when, since 1970; ``kind``: ADDED, MODIFIED or DELETED."""

    at_ms: int
    kind: str
    claim: Json

    @property
    def allocation(self) -> Json | None:
        """Its allocation; None before and after it."""
        found: Json | None = self.claim.get("status", {}).get("allocation")
        return found if self.kind != "DELETED" else None


@dataclass(slots=True)
class ClaimWatch:
    """All that a watch of the namespace's claims has told."""

    seen: list[Seen] = field(default_factory=list)

    def of(self, is_it: Callable[[Json], bool]) -> list[Seen]:
        """What it told of the claims that are so."""
        return [each for each in self.seen if is_it(each.claim)]


@contextmanager
def watching(world: World) -> Iterator[ClaimWatch]:
    """A watch of the namespace's claims, in a thread, from now on."""
    api = world.stack.cp.api
    target = urlsplit(api.url)
    tls = ssl.create_default_context(cafile=str(api.ca_file))
    connection = http.client.HTTPSConnection(target.hostname or "", target.port, context=tls)
    connection.request("GET", f"{CLAIMS}?watch=1", headers={"Authorization": f"Bearer {api.token}"})
    answer = connection.getresponse()
    watch = ClaimWatch()

    def read() -> None:
        try:
            for line in answer:
                event = json.loads(line)
                watch.seen.append(Seen(int(time.time() * 1000), event["type"], event["object"]))
        except (OSError, ValueError, AttributeError):  # closed below, in mid-line or between two
            return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        connection.close()
        thread.join(LONGEST_S)


@contextmanager
def prepared(world: World, classes: Mapping[str, str]) -> Iterator[None]:
    """The namespace and the classes, each driver with its extended resource or "", once the policies let the
    namespace's claims pass. All devices of these drivers count as GPUs. Nothing of it stays."""
    try:
        _prepare(world, classes)
        yield
    finally:
        _remove(world, classes)


def _prepare(world: World, classes: Mapping[str, str]) -> None:
    call = world.stack.cp.api.call
    rules = {"drivers": {driver: {"gpus": "all"} for driver in classes}}
    call(
        "POST", _CONFIG_MAPS, {"metadata": {"name": _SETTINGS}, "data": {"_settings": yaml.safe_dump(rules)}}
    )
    labels = {"bursar.dev/mode": "meter", ADMIN_LABEL: "true"}
    call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    for driver, resource in classes.items():
        call("POST", CLASSES, device_class(driver, resource))
    world.until("the account", lambda: world.stack.exists(f"{PODS[:-5]}/serviceaccounts/default"))
    (driver, *_) = classes
    body = {"metadata": {"name": "dry"}, "spec": claim_spec({"name": "x", **wanted(driver)})}
    kubectl = world.stack.cp.kubectl
    text = json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body})
    dry = ("create", "--dry-run=server", "-n", NAMESPACE, "-f", "-")
    world.until("claims to pass", lambda: kubectl(*dry, input=text).returncode == 0)
    container = {"name": "main", "image": CUDA, "resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}
    long = {"terminationGracePeriodSeconds": 3_000, "containers": [container]}

    def is_left_alone() -> bool:
        try:
            call("POST", f"{PODS}?dryRun=All", {"metadata": {"name": "dry"}, "spec": long})
        except ApiError:
            return False
        return True

    world.until("both workers to refuse nothing here", lambda: all(at_once(is_left_alone)))


def _remove(world: World, classes: Mapping[str, str]) -> None:
    call = world.stack.cp.api.call
    call("DELETE", PODS, {"gracePeriodSeconds": 0})
    call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    call("DELETE", f"{_CONFIG_MAPS}/{_SETTINGS}")
    for driver in classes:
        call("DELETE", f"{CLASSES}/{driver}")
    world.until("the namespace to be gone", lambda: not world.stack.exists(PODS[:-5]))


def pod(world: World, name: str) -> Json:
    """The pod as it is now."""
    found: Json = world.stack.cp.api.call("GET", f"{PODS}/{name}")
    return found


def begun(world: World, name: str) -> bool:
    """Whether its container runs, or has ended."""
    return not state(pod(world, name), "main").keys().isdisjoint(("running", "terminated"))


def sessions(world: World) -> dict[str, Json]:
    """The sessions of the namespace's claims, by the claim's name."""
    listed = world.stack.get(f"/v1/sessions?namespace={NAMESPACE}", world.reader)["sessions"]
    return {each["pod"]: each for each in listed}


def devices_of(world: World, name: str) -> dict[str, str]:
    """The variables that the pod's container has shown."""
    (line,) = world.node.output(pod(world, name), "main")
    found: dict[str, str] = json.loads(line)
    return found
