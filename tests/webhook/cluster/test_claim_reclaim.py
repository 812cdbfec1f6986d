"""Reclaim for device claims by a real API server, kube-scheduler, webhook and timekeeper with the rights and
policies of the manifests, where DeviceTaintRules are served, by Kubernetes 1.37 unasked: the heir gets the
device, and nobody else."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.tools import KUBERNETES
from tests.support.control_plane import apply_files, refused
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.timekeeper.processes import prepared
from tests.webhook.cluster.test_claims import (
    EXPLICIT,
    GROUP,
    a_slice,
    account,
    by,
    device_class,
    exactly,
    named,
    of,
    pod,
)
from tests.webhook.clusters import MANIFESTS, Registered
from tests.worlds import Json

pytestmark = pytest.mark.kubernetes("1.36")

VERSION = "v1" if KUBERNETES.series >= (1, 37) else "v1beta2"
RULES = f"/apis/resource.k8s.io/{VERSION}/devicetaintrules"
TIMEKEEPER = "system:serviceaccount:bursar-system:bursar-timekeeper"
TOKEN = "0" * 32
# two seconds of one GPU
SPENT = "gpuHours: 0.00056\nonExhausted: reclaim"
ENTRIES = {"rich": "gpuHours: 1000", "poor": SPENT, "broke": SPENT}
DEVICES = 2


class World:
    """A node with two devices, and pods that each ask for one by a template."""

    def __init__(self, cluster: Registered) -> None:
        self.cluster, self.api = cluster, cluster.cp.api

    def creates(self, namespace: str, name: str, **spec: Any) -> None:
        """A pod with a claim of its own on one device."""
        whole = pod(name, by("template", "one"), terminationGracePeriodSeconds=1, **spec)
        self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", whole)

    def is_bound(self, namespace: str, name: str) -> bool:
        pods = self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return any(each["metadata"]["name"] == name and each["spec"].get("nodeName") for each in pods)

    def pods(self, namespace: str) -> set[str]:
        items = self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {each["metadata"]["name"] for each in items}

    def allocations(self) -> list[tuple[str, str]]:
        """Device and namespace of each result of each allocation."""
        claims = self.api.call("GET", f"{GROUP}/resourceclaims")["items"]
        return sorted(
            (result["device"], each["metadata"]["namespace"])
            for each in claims
            for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        )

    def rules(self) -> list[Json]:
        found: list[Json] = self.api.call("GET", RULES)["items"]
        return found

    def events(self, namespace: str, name: str) -> dict[str, str]:
        """Reason and note of Bursar's Events about the pod."""
        items = self.api.call("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
        ours = (each for each in items if each.get("reportingController") == "bursar.dev/timekeeper")
        return {each["reason"]: each["note"] for each in ours if each["regarding"]["name"] == name}


def rule(name: str, key: str = "heir.bursar.dev/rich", labelled: bool = True, **selector: str) -> Json:
    """A DeviceTaintRule as the timekeeper writes it."""
    labels = {"bursar.dev/heir": "gone"} if labelled else {}
    notes = {"bursar.dev/heir": "rich/gone", "bursar.dev/heir-until": "2100-01-01T00:00:00Z"}
    taint = {"key": key, "value": TOKEN, "effect": "NoSchedule"}
    one = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "d1"} | selector
    spec = {"deviceSelector": {part: value for part, value in one.items() if value}, "taint": taint}
    return {"metadata": {"name": name, "labels": labels, "annotations": notes}, "spec": spec}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    cp, folder = control_plane, tmp_path_factory.mktemp
    rich, poor, broke = (entry("IN_BUDGET") for _ in ENTRIES)
    document = standings(rich=rich, poor=poor, broke=broke)
    with ExitStack() as stack:
        flag = f"--kubeconfig={cp.folder / 'bursar-webhook.kubeconfig'}"
        made = Registered(cp, folder("webhook"), flag, document=document)
        apply_files(cp, [MANIFESTS / "00-namespace.yaml", MANIFESTS / "rbac.yaml"])
        apply_files(cp, [MANIFESTS / "priority-classes.yaml", *sorted(MANIFESTS.glob("admission-*.yaml"))])
        _, kubeconfig = (account(made, each) for each in ("bursar-webhook", "bursar-timekeeper"))
        made.post("/api/v1/nodes", kwok_node("n1"))
        made.post(f"{GROUP}/deviceclasses", device_class("gpu", "gpu.nvidia.com"))
        slices = a_slice("n1", "gpu.nvidia.com", DEVICES)
        for each in slices["spec"]["devices"]:
            each["attributes"] = {"type": {"string": "gpu"}, "productName": {"string": "A100"}}
        made.post(f"{GROUP}/resourceslices", slices)
        made.post(RULES, rule("left-behind"))
        config_maps = "/api/v1/namespaces/bursar-system/configmaps"
        entries = {"_settings": "lookahead: 0s", **ENTRIES}
        made.post(config_maps, named("bursar-budgets") | {"data": entries})
        stack.enter_context(made)
        for namespace in (*ENTRIES, "other"):
            made.post("/api/v1/namespaces", named(namespace))
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            eventually(lambda path=path: cp.api.answers(path), "the namespace's account")  # type: ignore[misc]
            template = named("one") | {"spec": {"spec": of(exactly("gpu"))}}
            made.post(f"{GROUP}/namespaces/{namespace}/resourceclaimtemplates", template)
        timekeeper = stack.enter_context(prepared(folder("timekeeper"), kubeconfig))
        timekeeper.start_ready()
        cp.start_scheduler()
        yield World(made)


def test_a_taint_that_was_left_behind_is_removed(world: World) -> None:
    eventually(lambda: world.rules() == [], lambda: str(world.rules()))


def test_a_pod_in_budget_gets_the_device_of_one_over_budget_before_everybody_else(world: World) -> None:
    """A pod of higher priority waits for a device, too, and has no right to one of theirs."""
    for name in ("first", "second"):
        world.creates("poor", name)
    eventually(lambda: all(world.is_bound("poor", each) for each in ("first", "second")), "the debtors")
    world.api.call(
        "POST",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        named("dear") | {"value": 900_000},
    )
    world.creates("other", "greedy", priorityClassName="dear")
    world.creates("rich", "heir")

    eventually(lambda: world.is_bound("rich", "heir"), lambda: str(world.events("rich", "heir")))
    eventually(lambda: world.rules() == [], lambda: str(world.rules()))
    eventually(lambda: len(world.pods("poor")) == 1, lambda: str(world.pods("poor")))

    assert [namespace for _, namespace in world.allocations()] in (["poor", "rich"], ["rich", "poor"])
    assert len({device for device, _ in world.allocations()}) == DEVICES
    assert not world.is_bound("other", "greedy")
    assert "A taint keeps it for this pod's claim" in world.events("rich", "heir")["VictimsEvicted"]


def test_a_pod_whose_claims_need_two_devices_gets_those_of_two_pods_over_budget(world: World) -> None:
    path = f"{GROUP}/namespaces/rich/resourceclaimtemplates"
    two = named("two") | {"spec": {"spec": of(exactly("gpu"), exactly("gpu"))}}
    world.api.call("POST", path, two)
    for namespace in ("rich", "other", "poor"):
        for name in world.pods(namespace):
            world.api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
    eventually(lambda: world.allocations() == [], lambda: str(world.allocations()))
    for name in ("first", "second"):
        world.creates("broke", name)
    eventually(lambda: len(world.allocations()) == DEVICES, lambda: str(world.allocations()))
    world.api.call("POST", "/api/v1/namespaces/rich/pods", pod("pair", by("template", "two")))

    eventually(lambda: world.is_bound("rich", "pair"), lambda: str(world.events("rich", "pair")))
    eventually(lambda: world.rules() == [], lambda: str(world.rules()))
    assert {namespace for _, namespace in world.allocations()} == {"rich"}
    assert len(world.allocations()) == DEVICES
    assert (
        "2 devices of this pod's claims. A taint keeps each" in world.events("rich", "pair")["VictimsEvicted"]
    )


def test_a_pod_that_asks_by_a_limit_gets_the_device_of_one_over_budget_too_and_a_quota_is_told(
    world: World,
) -> None:
    """Its claim is made while it is allocated, so nothing keeps the device."""
    for namespace in ("rich", "other", "broke"):
        for name in world.pods(namespace):
            world.api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
    eventually(lambda: world.allocations() == [], lambda: str(world.allocations()))
    limits = {f"{EXPLICIT}gpu": "1"}
    for name in ("again-1", "again-2"):
        world.creates("broke", name)
    eventually(lambda: len(world.allocations()) == DEVICES, lambda: str(world.allocations()))
    world.api.call("POST", "/api/v1/namespaces/rich/pods", pod("by-limit", limits=limits))

    eventually(lambda: world.is_bound("rich", "by-limit"), lambda: str(world.events("rich", "by-limit")))
    assert world.rules() == []
    assert "another claim may get it first" in world.events("rich", "by-limit")["VictimsEvicted"]

    for name in world.pods("broke"):
        world.api.call("DELETE", f"/api/v1/namespaces/broke/pods/{name}?gracePeriodSeconds=0")
    none = named("none") | {"spec": {"hard": {"count/resourceclaims.resource.k8s.io": "0"}}}
    world.api.call("POST", "/api/v1/namespaces", named("strict"))
    strict = "/api/v1/namespaces/strict"
    eventually(lambda: world.api.answers(f"{strict}/serviceaccounts/default"), "the namespace's account")
    world.api.call("POST", f"{strict}/resourcequotas", none)
    world.api.call("POST", f"{strict}/pods", pod("refused", limits=limits))

    def condition() -> Json:
        found = world.api.call("GET", f"{strict}/pods/refused")["status"].get("conditions", [])
        return next((one for one in found if one["type"] == "PodScheduled"), {})

    eventually(lambda: condition().get("reason") == "SchedulerError", lambda: str(condition()))
    assert 'plugin "DynamicResources"' in condition()["message"]


def test_nobody_tolerates_the_taint_of_another_claim(world: World) -> None:
    own = {"key": "heir.bursar.dev/other", "operator": "Equal", "value": TOKEN, "effect": "NoSchedule"}
    wrong: tuple[Json, ...] = (
        own | {"key": "heir.bursar.dev/rich"},
        {"key": "heir.bursar.dev/other", "operator": "Exists", "effect": "NoSchedule"},
        {"operator": "Exists"},
    )
    for number, each in enumerate(wrong):
        # which the webhook leaves as they are
        two = [exactly("gpu", tolerations=[each]), exactly("gpu", count=8)]
        body = named(f"thief-{number}") | {"spec": of(*two)}
        said = refused(world.cluster.cp, "POST", f"{GROUP}/namespaces/other/resourceclaims", body)
        assert "[claim-toleration]" in said, each
    template = named("thief") | {"spec": {"spec": of(exactly("gpu", tolerations=[own]))}}
    path = f"{GROUP}/namespaces/other/resourceclaimtemplates"
    assert "[claim-toleration]" in refused(world.cluster.cp, "POST", path, template)


def test_each_claim_on_whole_devices_gets_a_toleration_of_its_own(world: World) -> None:
    path = f"{GROUP}/namespaces/other/resourceclaims"
    mine = {"key": "heir.bursar.dev/other", "operator": "Equal", "value": TOKEN, "effect": "NoSchedule"}
    several = of(exactly("gpu", count=2), exactly("gpu", tolerations=[mine]))
    bodies = (
        of(exactly("gpu")),
        of(exactly("gpu", tolerations=[mine])),
        of(exactly("gpu", count=9)),
        several,
    )
    made = [world.api.call("POST", path, named(f"c{n}") | {"spec": each}) for n, each in enumerate(bodies)]
    requests = [each["spec"]["devices"]["requests"] for each in made]
    found = [each[0]["exactly"].get("tolerations", []) for each in requests]

    assert [len(each) for each in found] == [1, 1, 0, 1]
    assert requests[3][1]["exactly"]["tolerations"] == found[3]
    assert {each["key"] for each in (*found[0], *found[1])} == {"heir.bursar.dev/other"}
    assert len({TOKEN, found[0][0]["value"], found[1][0]["value"]}) == 3


def test_the_timekeeper_may_write_no_other_rule(world: World) -> None:
    wrong = (rule("a", key="example.com/x"), rule("b", labelled=False), rule("c", device=""))
    for each in wrong:
        said = refused(world.cluster.cp, "POST", RULES, each, TIMEKEEPER)
        assert "the timekeeper" in said, each
    world.api.call("POST", RULES, rule("theirs", labelled=False))
    assert "the timekeeper" in refused(world.cluster.cp, "DELETE", f"{RULES}/theirs", {}, TIMEKEEPER)
    world.api.call("DELETE", f"{RULES}/theirs")
