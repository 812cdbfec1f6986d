"""Pods over budget leave for the device of a waiting pod's claim, and a taint keeps the device for it: claims,
pods and budgets in a real settler, an API server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.events import UnqueuedRecorder
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_budget_evictions import pod
from tests.timekeeper.ledger.test_evicting import PDB_429
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, node
from timekeeper.core.decisions import OTHER_POD, RECLAIMED, WAITING
from timekeeper.runtime.connect import connect
from timekeeper.runtime.log import log
from timekeeper.settler.evictions.calls import EvictorContext, view_of
from timekeeper.settler.evictions.claim_reclaim import ReclaimRound
from timekeeper.settler.process import REPORTER

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

CLAIMS, PODS, NODES = "resourceclaims", "pods", "nodes"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
RICH, POOR = "team-a", "team-b"
BUDGETS = {"team_a": "gpuHours: 100", "team_b": "gpuHours: 1\nonExhausted: reclaim"}
TOKEN = "0123456789abcdef" * 2
MESSAGE = "0/1 nodes are available: 1 cannot allocate all claims."


class Reclaiming:
    """A node with devices, claims of two namespaces, and who reclaims. What the API server is asked to do
    happens: pods that are evicted go after their grace period, and so do their claims."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        self.town, self.api = town, api
        self.rules: dict[str, Json] = {}  # DeviceTaintRules by name
        self.written: list[Json] = []  # all that were ever written
        self.are_served = True
        self.refuses: set[str] = set()  # methods that are refused
        api.others = self._answer
        self._server = connect(kubeconfig(folder, url))

    def start(self, *objects: Json, devices: int = 1, **entries: str) -> None:
        """An hour and a minute later: one namespace has used its budget."""
        names = [f"gpu-{place}" for place in range(devices)]
        self.town.begin(
            (NODES, roomy()),
            ("configmaps", budgets(_settings="lookahead: 0s", **(BUDGETS | entries))),
            ("resourceslices", device_slice(*names)),
            *((CLAIMS if "devices" in each["spec"] else PODS, each) for each in objects),
        )
        self.town.clock.turn(HOUR + MINUTE)
        self.begin()

    def begin(self) -> None:
        """Another settler, which has just begun."""
        self.hear()
        town, settler = self.town, self.town.settler
        events = UnqueuedRecorder(self._server, REPORTER, settler.epoch.holder, town.clock, log)
        shared = (town.store, settler.epoch, self._server, events, view_of(settler), town.clock, town.clock)
        self.round = ReclaimRound(EvictorContext(*shared, record=town.recorded.append))

    def restart(self) -> None:
        """The settler is killed, and another one takes over."""
        self.town.restart()
        self.begin()

    def hear(self, ms: int = 0) -> None:
        """Time passes, and the watches are alive."""
        self.town.clock.turn(ms)
        self.town.quiet(CLAIMS)
        self.town.node_heard()
        self.town.tick()

    def turn(self, ms: int) -> list[str]:
        """Time passes, with a step each second; the pods that were evicted."""
        before = len(self.api.evictions)
        for _ in range(ms // SECOND):
            self.hear(SECOND)
            self.round.step()
        return [each["metadata"]["name"] for each in self.api.evictions[before:]]

    def object(self, source: str, name: str) -> Json:
        return next(each for each in self.town.objects[source].values() if each["metadata"]["name"] == name)

    def goes(self, name: str, *claims: str) -> None:
        """The pod has ended, and its claims are gone."""
        self.town.hear(PODS, self.object(PODS, name), deleted=True)
        for each in claims:
            self.town.hear(CLAIMS, self.object(CLAIMS, each), deleted=True)

    def allocates(self, claim: str, device: str, *users: str) -> None:
        """kube-scheduler gives the device to the claim."""
        uids = tuple(f"uid-{each}" for each in users)
        made = self.object(CLAIMS, claim)
        held = device_claim(claim, allocated(device), namespace=RICH, at_ms=self.town.clock(), pods=uids)
        self.town.hear(CLAIMS, made | {"status": held["status"]})

    def _answer(self, method: str, path: str, body: Json) -> tuple[int, Json] | None:
        address = urlsplit(path)
        asked = parse_qs(address.query).get("fieldSelector", [""])[0]
        if address.path.startswith(RULES):
            return self._rules(method, address.path.removeprefix(RULES).strip("/"), body)
        if method != "GET":
            return None
        if address.path.startswith("/apis/resource.k8s.io") and CLAIMS not in address.path:
            return self._served(address.path)
        source = address.path.rpartition("/")[2]
        if source not in (CLAIMS, PODS, NODES) or not asked:
            return None
        field, _, value = asked.partition("=")
        every = self.town.objects[source].values()
        if field == "spec.nodeName":
            return 200, {"items": [each for each in every if each["spec"].get("nodeName") == value]}
        return 200, {"items": [each for each in every if each["metadata"]["name"] == value]}

    def _served(self, path: str) -> tuple[int, Json]:
        if path.endswith("k8s.io"):
            return 200, {"versions": [{"version": "v1"}, {"version": "v1beta2"}]}
        taints = [{"name": "devicetaintrules"}] if self.are_served and path.endswith("v1beta2") else []
        return 200, {"resources": [{"name": CLAIMS}, *taints]}

    def _rules(self, method: str, name: str, body: Json) -> tuple[int, Json]:
        if method in self.refuses:
            return 403, {"message": f"{method} of rules is refused"}
        if method == "GET":
            return 200, {"items": list(self.rules.values())}
        if method == "DELETE":
            return (200, self.rules.pop(name)) if name in self.rules else (404, {"message": "not found"})
        made = body | {"metadata": body["metadata"] | {"name": f"rule-{len(self.written)}"}}
        self.rules[made["metadata"]["name"]] = made
        self.written.append(made)
        return 201, made


def roomy(pods: int = 110, **spec: Any) -> Json:
    """A node with 8 CPUs."""
    made = node(cards=0)
    made["metadata"]["labels"] = {"pool": "gpu"}
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": str(pods)}
    return made | {"spec": spec, "status": {"allocatable": allocatable}}


def user(name: str, namespace: str = POOR, cpu: str = "1", claim: str = "", **fields: Any) -> Json:
    """A pod that admission governed for its claim."""
    made = pod(name, namespace=namespace, **fields)
    made["metadata"]["annotations"] = {"bursar.dev/claims": "1", "bursar.dev/standing": "IN_BUDGET"}
    made["metadata"]["labels"] = {"bursar.dev/governed": "true"} | fields.get("labels", {})
    made["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": claim or f"of-{name}"}]
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def heir(name: str = "heir", **fields: Any) -> Json:
    """A pod of a namespace in budget, whose claim gets no device."""
    made = user(name, **({"namespace": RICH, "node": ""} | fields))
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": MESSAGE,
        "lastTransitionTime": iso(T0),
    }
    made["status"]["conditions"] = [condition]
    return made


def free_claim(name: str, token: str = TOKEN, namespace: str = RICH, **exactly: Any) -> Json:
    """A claim on a device of the class ``gpu`` that holds none."""
    made = device_claim(name, namespace=namespace)
    kept = {
        "key": f"heir.bursar.dev/{namespace}",
        "operator": "Equal",
        "value": token,
        "effect": "NoSchedule",
    }
    tolerations = {"tolerations": [kept]} if token else {}
    made["spec"]["devices"]["requests"][0]["exactly"] |= tolerations | exactly
    return made


def held_claim(name: str, *users: str, device: str = "gpu-0", namespace: str = POOR, **more: Any) -> Json:
    """A claim that holds a device for these pods."""
    uids = tuple(f"uid-{each}" for each in users)
    return device_claim(name, allocated(device), namespace=namespace, at_ms=T0, pods=uids, **more)


@pytest.fixture
def world(town: Town, tmp_path: Path) -> Iterator[Reclaiming]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Reclaiming(town, api, url, tmp_path)


def victim_and_heir(world: Reclaiming, **entries: str) -> None:
    world.start(user("v"), held_claim("of-v", "v"), heir(), free_claim("of-heir"), **entries)


def test_a_debtor_leaves_for_the_claim_of_a_pod_in_budget_and_its_device_is_kept_until_the_claim_has_it(
    world: Reclaiming,
) -> None:
    victim_and_heir(world)
    assert world.turn(SECOND) == []
    assert [each["spec"] for each in world.rules.values()] == [
        {
            "deviceSelector": {"driver": DRIVER, "pool": "n1", "device": "gpu-0"},
            "taint": {"key": "heir.bursar.dev/team-a", "value": TOKEN, "effect": "NoSchedule"},
        }
    ]

    assert world.turn(SECOND) == ["v"]
    world.goes("v", "of-v")
    assert world.turn(20 * SECOND) == []
    assert len(world.rules) == 1
    world.allocates("of-heir", "gpu-0", "heir")
    assert world.turn(2 * SECOND) == []

    assert world.rules == {}
    assert [
        (each.kind, each.reason, each.name) for each in world.town.recorded if OTHER_POD in each.figures
    ] == [
        (RECLAIMED, "Reclaimed", "v"),
        (WAITING, "RoomIsMade", "heir"),
    ]
    assert {each["regarding"]["name"]: each["reason"] for each in world.api.events} == {
        "v": "Reclaimed",
        "heir": "RoomIsMade",
    }
    reasons = [body["status"]["conditions"][0]["reason"] for _, body in world.api.patches]
    assert reasons == ["BursarReclaim"]
