"""Pods over budget leave for the device of a waiting pod's claim, and a taint keeps the device for it: claims
and budgets in a real settler, an API server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.events import UnqueuedRecorder
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429
from tests.timekeeper.ledger.test_budget_evictions import VETO_403, VETO_429, WEBHOOK, pod
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, node
from timekeeper.core.decisions import OTHER_POD, RECLAIMED, WAITING
from timekeeper.edge.log import log
from timekeeper.runtime.api_server import event_sender
from timekeeper.runtime.connect import connect
from timekeeper.settler import vetoes
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.claim_reclaim import ReclaimRound
from timekeeper.settler.evictions.reasons import VETOED
from timekeeper.settler.process import REPORTER
from timekeeper.store import fencing
from timekeeper.store.engine.engine import Connection, UnavailableError
from timekeeper.store.fencing import EpochOverError

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
        self.is_served = True  # whether the API server says what it serves
        self.classes: dict[str, list[str]] = {}  # DeviceClasses, each with its expressions
        self.asked: list[str] = []  # names of claims that were read
        self.refuses: set[str] = set()  # methods that are refused
        api.others = self._answer
        self._server = connect(kubeconfig(folder, url))

    def start(self, *objects: Json, devices: int = 1, entries: Mapping[str, str] | None = None) -> None:
        """An hour and a minute later: one namespace has used its budget."""
        names = [f"gpu-{place}" for place in range(devices)]
        self.town.begin(
            (NODES, roomy()),
            ("configmaps", budgets(_settings="lookahead: 0s", **(BUDGETS | dict(entries or {})))),
            ("resourceslices", device_slice(*names)),
            *((CLAIMS if "devices" in each["spec"] else PODS, each) for each in objects),
        )
        self.town.clock.turn(HOUR + MINUTE)
        self.begin()

    def begin(self) -> None:
        """Another settler, which has just begun."""
        self.hear()
        town, settler = self.town, self.town.settler
        events = UnqueuedRecorder(event_sender(self._server), REPORTER, settler.epoch.holder, town.clock, log)
        shared = town.store, settler.epoch, self._server, events, lambda: settler.view, town.clock
        told = town.recorded.append
        self.round = ReclaimRound(EvictorContext(*shared, town.clock, told, settler.vetoes))
        self.round.step()  # the first one only looks

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

    def turn(self, ms: int, every_ms: int = SECOND) -> list[str]:
        """Time passes, with a step each second; the pods that were evicted."""
        before = len(self.api.evictions)
        for _ in range(ms // every_ms):
            self.hear(every_ms)
            self.round.step()
        return [each["metadata"]["name"] for each in self.api.evictions[before:]]

    def object(self, source: str, name: str) -> Json:
        return next(each for each in self.town.objects[source].values() if each["metadata"]["name"] == name)

    def goes(self, name: str, *claims: str) -> None:
        """The pod has ended, and its claims are gone."""
        last = self.object(PODS, name)
        self.town.hear(PODS, last | {"status": last["status"] | _ended(self.town.clock())}, deleted=True)
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
        if method == "DELETE" and address.path.startswith("/apis/resource.k8s.io"):
            return 404, {"message": "the server could not find the requested resource"}
        if method != "GET":
            return None
        if address.path.endswith("/deviceclasses"):
            return self._classes(asked.removeprefix("metadata.name="))
        if address.path.startswith("/apis/resource.k8s.io") and CLAIMS not in address.path:
            return self._served(address.path)
        source = address.path.rpartition("/")[2]
        if source not in (CLAIMS, PODS, NODES) or not asked:
            return None
        field, _, value = asked.partition("=")
        self.asked += [value] if source == CLAIMS else []
        every = self.town.objects[source].values()
        if field == "spec.nodeName":
            return 200, {"items": [each for each in every if each["spec"].get("nodeName") == value]}
        return 200, {"items": [each for each in every if each["metadata"]["name"] == value]}

    def _classes(self, name: str) -> tuple[int, Json]:
        selectors = [{"cel": {"expression": each}} for each in self.classes.get(name, ())]
        found = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
        return 200, {"items": [found] if name in self.classes else []}

    def _served(self, path: str) -> tuple[int, Json]:
        if not self.is_served:
            return 503, {"message": "overloaded"}
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


def _ended(at_ms: int) -> Json:
    """What the kubelet says at last."""
    ended = {"terminated": {"exitCode": 143, "startedAt": iso(T0), "finishedAt": iso(at_ms // 1000 * 1000)}}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": ended}]}


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


def constrained(made: Json) -> Json:
    made["spec"]["devices"]["constraints"] = [{"matchAttribute": "example.com/numa"}]
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
    world.start(user("v"), held_claim("of-v", "v"), heir(), free_claim("of-heir"), entries=entries)


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
        (WAITING, "VictimsEvicted", "heir"),
    ]
    assert {each["regarding"]["name"]: each["reason"] for each in world.api.events} == {
        "v": "Reclaimed",
        "heir": "VictimsEvicted",
    }
    reasons = [body["status"]["conditions"][0]["reason"] for _, body in world.api.patches]
    assert reasons == ["BursarReclaim"]


def test_where_taints_of_devices_are_not_served_the_pod_is_told_that_its_device_is_not_kept(
    world: Reclaiming,
) -> None:
    world.are_served = False
    victim_and_heir(world)

    assert world.turn(2 * SECOND) == ["v"]
    assert world.written == []
    note = next(each["note"] for each in world.api.events if each["regarding"]["name"] == "heir")
    assert "another claim may get it first" in note


def test_no_pod_leaves_for_a_claim_whose_taint_cannot_be_written(world: Reclaiming) -> None:
    world.refuses = {"POST"}
    victim_and_heir(world)

    assert world.turn(30 * SECOND) == []


def test_a_claim_without_a_toleration_of_its_own_gets_a_device_that_nothing_keeps(world: Reclaiming) -> None:
    world.start(user("v"), held_claim("of-v", "v"), heir(), free_claim("of-heir", token=""))

    assert world.turn(2 * SECOND) == ["v"]
    assert world.written == []


@pytest.mark.parametrize(
    "entries",
    [
        {"team_b": "gpuHours: 100\nonExhausted: reclaim"},
        {"team_b": "gpuHours: 1"},
        {"team_b": "gpuHours: 1\nonExhausted: reclaim\nmode: observe"},
        {"team_b": "gpuHours: 1\nonExhausted: reclaim\nplacement: off"},
        {"team_b": "gpuHours: 1\nonExhausted: reclaim\nprotect: {labels: {keep: me}, cards: 1}"},
        {"team_a": "gpuHours: unlimited"},
        {"team_a": "gpuHours: 0"},
        {"team_a": "gpuHours: 100\nmode: observe"},
    ],
)
def test_only_debtors_leave_and_only_for_pods_of_namespaces_in_budget(
    world: Reclaiming, entries: dict[str, str]
) -> None:
    kept = user("v", labels={"keep": "me"})
    world.start(kept, held_claim("of-v", "v"), heir(), free_claim("of-heir"), entries=entries)

    assert world.turn(5 * SECOND) == []
    assert world.written == []


def idle(made: Json) -> Json:
    """The timekeeper has marked it."""
    made["metadata"]["annotations"]["bursar.dev/reclaimable"] = "idle"
    return made


def test_an_idle_pod_leaves_too_with_all_that_share_its_claim_though_its_namespace_is_in_budget(
    world: Reclaiming,
) -> None:
    """Where one of them is not idle, or is protected, none leaves."""
    rich = {"team_b": "gpuHours: 100\nprotect: {labels: {keep: me}, cards: 1}"}
    victims = (idle(user("v", claim="c")), idle(user("w", claim="c")))
    kept = (idle(user("x", claim="d")), user("y", claim="d"), idle(user("z", labels={"keep": "me"})))
    held = (
        held_claim("c", "v", "w"),
        held_claim("d", "x", "y", device="gpu-1"),
        held_claim("of-z", "z", device="gpu-2"),
    )
    waiting = (heir("other"), free_claim("of-other"), heir(), free_claim("of-heir"))
    world.start(*victims, *kept, *held, *waiting, devices=3, entries=rich)

    assert sorted(world.turn(10 * SECOND)) == ["v", "w"]
    said = {each["regarding"]["name"]: each["note"] for each in world.api.events}
    assert "the pod has hardly used its GPUs" in said["v"]
    assert "Idle pods are evicted" in said["heir"]


def ungoverned(made: Json) -> Json:
    made["metadata"]["labels"] = {}
    return made


def with_spec(made: Json, **spec: Any) -> Json:
    made["spec"] |= spec
    return made


def waits_for(made: Json, message: str) -> Json:
    made["status"]["conditions"][0]["message"] = message
    return made


NOMINATED = heir()
NOMINATED["status"]["nominatedNodeName"] = "n1"
AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}}
TWO_CLAIMS = [{"name": "c", "resourceClaimName": "of-heir"}, {"name": "d", "resourceClaimName": "of-v"}]


@pytest.mark.parametrize(
    "waiting",
    [
        ungoverned(heir()),
        with_spec(heir(), preemptionPolicy="Never"),
        with_spec(heir(), resourceClaims=TWO_CLAIMS),
        with_spec(heir(), nodeSelector={"pool": "cpu"}),
        with_spec(heir(), affinity=AFFINITY),
        with_spec(heir(), schedulingGates=[{"name": "bursar.dev/budget"}]),
        waits_for(heir(), "0/1 nodes are available: 1 Insufficient cpu."),
        heir(cpu="7500m"),
        NOMINATED,
    ],
)
def test_nobody_leaves_for_a_pod_that_would_not_get_the_device_or_evicts_nobody(
    world: Reclaiming, waiting: Json
) -> None:
    """Another pod takes a CPU of the node."""
    beside = user("beside", RICH, claim="of-beside")
    beside["spec"]["resourceClaims"] = []
    world.start(user("v"), held_claim("of-v", "v"), beside, waiting, free_claim("of-heir"))

    assert world.turn(5 * SECOND) == []
    assert world.written == []


def test_what_the_pods_that_leave_requested_is_room_for_the_heir(world: Reclaiming) -> None:
    world.start(user("v", cpu="6"), held_claim("of-v", "v"), heir(cpu="7"), free_claim("of-heir"))

    assert world.turn(2 * SECOND) == ["v"]


def test_a_node_that_takes_no_pods_is_left_alone(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.town.hear(NODES, roomy(unschedulable=True))

    assert world.turn(5 * SECOND) == []


@pytest.mark.parametrize(
    "asked",
    [
        free_claim("of-heir", deviceClassName="other"),
        free_claim("of-heir", count=2),
        free_claim("of-heir", allocationMode="All"),
        free_claim("of-heir", adminAccess=True),
        free_claim("of-heir", capacity={"requests": {"memory": "1Gi"}}),
        free_claim("of-heir", selectors=[{"cel": {"expression": "true"}}]),
        free_claim("of-heir", selectors=[{"other": {}}]),
        constrained(free_claim("of-heir")),
    ],
)
def test_nobody_leaves_for_a_claim_that_the_device_is_not_known_to_meet(
    world: Reclaiming, asked: Json
) -> None:
    world.start(user("v"), held_claim("of-v", "v"), heir(), asked)

    assert world.turn(5 * SECOND) == []
    assert world.written == []


def test_a_device_that_was_allocated_on_the_same_terms_meets_the_claim(world: Reclaiming) -> None:
    terms = [{"cel": {"expression": "device.attributes['x'].big"}}]
    held = held_claim("of-v", "v")
    held["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = terms
    world.start(user("v"), held, heir(), free_claim("of-heir", selectors=terms))

    assert world.turn(2 * SECOND) == ["v"]


@pytest.mark.parametrize(
    "published",
    [
        device_slice("gpu-0", allowMultipleAllocations=True),
        device_slice("gpu-0", consumesCounters=[{"counterSet": "s", "counters": {"m": {"value": "1"}}}]),
        device_slice("gpu-0", taints=[{"key": "broken", "effect": "NoSchedule"}]),
        device_slice("gpu-1"),
    ],
)
def test_a_device_that_a_taint_would_not_keep_for_its_heir_is_left_alone(
    world: Reclaiming, published: Json
) -> None:
    victim_and_heir(world)
    world.town.hear("resourceslices", published)

    assert world.turn(5 * SECOND) == []


NICS = "lookahead: 0s\ndrivers: {gpu.example.com: {gpus: [model = A100]}, nic.example.com: {gpus: none}}"


@pytest.mark.parametrize(("driver", "evicted"), [(DRIVER, ["v"]), ("nic.example.com", []), ("odd.com", [])])
def test_pods_leave_only_for_devices_that_are_gpus(
    world: Reclaiming, driver: str, evicted: list[str]
) -> None:
    assert of_model(world, driver, "A100") == evicted


def test_nobody_leaves_for_a_device_that_its_drivers_rule_leaves_out(world: Reclaiming) -> None:
    assert of_model(world, DRIVER, "NIC") == []


def of_model(world: Reclaiming, driver: str, model: str) -> list[str]:
    """Who is evicted, if a pod over budget, which another one has used, has such a device."""
    world.start(user("w", grace_s=601), held_claim("of-w", "w"), user("v"), heir(), free_claim("of-heir"))
    world.town.hear("configmaps", budgets(_settings=NICS, **BUDGETS))
    published = device_slice("other", driver=driver, model=model)
    published["metadata"]["name"] = published["spec"]["pool"]["name"] = "others"
    world.town.hear("resourceslices", published)
    device = allocated("other", driver=driver, pool="others")
    world.town.hear(CLAIMS, device_claim("of-v", device, namespace=POOR, at_ms=T0, pods=("uid-v",)))
    return world.turn(5 * SECOND)


def test_a_pod_with_a_grace_period_longer_than_a_device_is_kept_stays(world: Reclaiming) -> None:
    long = user("v", grace_s=601)
    world.start(long, held_claim("of-v", "v"), heir(), free_claim("of-heir"))

    assert world.turn(5 * SECOND) == []


def test_a_device_that_another_taint_keeps_claims_off_is_left_alone(world: Reclaiming) -> None:
    taint = {"key": "example.com/repair", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": DRIVER, "pool": "n1"}, "taint": taint}
    world.rules["repair"] = {"metadata": {"name": "repair"}, "spec": spec}
    victim_and_heir(world)

    assert world.turn(5 * SECOND) == []
    assert list(world.rules) == ["repair"]


def test_the_device_with_the_fewest_pods_is_chosen_and_all_of_them_leave(world: Reclaiming) -> None:
    three = [user(name, claim="shared") for name in ("p", "q", "r")]
    two = [user(name, claim="pair") for name in ("s", "t")]
    world.start(
        *(*three, *two, heir(), free_claim("of-heir")),
        held_claim("shared", "p", "q", "r"),
        held_claim("pair", "s", "t", device="gpu-1"),
        devices=2,
    )

    assert sorted(world.turn(5 * SECOND)) == ["s", "t"]


def test_of_pods_that_share_a_device_all_leave_or_none(world: Reclaiming) -> None:
    """A PodDisruptionBudget keeps one of two; the other device's pod leaves, and without one nobody does."""
    pair = [user(name, claim="pair") for name in ("s", "t")]
    world.start(*pair, held_claim("pair", "s", "t"), heir(), free_claim("of-heir"))
    world.api.refusals["t"] = (429, PDB_429)

    assert world.turn(30 * SECOND) == []
    assert world.written == []


def test_a_budget_that_allows_fewer_evictions_than_are_needed_keeps_all(world: Reclaiming) -> None:
    pair = [user(name, claim="pair") for name in ("s", "t")]
    world.start(*pair, held_claim("pair", "s", "t"), heir(), free_claim("of-heir"))
    selector = {"matchExpressions": [{"key": "bursar.dev/governed", "operator": "Exists"}]}
    world.api.budgets = [{"spec": {"selector": selector}, "status": {"disruptionsAllowed": 1}}]

    assert world.turn(30 * SECOND) == []


@pytest.mark.parametrize("veto", [VETO_403, VETO_429])
def test_a_pod_whose_eviction_a_webhook_refuses_is_asked_for_ever_more_rarely_and_that_is_said(
    world: Reclaiming, veto: Json
) -> None:
    """First once a minute, then in ten minutes; once the webhook has gone the pod leaves."""
    victim_and_heir(world)
    world.api.refusals["v"] = (veto["code"], veto)
    trials = []
    for _ in range(5):  # of ten minutes
        before = world.api.trials["v"]
        assert world.turn(10 * MINUTE, 10 * SECOND) == []
        trials.append(world.api.trials["v"] - before)

    assert trials[0] in (3, 4, 5)
    assert trials[-1] == 1
    assert world.written == []
    noted = [event["note"] for event in world.api.events if event["reason"] == VETOED]
    assert WEBHOOK in noted[0]
    settler = world.town.settler
    (found,) = vetoes.findings(settler.vetoes, settler.view.charged, world.town.clock())
    assert (found.figures["number"], found.figures["where"]) == (1, "team-b/v")

    del world.api.refusals["v"]
    assert world.turn(11 * MINUTE, 10 * SECOND) == ["v"]
    assert not settler.vetoes


def test_another_device_is_taken_where_one_may_not_be(world: Reclaiming) -> None:
    world.start(
        *(user("v", priority=-1), held_claim("of-v", "v")),
        *(user("w"), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), free_claim("of-heir")),
        devices=2,
    )
    world.api.refusals["v"] = (429, PDB_429)

    assert world.turn(3 * SECOND) == ["w"]
    assert [each["spec"]["deviceSelector"]["device"] for each in world.written] == ["gpu-1"]


def test_a_pod_that_was_created_without_enforcement_keeps_those_that_share_its_device(
    world: Reclaiming,
) -> None:
    old = ungoverned(user("old", claim="of-v"))
    poor = BUDGETS["team_b"]
    world.start(
        old,
        held_claim("of-v", "old"),
        heir(),
        free_claim("of-heir"),
        entries={"team_b": f"{poor}\nmode: meter"},
    )
    world.town.hear("configmaps", budgets(_settings="lookahead: 0s", **BUDGETS))
    world.hear(5 * MINUTE)
    world.town.hear(PODS, user("v", age_ms=-HOUR - 6 * MINUTE))
    world.town.hear(CLAIMS, held_claim("of-v", "old", "v"))
    assert world.turn(5 * SECOND) == []

    world.goes("old")
    world.town.hear(CLAIMS, held_claim("of-v", "v"))
    assert world.turn(12 * SECOND) == ["v"]


def test_a_claim_that_a_controllers_next_pod_would_hold_on_is_left_alone(world: Reclaiming) -> None:
    owners = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    made = user("v")
    made["metadata"]["ownerReferences"] = owners
    world.start(made, held_claim("of-v", "v"), heir(), free_claim("of-heir"))

    assert world.turn(5 * SECOND) == []


def test_a_claim_of_its_pod_alone_ends_with_it(world: Reclaiming) -> None:
    owners = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    made = user("v")
    made["metadata"]["ownerReferences"] = owners
    world.start(made, held_claim("of-v", "v", owner="v"), heir(), free_claim("of-heir"))

    assert world.turn(2 * SECOND) == ["v"]


def leaves(world: Reclaiming, name: str, after_ms: int = 30 * SECOND) -> None:
    made = world.object(PODS, name)
    made["metadata"]["deletionTimestamp"] = iso(world.town.clock() + after_ms)
    world.town.hear(PODS, made)


def test_a_device_that_comes_free_anyway_is_waited_for(world: Reclaiming) -> None:
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w", RICH), held_claim("of-w", "w", device="gpu-1", namespace=RICH)),
        *(heir(), free_claim("of-heir")),
        devices=2,
    )
    leaves(world, "w")
    assert world.turn(20 * SECOND) == []

    world.goes("w", "of-w")
    assert world.turn(2 * SECOND) == [], "kube-scheduler gives it out"
    assert world.turn(3 * SECOND) == ["v"], "it did not"


def test_one_device_that_comes_free_is_for_one_of_two_pods(world: Reclaiming) -> None:
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w", RICH), held_claim("of-w", "w", device="gpu-1", namespace=RICH)),
        *(heir(), free_claim("of-heir"), heir("next"), free_claim("of-next", token="f" * 32)),
        devices=2,
    )
    leaves(world, "w")

    assert world.turn(20 * SECOND) == ["v"]


def test_each_of_several_waiting_pods_gets_a_device_of_its_own(world: Reclaiming) -> None:
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w"), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), free_claim("of-heir"), heir("next"), free_claim("of-next", token="f" * 32)),
        devices=2,
    )

    assert sorted(world.turn(5 * SECOND)) == ["v", "w"]
    assert len({each["spec"]["deviceSelector"]["device"] for each in world.written}) == 2


def test_each_gets_one_of_its_own_where_nothing_keeps_them(world: Reclaiming) -> None:
    world.are_served = False
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w"), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), free_claim("of-heir"), heir("next"), free_claim("of-next")),
        devices=2,
    )

    assert sorted(world.turn(5 * SECOND)) == ["v", "w"]


def test_many_pods_without_a_device_are_looked_at_in_turn_a_few_in_each_step(world: Reclaiming) -> None:
    """The last of 200 is the only one that a debtor's device is for; the evictor has other things to do."""
    names = [f"h{at:03}" for at in range(200)]
    waiting = (each for name in names for each in (heir(name), free_claim(f"of-{name}", deviceClassName="x")))
    world.start(user("v"), held_claim("of-v", "v"), *waiting, heir("z"), free_claim("of-z"))
    world.asked.clear()

    looks = []
    for _ in range(13):
        before = len(world.asked)
        world.hear(SECOND)
        world.round.step()
        looks.append([each for each in world.asked[before:] if each.startswith("of-h")])

    assert [len(each) for each in looks] == [16] * 12 + [8]
    assert len({each for every in looks for each in every}) == 200
    assert [each["metadata"]["annotations"]["bursar.dev/heir"] for each in world.written] == ["team-a/of-z"]


def test_one_device_is_freed_for_a_claim_that_several_pods_wait_for(world: Reclaiming) -> None:
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w"), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), heir("sharer", claim="of-heir"), free_claim("of-heir")),
        devices=2,
    )

    assert len(world.turn(20 * SECOND)) == 1


def test_debtors_that_are_back_in_budget_before_they_leave_stay_and_the_taint_goes(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(SECOND)
    assert len(world.rules) == 1
    entries = BUDGETS | {"team_b": "gpuHours: 100\nonExhausted: reclaim"}
    world.town.hear("configmaps", budgets(_settings="lookahead: 0s", **entries))

    assert world.turn(5 * SECOND) == []
    assert world.rules == {}


def test_nobody_leaves_for_an_heir_whose_namespace_is_over_budget_by_then(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(SECOND)
    world.town.hear("configmaps", budgets(_settings="lookahead: 0s", **(BUDGETS | {"team_a": "gpuHours: 0"})))

    assert world.turn(5 * SECOND) == []
    assert world.rules == {}


def test_a_pod_that_comes_to_share_the_device_puts_the_eviction_off(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(SECOND)
    world.town.hear(PODS, user("late", claim="of-v"))
    world.town.hear(CLAIMS, held_claim("of-v", "v", "late"))

    assert world.turn(SECOND) == []
    assert world.rules == {}


def test_a_device_is_kept_for_a_bounded_time_and_then_no_pod_leaves_for_such_a_claim_for_five_minutes(
    world: Reclaiming,
) -> None:
    """The pod that leaves has 30 s, and its device is kept for 30 s more."""
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w", priority=9), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), free_claim("of-heir")),
        devices=2,
    )
    assert world.turn(2 * SECOND) == ["v"]
    world.goes("v", "of-v")
    assert world.turn(58 * SECOND) == []
    assert len(world.rules) == 1
    assert world.turn(4 * SECOND) == []
    assert world.rules == {}
    assert [each.reason for each in world.town.recorded if each.name == "heir"] == [
        "WaitsForDevices",
        "VictimsEvicted",
        "EvictionsUnused",
    ]

    assert world.turn(4 * MINUTE + 50 * SECOND) == []
    assert world.turn(30 * SECOND) == ["w"]


def test_a_taint_goes_with_its_heir(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(2 * SECOND)
    world.goes("heir", "of-heir")

    world.turn(SECOND)
    assert world.rules == {}


def test_a_taint_that_could_not_be_removed_is_removed_later(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(2 * SECOND)
    world.goes("v", "of-v")
    world.allocates("of-heir", "gpu-0", "heir")
    world.refuses = {"DELETE"}
    world.turn(3 * SECOND)
    assert len(world.rules) == 1

    world.refuses = set()
    world.turn(2 * SECOND)
    assert world.rules == {}


def test_a_taint_is_removed_once_it_is_known_again_what_is_served(world: Reclaiming) -> None:
    """That is looked at every five minutes, and the taint is to go after such a look has failed."""
    world.start(user("v"), held_claim("of-v", "v"))
    world.hear(5 * MINUTE - 6 * SECOND)
    world.town.hear(PODS, heir())
    world.town.hear(CLAIMS, free_claim("of-heir"))
    assert world.turn(4 * SECOND) == ["v"]
    world.goes("v", "of-v")
    world.is_served = False
    world.turn(4 * SECOND)
    world.allocates("of-heir", "gpu-0", "heir")
    world.turn(SECOND)
    assert len(world.rules) == 1

    world.is_served = True
    world.turn(6 * SECOND)
    assert world.rules == {}


def test_a_settler_that_takes_over_keeps_the_device_until_the_claim_has_it(world: Reclaiming) -> None:
    victim_and_heir(world)
    assert world.turn(2 * SECOND) == ["v"]
    leaves(world, "v")
    world.restart()
    assert world.turn(20 * SECOND) == []
    assert len(world.rules) == 1

    world.goes("v", "of-v")
    world.allocates("of-heir", "gpu-0", "heir")
    world.turn(2 * SECOND)
    assert world.rules == {}


def test_an_error_at_one_device_leaves_what_was_done_for_another(
    world: Reclaiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away between the evictions for two devices."""
    world.start(
        *(user("v"), held_claim("of-v", "v")),
        *(user("w"), held_claim("of-w", "w", device="gpu-1")),
        *(heir(), free_claim("of-heir"), heir("next"), free_claim("of-next", token="f" * 32)),
        devices=2,
    )
    world.turn(SECOND)
    world.hear(SECOND)
    confirm, away = fencing.confirm, iter((False, True))

    def confirmed(connection: Connection, epoch: fencing.Epoch) -> None:
        if next(away, False):
            raise UnavailableError
        confirm(connection, epoch)

    monkeypatch.setattr(fencing, "confirm", confirmed)
    with pytest.raises(UnavailableError):
        world.round.step()
    first = world.api.evictions[0]["metadata"]["name"]
    leaves(world, first)

    assert world.turn(2 * SECOND) == [{"v": "w", "w": "v"}[first]]
    assert len(world.rules) == 2


def test_a_settler_that_takes_over_keeps_the_device_for_a_long_grace_period_too(world: Reclaiming) -> None:
    """Ten minutes of grace, the longest that a pod that leaves may have."""
    long = user("v", grace_s=600)
    world.start(long, held_claim("of-v", "v"), heir(), free_claim("of-heir"))
    assert world.turn(2 * SECOND) == ["v"]
    leaves(world, "v", after_ms=10 * MINUTE)
    world.restart()

    assert world.turn(10 * MINUTE) == []
    assert list(world.rules) == ["rule-0"]
    world.turn(MINUTE)
    assert world.rules == {}


def test_a_settler_that_takes_over_keeps_no_device_longer_than_its_taint_says(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(2 * SECOND)
    world.goes("v", "of-v")
    world.town.clock.turn(10 * MINUTE)
    world.restart()

    assert world.turn(2 * SECOND) == []
    assert world.rules == {}


def test_what_was_only_tainted_is_begun_anew_by_the_settler_that_takes_over(world: Reclaiming) -> None:
    victim_and_heir(world)
    world.turn(SECOND)
    world.restart()

    assert world.turn(3 * SECOND) == ["v"]
    assert [each["metadata"]["name"] for each in world.rules.values()] == ["rule-1"]


def test_a_taint_of_nobody_is_removed_and_those_of_others_stay(world: Reclaiming) -> None:
    labels = {"bursar.dev/heir": "uid-gone"}
    world.rules["left"] = {"metadata": {"name": "left", "labels": labels}, "spec": {}}
    world.rules["theirs"] = {"metadata": {"name": "theirs"}, "spec": {}}
    world.start(user("v"), held_claim("of-v", "v"))
    world.turn(SECOND)

    assert list(world.rules) == ["theirs"]


def test_no_pod_leaves_in_return(world: Reclaiming) -> None:
    """A pod of the namespace that gave up a device waits, when the other is over budget in its turn."""
    victim_and_heir(world)
    assert world.turn(2 * SECOND) == ["v"]
    world.goes("v", "of-v")
    world.allocates("of-heir", "gpu-0", "heir")
    made = world.object(PODS, "heir")
    made["spec"]["nodeName"] = "n1"
    made["status"]["conditions"] = []
    world.town.hear(PODS, made)
    entries = {"team_a": "gpuHours: 0\nonExhausted: reclaim", "team_b": "gpuHours: 100"}
    world.town.hear("configmaps", budgets(_settings="lookahead: 0s", **entries))
    world.town.hear(PODS, heir("back", namespace=POOR))
    world.town.hear(CLAIMS, free_claim("of-back", namespace=POOR))

    assert world.turn(4 * MINUTE + 50 * SECOND) == []
    assert len(world.written) == 1
    assert world.turn(30 * SECOND) == ["heir"]


def test_a_settler_whose_time_is_over_writes_nothing(world: Reclaiming) -> None:
    victim_and_heir(world)
    with world.town.store.writing() as connection:
        fencing.begin(connection, "another", world.town.clock())

    with pytest.raises(EpochOverError):
        world.round.step()
    assert (world.written, world.api.evictions) == ([], [])


def gang_user(name: str, size: int = 2) -> Json:
    """The same of a gang that starts with two."""
    made = user(name)
    gang = {"bursar.dev/gang": "g", "bursar.dev/gang-size": str(size), "bursar.dev/gang-minimum": "2"}
    made["metadata"]["annotations"] |= {"bursar.dev/held": "budget"} | gang
    return made


def test_a_device_of_a_gang_costs_all_of_its_pods_and_they_leave_together(world: Reclaiming) -> None:
    """A pod of higher priority leaves rather than two; where there is none, both leave for one device."""
    gang = [gang_user("v"), gang_user("w"), held_claim("of-v", "v"), held_claim("of-w", "w", device="gpu-1")]
    single = [user("s", priority=5), held_claim("of-s", "s", device="gpu-2")]
    world.start(*gang, *single, heir(), free_claim("of-heir"), devices=3)

    assert world.turn(3 * SECOND) == ["s"]
    world.goes("s", "of-s")
    world.allocates("of-heir", "gpu-2", "heir")
    world.turn(3 * SECOND)
    world.town.hear(CLAIMS, free_claim("of-late"))
    world.town.hear(PODS, heir("late"))

    assert world.turn(5 * SECOND) == ["v", "w"]
    notes = [each["note"] for each in world.api.events if each["reason"] == "Reclaimed"]
    assert [each.endswith("All 2 pods of gang g leave together.") for each in notes] == [False, True, True]


def test_an_elastic_gang_gives_one_device_above_its_minimum_and_then_all_also_while_the_watch_is_late(
    world: Reclaiming,
) -> None:
    """The first to leave is shown as before when the second is chosen."""
    pods = [gang_user(name, size=3) for name in "uvw"]
    claims = [held_claim(f"of-{name}", name, device=f"gpu-{place}") for place, name in enumerate("uvw")]
    world.start(*pods, *claims, heir(), free_claim("of-heir"), devices=3)
    first = world.turn(5 * SECOND)
    assert len(first) == 1

    world.town.hear(CLAIMS, free_claim("of-late"))
    world.town.hear(PODS, heir("late"))

    assert {*world.turn(5 * SECOND)} | {*first} == {"u", "v", "w"}


EXPLICIT = "deviceclass.resource.kubernetes.io/gpu"
SERVED = {"metadata": {"name": "gpu", "uid": "gpu"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


def by_limit(resource: str = "nvidia.com/gpu", amount: str = "1", **fields: Any) -> Json:
    """An heir that asks by a limit, for which kube-scheduler makes a claim once it has devices."""
    made = heir(**fields)
    del made["spec"]["resourceClaims"]
    made["metadata"]["annotations"] = {"bursar.dev/standing": "IN_BUDGET"}
    if resource == EXPLICIT:
        made["metadata"]["annotations"]["bursar.dev/claims"] = amount
    requested = {"cpu": "1", resource: amount}
    made["spec"]["containers"][0]["resources"] = {"limits": {resource: amount}, "requests": requested}
    return made


def victim_and_heir_by_limit(world: Reclaiming, *more: Json, **limit: str) -> None:
    world.start(user("v"), held_claim("of-v", "v"), by_limit(**limit), *more, devices=2)
    world.town.hear("deviceclasses", SERVED)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", EXPLICIT])
def test_a_debtor_leaves_for_a_pod_whose_limit_claims_serve_though_nothing_can_be_kept_for_it(
    world: Reclaiming, resource: str
) -> None:
    victim_and_heir_by_limit(world, resource=resource)

    assert world.turn(3 * SECOND) == ["v"]
    assert world.written == []
    world.goes("v", "of-v")
    said = [each["note"] for each in world.api.events if each["reason"] == "VictimsEvicted"]
    assert said == [
        "Pods over budget are evicted from node n1 for a device of this pod's claim. Nothing can keep it for"
        " this pod's claim meanwhile, so another claim may get it first."
    ]

    made = device_claim(
        "made", allocated("gpu-0"), namespace=RICH, at_ms=world.town.clock(), pods=("uid-heir",)
    )
    world.town.hear(CLAIMS, made)
    bound = by_limit(resource, node="n1")
    bound["status"] = {
        "phase": "Running",
        "extendedResourceClaimStatus": {
            "resourceClaimName": "made",
            "requestMappings": [
                {"containerName": "main", "resourceName": resource, "requestName": "container-0-request-0"}
            ],
        },
    }
    world.town.hear(PODS, bound)
    assert world.turn(2 * MINUTE) == []
    assert [each.reason for each in world.town.recorded if each.name == "heir"] == [
        "WaitsForDevices",
        "VictimsEvicted",
    ], "it got its device"


def test_a_device_that_such_a_pod_did_not_get_makes_no_pod_leave_for_its_class_for_five_minutes(
    world: Reclaiming,
) -> None:
    victim_and_heir_by_limit(world, user("w", priority=9), held_claim("of-w", "w", device="gpu-1"))
    assert world.turn(2 * SECOND) == ["v"]
    world.goes("v", "of-v")

    assert world.turn(5 * MINUTE) == []
    assert "EvictionsUnused" in [each.reason for each in world.town.recorded if each.name == "heir"]
    assert world.turn(2 * MINUTE) == ["w"]


@pytest.mark.parametrize(
    ("change", "classes"),
    [
        ({"node": "n2"}, (SERVED,)),  # a plugin's cards
        ({"amount": "9"}, (SERVED,)),
        ({"resource": "rdma/hca"}, (SERVED,)),
        ({}, ()),
        ({"namespace": "team-c"}, (SERVED,)),  # without a budget
    ],
)
def test_nobody_leaves_for_a_pod_whose_limit_no_claim_serves_or_for_which_nobody_would_by_a_template(
    world: Reclaiming, change: dict[str, str], classes: tuple[Json, ...]
) -> None:
    world.start(user("v"), held_claim("of-v", "v"), by_limit(**{"resource": "example.com/none"}))
    for each in classes:
        world.town.hear("deviceclasses", each)
    after = by_limit(**change)
    if "node" in change:
        world.town.hear(PODS, by_limit())
        after["status"] = {"phase": "Running"}
    world.town.hear(PODS, after)

    assert world.turn(10 * SECOND) == []
