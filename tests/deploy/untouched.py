"""A cluster as it is before Bursar: nodes with the labels and resources of NVIDIA's GPU Operator, and two
hundred pods of three schedulers; and what differs in it later."""

from dataclasses import dataclass, field
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.deploy.reading import AGENTS, NAMESPACE
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.worlds import Json

GPU = "nvidia.com/gpu"
PRODUCT, COUNT, MEMORY = f"{GPU}.product", f"{GPU}.count", f"{GPU}.memory"
A100 = {PRODUCT: "NVIDIA-A100-SXM4-40GB", COUNT: "8", MEMORY: "40960"}
SHARED = A100 | {f"{GPU}.replicas": "4", PRODUCT: "Tesla-T4-SHARED"}
MIG = A100 | {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", "nvidia.com/mig.strategy": "single", COUNT: "24"}
# of each kind of node: how many, capacity, labels
NODES: dict[str, tuple[int, Json, Json]] = {
    "whole": (8, {GPU: "8"}, A100),
    "shared": (4, {GPU: "32"}, SHARED),
    "instances": (4, {GPU: "24"}, MIG),
    "amd": (4, {"amd.com/gpu": "8"}, {}),
    "unknown": (1, {GPU: "8"}, {}),
    "plain": (5, {}, {}),
}
DEFAULT, VOLCANO, KAI = "default-scheduler", "volcano", "kai-scheduler"


@dataclass(frozen=True, slots=True)
class Kind:
    """``count`` pods for nodes of a kind; each is charged at ``rate_milli``, 0: not at all. The default
    scheduler places its own; the tests bind those of the others, as these would."""

    count: int
    scheduler: str
    nodes: str
    limits: Json
    rate_milli: int
    annotations: Json = field(default_factory=dict)
    claim: str = ""  # name of the resource claim that it holds


PODS = {
    "whole": Kind(40, DEFAULT, "whole", {GPU: "1"}, 1000),
    "replica": Kind(40, VOLCANO, "shared", {GPU: "1"}, 250),
    "instance": Kind(40, DEFAULT, "instances", {GPU: "1"}, 286),
    "radeon": Kind(15, DEFAULT, "amd", {"amd.com/gpu": "2"}, 2000),
    "fraction": Kind(30, KAI, "whole", {}, 500, {"gpu-fraction": "0.5"}),
    "plain": Kind(30, DEFAULT, "plain", {"cpu": "100m"}, 0),
    # what one pod of its own kind shows
    "forger": Kind(1, DEFAULT, "whole", {GPU: "1"}, 1000, {"bursar.dev/standing": "UNLIMITED"}),
    "guessed": Kind(1, VOLCANO, "unknown", {GPU: "1"}, 1000),
    "claiming": Kind(1, VOLCANO, "whole", {}, 0, claim="one"),
    "unreadable": Kind(1, VOLCANO, "whole", {GPU: "1", "tencent.com/vcuda-core": "10"}, 1000),
    "waiting": Kind(1, DEFAULT, "nowhere", {GPU: "1"}, 0),
}
TEAMS = ("team-a", "team-b")


def populate(cp: ControlPlane) -> None:
    """All nodes and pods. Returns when nothing moves any more."""
    for kind, (count, capacity, labels) in NODES.items():
        for number in range(count):
            node = kwok_node(f"{kind}-{number}", capacity=capacity, labels={"kind": kind} | labels)
            cp.api.call("POST", "/api/v1/nodes", node)
    for team in TEAMS:
        create_namespace(cp, team)
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}
    cp.api.call("POST", f"/apis/resource.k8s.io/v1/namespaces/{TEAMS[0]}/resourceclaims", claim)
    cp.start_scheduler()
    for name, (team, each) in pods().items():
        path = f"/api/v1/namespaces/{team}/pods"
        cp.api.call("POST", path, manifest(name, each))
        if each.scheduler != DEFAULT:
            target = {"kind": "Node", "name": f"{each.nodes}-{number_of(name) % NODES[each.nodes][0]}"}
            cp.api.call("POST", f"{path}/{name}/binding", {"metadata": {"name": name}, "target": target})
    eventually(lambda: not moving(cp), lambda: moving(cp))


def pods() -> dict[str, tuple[str, Kind]]:
    """By name: namespace and kind."""
    every = [(f"{name}-{number}", kind) for name, kind in PODS.items() for number in range(kind.count)]
    return {name: (TEAMS[kind.claim == "" and number_of(name) % 2], kind) for name, kind in every}


def number_of(name: str) -> int:
    """Of its kind."""
    return int(name.rpartition("-")[2])


def manifest(name: str, kind: Kind) -> Json:
    """As a user writes it."""
    container: Json = {"name": "main", "image": "app", "resources": {"limits": kind.limits}}
    spec: Json = {
        "containers": [container],
        "schedulerName": kind.scheduler,
        "nodeSelector": {"kind": kind.nodes},
    }
    if kind.claim:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": kind.claim}]
    return {"metadata": {"name": name, "annotations": kind.annotations}, "spec": spec}


def moving(cp: ControlPlane) -> list[str]:
    """Pods that are not what they become: running, or waiting for a node that there is not."""
    found = {}
    for team in TEAMS:
        for each in cp.api.call("GET", f"/api/v1/namespaces/{team}/pods")["items"]:
            found[each["metadata"]["name"]] = each["status"]
    waits = {name for name, (_, kind) in pods().items() if kind.nodes == "nowhere"}
    is_tried = {name for name, status in found.items() if status.get("conditions")}
    running = {name for name, status in found.items() if status["phase"] == "Running"}
    return sorted(pods().keys() - running - (waits & is_tried))


# Fields that are written by the clock: kubelets send heartbeats and renew Leases, here by kwok.
_TICKING = {
    "nodes": ("resourceVersion", "time", "lastHeartbeatTime"),
    "leases": ("resourceVersion", "time", "renewTime"),
}


def objects(cp: ControlPlane) -> dict[str, Json]:
    """Every object that the API server has, by its path; without what the clock writes."""
    found: dict[str, Json] = {}
    groups = [each["preferredVersion"]["groupVersion"] for each in cp.api.call("GET", "/apis")["groups"]]
    for root in ("/api/v1", *(f"/apis/{each}" for each in groups)):
        for resource in cp.api.call("GET", root)["resources"]:
            if "list" not in resource["verbs"] or "/" in resource["name"]:
                continue
            for item in cp.api.call("GET", f"{root}/{resource['name']}")["items"]:
                metadata = item["metadata"]
                if resource["name"] == "events":
                    found[_event(root, item)] = {}
                    continue
                path = f"{root}/{resource['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                metadata.get("managedFields", []).sort(key=_manager)
                found[path] = _still(item, _TICKING.get(resource["name"], ()))
    return found


def _event(root: str, item: Json) -> str:
    """What, of whom and by whom: kube-scheduler says again every few minutes, in the same Event or another,
    that it has no node for a pod."""
    about = item.get("involvedObject") or item["regarding"]
    by = (
        item.get("reportingComponent")
        or item.get("reportingController")
        or item.get("source", {}).get("component")
    )
    return f"{root}/events/{about.get('namespace', '')}/{about['name']}: {item['reason']} by {by}"


def _manager(entry: Json) -> tuple[str, ...]:
    """A write of kwok moves its entry to the end of the list."""
    return tuple(str(entry.get(key, "")) for key in ("manager", "operation", "subresource", "apiVersion"))


def _still(value: Any, ticking: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _still(each, ticking) for key, each in value.items() if key not in ticking}
    return [_still(each, ticking) for each in value] if isinstance(value, list) else value


def differing(before: dict[str, Json], after: dict[str, Json]) -> set[str]:
    """The paths of objects that came, went or changed, and that are not Bursar's own."""
    differ = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return {path for path in differ if not is_ours(path, after.get(path, before.get(path, {})))}


def is_ours(path: str, item: Json) -> bool:
    """Whether Bursar is installed by it, or it is in Bursar's namespaces."""
    labels = item.get("metadata", {}).get("labels") or {}
    served = item.get("spec", {}).get("parentRef", {}).get("namespace")  # of the address of a Service
    ours = (NAMESPACE, AGENTS)
    is_there = any(f"/{each}/" in path or path.endswith(f"//{each}") for each in ours) or served in ours
    return is_there or labels.get("app.kubernetes.io/part-of") == "bursar" or path.endswith("//bursar-reader")
