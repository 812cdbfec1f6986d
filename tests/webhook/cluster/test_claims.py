"""Pods with device claims, on a real API server with webhook, policies, kube-scheduler and timekeeper: they
meet the rules of pods with limits, and a tenant with `edit` gets around none of them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.support.control_plane import apply, apply_files, refused
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.timekeeper.processes import Process as Timekeeper
from tests.timekeeper.processes import prepared
from tests.webhook.clusters import MANIFESTS, Registered
from tests.worlds import Json

GROUP = "/apis/resource.k8s.io/v1"
PROTECTION = "resource.kubernetes.io/delete-protection"
GATE = {"name": "bursar.dev/budget"}
EXPLICIT = "deviceclass.resource.kubernetes.io/"
CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"
TENANT = "tess"
RBAC = "rbac.authorization.k8s.io"
EDITOR = {
    "apiVersion": f"{RBAC}/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "edit"},
    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
    "subjects": [{"apiGroup": RBAC, "kind": "User", "name": TENANT}],
}
# class -> driver, each with eight devices on the node
CLASSES = {"h100": "gpu.nvidia.com", "nic": "nic.example.com", "odd": "odd.example.com"}
# namespaces, each with its budget entry
ENTRIES = {
    "open": "gpuHours: 1000\nperiod: month",
    "hold": "gpuHours: 0\nperiod: month\nonExhausted: hold",
    "deny": "gpuHours: 0\nperiod: month\nonExhausted: deny",
    "lower": "gpuHours: 0\nperiod: month",
}


class World:
    """The cluster; the webhook is told the standings that the entries come to."""

    def __init__(self, cluster: Registered, timekeeper: Timekeeper) -> None:
        self.cluster, self.timekeeper, self.api = cluster, timekeeper, cluster.cp.api

    def create(self, namespace: str, resource: str, body: Json, user: str = TENANT) -> str:
        """What the creation by this user is refused with; empty where it is not."""
        group = GROUP if resource.startswith("resourceclaim") else "/api/v1"
        return refused(self.cluster.cp, "POST", f"{group}/namespaces/{namespace}/{resource}", body, user)

    def template(self, namespace: str, name: str, *requests: Json) -> None:
        """A template by its tenant."""
        said = self.create(
            namespace, "resourceclaimtemplates", {**named(name), "spec": {"spec": of(*requests)}}
        )
        assert said == ""

    def pod(self, namespace: str, name: str, *claims: Json, **spec: Any) -> str:
        """What the creation of a pod with these claims is refused with."""
        return self.create(namespace, "pods", pod(name, *claims, **spec))

    def get(self, namespace: str, name: str) -> Json:
        """The pod as it is."""
        found: Json = self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def is_bound(self, namespace: str, name: str) -> bool:
        """Whether a scheduler has placed it."""
        return "nodeName" in self.get(namespace, name)["spec"]

    def wait_bound(self, namespace: str, name: str) -> None:
        """Until a scheduler has placed it."""
        eventually(lambda: self.is_bound(namespace, name), f"{namespace}/{name} to be bound")

    def annotation(self, namespace: str, name: str) -> str | None:
        """How many GPUs admission has counted."""
        value = self.get(namespace, name)["metadata"].get("annotations", {}).get("bursar.dev/claims")
        return None if value is None else str(value)


def named(name: str) -> Json:
    """An object with this name."""
    return {"metadata": {"name": name}}


def of(*requests: Json) -> Json:
    """The spec of a claim."""
    return {"devices": {"requests": [{"name": f"r{n}", **each} for n, each in enumerate(requests)]}}


def exactly(name: str, **fields: Any) -> Json:
    """A request of one class."""
    return {"exactly": {"deviceClassName": name, **fields}}


def by(kind: str, name: str) -> Json:
    """An entry of a pod's claims: of a claim or a template."""
    return {"name": name, {"claim": "resourceClaimName", "template": "resourceClaimTemplateName"}[kind]: name}


def pod(name: str, *claims: Json, limits: Json | None = None, **spec: Any) -> Json:
    """A pod with these claims."""
    container: Json = {"name": "main", "image": "x"} | ({"resources": {"limits": limits}} if limits else {})
    return named(name) | {"spec": {"containers": [container], "resourceClaims": list(claims), **spec}}


def device_class(name: str, driver: str) -> Json:
    """A class of this driver."""
    return named(name) | {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}}


def a_slice(node: str, driver: str, devices: int = 8) -> Json:
    """A node's devices of one driver."""
    return named(f"{node}-{driver}") | {
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"d{number}"} for number in range(devices)],
        }
    }


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node with eight devices of each driver, a namespace for each budget, and a tenant with `edit`."""
    folder = tmp_path_factory.mktemp
    spent = {"remaining": 0, "ratio": 1000}
    document = standings(
        open=entry("IN_BUDGET"),
        hold=entry("OVER_BUDGET", onExhausted="hold", **spent),
        deny=entry("OVER_BUDGET", onExhausted="deny", **spent),
        lower=entry("OVER_BUDGET", **spent),
    )
    with ExitStack() as stack:
        flag = f"--kubeconfig={control_plane.folder / 'bursar-webhook.kubeconfig'}"
        made = Registered(control_plane, folder("webhook"), flag, document=document)
        apply_files(control_plane, [MANIFESTS / "rbac.yaml", *sorted(MANIFESTS.glob("admission-*.yaml"))])
        _, kubeconfig = (account(made, each) for each in ("bursar-webhook", "bursar-timekeeper"))
        for namespace in ENTRIES:
            made.post("/api/v1/namespaces", named(namespace))
            apply(control_plane, EDITOR, namespace=namespace)
        made.post("/api/v1/nodes", kwok_node("n1"))
        for name, driver in CLASSES.items():
            made.post(f"{GROUP}/deviceclasses", device_class(name, driver))
            made.post(f"{GROUP}/resourceslices", a_slice("n1", driver))
        settings = {"_settings": "settleAfter: 2s", **ENTRIES}
        made.post(CONFIG_MAPS, named("bursar-budgets") | {"data": settings})
        made.patch(f"{CONFIG_MAPS}/bursar-device-classes", {"data": {"noGPUDrivers": "nic.example.com"}})
        stack.enter_context(made)
        timekeeper = stack.enter_context(prepared(folder("timekeeper"), kubeconfig))
        timekeeper.start_ready()
        control_plane.start_scheduler()
        world = World(made, timekeeper)
        default = "/api/v1/namespaces/open/serviceaccounts/default"
        eventually(lambda: control_plane.api.answers(default), "the namespace's account")
        world.template("open", "one", exactly("h100"))
        eventually(
            lambda: dry(world, "open", by("template", "one")) == "1", "the webhook to know the template"
        )
        yield world


def account(cluster: Registered, name: str) -> Path:
    """A kubeconfig with the rights that the manifests give to this account."""
    token = cluster.kubectl("create", "token", name, "-n", "bursar-system").strip()
    return cluster.cp.kubeconfig(token, name)


def dry(world: World, namespace: str, *claims: Json, **spec: Any) -> str | None:
    """How many GPUs admission counts for such a pod, which is not stored; None: it does not govern it."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    made: Json = world.api.call("POST", path, pod("dry", *claims, **spec))
    value = made["metadata"].get("annotations", {}).get("bursar.dev/claims")
    return None if value is None else str(value)


def test_a_pod_with_a_claim_is_governed_and_kept_with_the_clusters_scheduler(world: World) -> None:
    assert world.pod("open", "first", by("template", "one")) == ""
    assert world.pod("open", "theirs", by("template", "one"), schedulerName="bursar-scheduler") == ""

    for name in ("first", "theirs"):
        world.wait_bound("open", name)
        made = world.get("open", name)
        spec, metadata = made["spec"], made["metadata"]
        assert metadata["labels"]["bursar.dev/governed"] == "true"
        assert metadata["annotations"]["bursar.dev/claims"] == "1"
        assert (spec["schedulerName"], spec["priorityClassName"]) == (
            "default-scheduler",
            "gpu-default-priority",
        )
        assert "initContainers" not in spec, "a sidecar"


def test_a_spent_budget_holds_refuses_or_demotes_a_pod_with_a_claim(world: World) -> None:
    for namespace in ("hold", "deny", "lower"):
        world.template(namespace, "two", exactly("h100", count=2))
    eventually(lambda: dry(world, "lower", by("template", "two")) == "2", "the webhook to know the templates")

    assert world.pod("hold", "waits", by("template", "two")) == ""
    assert "onExhausted: deny" in world.pod("deny", "refused", by("template", "two"))
    assert world.pod("lower", "demoted", by("template", "two")) == ""

    held = world.get("hold", "waits")
    assert held["spec"]["schedulingGates"] == [GATE]
    assert held["spec"]["priorityClassName"] == "gpu-default-priority"
    eventually(lambda: world.is_bound("lower", "demoted"), "the pod of a lower class")
    assert world.get("lower", "demoted")["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert not world.is_bound("hold", "waits")

    ten = "gpuHours: 10\nperiod: month\nonExhausted: hold"
    world.cluster.patch(f"{CONFIG_MAPS}/bursar-budgets", {"data": {"hold": ten}})
    eventually(lambda: world.is_bound("hold", "waits"), "the pod to be released")


def test_a_pod_whose_template_is_not_there_yet_is_held_until_it_is_known(world: World) -> None:
    assert world.pod("open", "early", by("template", "later")) == ""
    assert world.pod("open", "network", by("template", "wires")) == ""
    assert world.pod("deny", "network", by("template", "wires")) == ""

    for namespace, name in (("open", "early"), ("open", "network"), ("deny", "network")):
        made = world.get(namespace, name)
        assert made["spec"]["schedulingGates"] == [GATE]
        assert made["metadata"]["annotations"]["bursar.dev/claims"] == "unknown"

    world.template("open", "later", exactly("h100"))
    for namespace in ("open", "deny"):
        world.template(namespace, "wires", exactly("nic"))
    for namespace, name, gpus in (("open", "early", "1"), ("open", "network", "0"), ("deny", "network", "0")):
        world.wait_bound(namespace, name)
        assert world.annotation(namespace, name) == gpus, "what its release records"


def test_devices_that_are_no_gpus_pass_untouched_and_unknown_or_very_many_ones_are_refused(
    world: World,
) -> None:
    world.template("deny", "cable", exactly("nic"))
    world.template("open", "odd", exactly("odd"))
    many = [{"name": f"c{number}", "resourceClaimName": "none"} for number in range(2000)]
    assert "2000 claims" in world.pod("open", "many", *many)
    known = by("template", "odd")
    eventually(lambda: dry_refusal(world, "open", known) != "", "the webhook to know the template")

    eventually(lambda: dry(world, "deny", by("template", "cable")) == "0", "the webhook to know the template")
    assert world.pod("deny", "cable", by("template", "cable")) == ""
    assert "bursar.dev/governed" not in world.get("deny", "cable")["metadata"].get("labels", {})
    assert "odd.example.com is not known" in dry_refusal(world, "open", known)


def dry_refusal(world: World, namespace: str, *claims: Json, **spec: Any) -> str:
    """Why such a pod would be refused; empty where it would not."""
    try:
        dry(world, namespace, *claims, **spec)
    except ApiError as error:
        return str(error)
    return ""


def test_a_limit_of_a_class_counts_as_a_claim(world: World) -> None:
    assert world.pod("open", "limited", limits={f"{EXPLICIT}h100": "2"}) == ""
    assert "onExhausted: deny" in world.pod("deny", "limited", limits={f"{EXPLICIT}h100": "1"})

    assert world.annotation("open", "limited") == "2"
    assert world.get("open", "limited")["spec"]["schedulerName"] == "default-scheduler"


def test_a_tenant_cannot_strip_the_finalizer_of_a_claim_in_use(world: World) -> None:
    path = f"{GROUP}/namespaces/open/resourceclaims/mine"
    assert world.create("open", "resourceclaims", named("mine") | {"spec": of(exactly("h100"))}) == ""
    assert world.pod("open", "mine", by("claim", "mine")) == ""
    world.wait_bound("open", "mine")

    for at in (path, f"{path}/status"):
        said = refused(world.cluster.cp, "PATCH", at, {"metadata": {"finalizers": None}}, TENANT)
        assert "[claim-finalizer]" in said or "cannot patch" in said, said

    def claim() -> Json:
        found: Json = world.api.call("GET", path)
        return found

    assert claim()["metadata"]["finalizers"] == [PROTECTION]
    world.api.call("DELETE", "/api/v1/namespaces/open/pods/mine?gracePeriodSeconds=0")
    eventually(lambda: "allocation" not in claim().get("status", {}), "the controllers to release it")
    assert refused(world.cluster.cp, "DELETE", path, {}, TENANT) == ""


def objects_of_a_tenant() -> dict[str, Json]:
    """Claims, a template and a class as their user's manifests have them, by their paths."""
    other = {"key": "example.com/maintenance", "operator": "Exists"}
    mine = {"key": "heir.bursar.dev/open", "operator": "Equal", "value": "0" * 32, "effect": "NoSchedule"}
    several = of(exactly("h100", count=7), exactly("h100", tolerations=[other, mine]))
    found = (
        ("namespaces/open/resourceclaims/again", "ResourceClaim", of(exactly("h100"))),
        ("namespaces/open/resourceclaims/several", "ResourceClaim", several),
        (
            "namespaces/open/resourceclaimtemplates/again",
            "ResourceClaimTemplate",
            {"spec": of(exactly("h100", tolerations=[other]))},
        ),
        ("deviceclasses/again", "DeviceClass", device_class("again", "gpu.nvidia.com")["spec"]),
    )
    return {
        f"{GROUP}/{at}": {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            **named(at.rsplit("/", 1)[1]),
            "spec": spec,
        }
        for at, kind, spec in found
    }


@pytest.mark.kubernetes("1.36")  # an older API server drops the tolerations
def test_claim_template_and_class_are_applied_again_by_client_and_server_replaced_and_diffed(
    world: World,
) -> None:
    """What Bursar has written into them stays, also where a label of the manifest changes."""
    objects = objects_of_a_tenant()

    def specs() -> dict[str, Json]:
        return {path: world.api.call("GET", path)["spec"] for path in objects}

    def does(verb: str, *flags: str, label: str) -> None:
        labelled = [
            {**one, "metadata": one["metadata"] | {"labels": {"by": label}}} for one in objects.values()
        ]
        whole = {"apiVersion": "v1", "kind": "List", "items": labelled}
        world.cluster.kubectl(verb, *flags, "-n", "open", "-f", "-", input=json.dumps(whole))

    does("apply", label="first")
    created = specs()
    tolerations = [
        [toleration["key"] for toleration in request["exactly"].get("tolerations", [])]
        for path in sorted(path for path in objects if "/resourceclaims/" in path)
        for request in created[path]["devices"]["requests"]
    ]
    by_server = "--server-side", "--force-conflicts"
    for verb, *flags in (["apply"], ["apply", *by_server], ["replace"]):
        for label in ("first", "second"):
            does(verb, *flags, label=label)
            assert specs() == created
    for flags in ([], [*by_server]):
        does("diff", *flags, label="second")

    assert tolerations == [
        ["heir.bursar.dev/open"],
        ["heir.bursar.dev/open"],
        ["example.com/maintenance", "heir.bursar.dev/open"],
    ]
    for path in objects:
        world.api.call("DELETE", path)


@pytest.mark.kubernetes("1.36")  # an older API server drops the tolerations
def test_a_tenant_cannot_tolerate_our_taints(world: World) -> None:
    ours = {"key": "bursar.dev/hold", "operator": "Exists"}
    every = {"operator": "Exists"}
    other = {"key": "example.com/maintenance", "operator": "Exists"}
    for toleration, allowed in ((ours, False), (every, False), (other, True)):
        several = {"firstAvailable": [{"name": "a", "deviceClassName": "h100", "tolerations": [toleration]}]}
        for request in (exactly("h100", tolerations=[toleration]), several):
            spec = of(request)
            claim = world.create("open", "resourceclaims?dryRun=All", named("t") | {"spec": spec})
            template = world.create(
                "open", "resourceclaimtemplates?dryRun=All", named("t") | {"spec": {"spec": spec}}
            )
            assert [("[claim-toleration]" in said) for said in (claim, template)] == [not allowed] * 2
    for spec in ({}, {"devices": {}}, of()):  # the API server writes `requests: null`
        assert world.create("open", "resourceclaims?dryRun=All", named("t") | {"spec": spec}) == ""


def swap(world: World, namespace: str, **spec: Any) -> None:
    """A pod that waits behind a gate of its own, and whose claim was one for a network card when it was
    judged, and is one for a GPU now."""
    path = f"{GROUP}/namespaces/{namespace}/resourceclaims/swapped"
    swapped = by("claim", "swapped")
    assert world.create(namespace, "resourceclaims", named("swapped") | {"spec": of(exactly("nic"))}) == ""
    eventually(lambda: dry(world, namespace, swapped) == "0", "the webhook to know the claim")
    gates = [{"name": "example.com/mine"}]
    assert world.pod(namespace, "swapped", swapped, schedulingGates=gates, **spec) == ""
    assert refused(world.cluster.cp, "DELETE", path, {}, TENANT) == ""
    assert world.create(namespace, "resourceclaims", named("swapped") | {"spec": of(exactly("h100"))}) == ""


def wait_spent(world: World, namespace: str) -> None:
    """Until the policy of allocations knows that the namespace has spent its budget."""
    path = f"{GROUP}/namespaces/{namespace}/resourceclaims"
    world.api.call("POST", path, named("probe") | {"spec": of(exactly("h100"))})
    result = {"request": "r0", "driver": CLASSES["h100"], "pool": "n1", "device": "d0"}
    body = {"status": {"allocation": {"devices": {"results": [result]}}}}
    at = f"{path}/probe/status?dryRun=All"
    eventually(lambda: "[budget-spent]" in refused(world.cluster.cp, "PATCH", at, body), "the policy")


def open_gate(world: World, namespace: str) -> None:
    """Of the pod of `swap`, by its tenant."""
    opened: Json = {"spec": {"schedulingGates": []}}
    path = f"/api/v1/namespaces/{namespace}/pods/swapped"
    assert refused(world.cluster.cp, "PATCH", path, opened, TENANT) == ""


def test_a_claim_that_became_another_gets_no_gpu_of_a_spent_budget_and_its_pod_leaves_once_it_gets_one(
    world: World,
) -> None:
    """A tenant swaps the claim behind a gate of its own: for network cards when the pod is judged, then for a
    GPU."""
    wait_spent(world, "deny")
    swap(world, "deny")
    assert "bursar.dev/governed" not in world.get("deny", "swapped")["metadata"].get("labels", {})
    open_gate(world, "deny")

    def said() -> str:
        return json.dumps(world.get("deny", "swapped")["status"])

    eventually(lambda: "[budget-spent]" in said(), "kube-scheduler to say what kept the pod")
    assert not world.is_bound("deny", "swapped")
    world.cluster.patch(f"{CONFIG_MAPS}/bursar-budgets", {"data": {"deny": ENTRIES["open"]}})

    def end() -> str:
        events = world.api.call("GET", "/apis/events.k8s.io/v1/namespaces/deny/events")["items"]
        return next((each["note"] for each in events if each["reason"] == "ClaimEviction"), "")

    eventually(lambda: "its claims hold 1 GPUs, and were judged for 0" in end(), "the pod to be evicted")

    def leaves() -> bool:
        try:
            return "deletionTimestamp" in world.get("deny", "swapped")["metadata"]
        except ApiError as error:
            return error.status == 404

    eventually(leaves, "the pod to leave")


def test_a_swapped_claim_is_not_kept_by_a_deletion_with_a_long_grace_period(world: World) -> None:
    """The tenant deletes the pod before the timekeeper has seen the allocation. Nothing simulates the
    kubelet, which would use up the grace period."""
    silent = kwok_node("silent")
    del silent["metadata"]["annotations"]
    world.cluster.post("/api/v1/nodes", silent)
    world.cluster.post(f"{GROUP}/resourceslices", a_slice("silent", CLASSES["h100"]))
    path = "/api/v1/namespaces/open/pods/swapped"
    there = {"nodeSelector": {"kubernetes.io/hostname": "silent"}, "tolerations": [{"operator": "Exists"}]}
    swap(world, "open", terminationGracePeriodSeconds=86_400, **there)
    world.timekeeper.kill()
    open_gate(world, "open")
    world.wait_bound("open", "swapped")
    assert refused(world.cluster.cp, "DELETE", path, {}, TENANT) == ""
    assert world.get("open", "swapped")["metadata"]["deletionGracePeriodSeconds"] == 86_400

    world.timekeeper.start_ready()

    def is_short() -> bool:
        return bool(world.get("open", "swapped")["metadata"]["deletionGracePeriodSeconds"] == 30)

    eventually(is_short, "the grace period to be shortened")
