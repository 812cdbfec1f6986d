"""Claims on devices, allocated by the real kube-scheduler and freed by the real controllers: the ledger says
when they were held."""

import itertools
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from tests.local.worlds import NAMESPACES, NODES, get
from tests.support.control_plane import MERGE, create_namespace
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.timekeeper.claims import DRIVER, device_slice
from tests.timekeeper.oracle import moment
from tests.timekeeper.processes import Process, children, prepared
from tests.worlds import Json
from timekeeper.__main__ import main
from timekeeper.accounts.session import CLAIMS_SEEN

pytestmark = pytest.mark.make_test("charges device claims")

RESOURCES = "/apis/resource.k8s.io/v1"
ODD = "odd.example.com"  # a driver without a rule
SETTINGS = "weights: {H100: 2}\nlookahead: 0s"
GATE = "bursar.dev/budget"
READY = "example.com/ready"  # of a device that kube-scheduler allocates before it can be used
SECOND_MS = 1_000  # to which an allocation is dated
_numbers = itertools.count()


def kind(name: str) -> str:
    """The selector of devices of this kind."""
    return f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{name}"'


CLASSES = {
    **{name: kind(name) for name in ("gpu", "shared", "pair", "part", "whole", "none", "going", "bind")},
    "later": kind("none"),
    "odd": f'device.driver == "{ODD}"',
}


def pool(name: str, number: int, driver: str = DRIVER, model: str = "A100", **more: Any) -> Json:
    """The slice of a pool of its own, with devices of the kind of its name."""
    attributes = {"kind": {"string": name}, "model": {"string": model}}
    body = device_slice(*(f"{name}-{n}" for n in range(number)), driver=driver, attributes=attributes, **more)
    body["metadata"]["name"] = name
    body["spec"]["pool"]["name"] = name
    return body


def parted() -> tuple[Json, Json]:
    """Two halves of a device, and the slice of what they share: one slice may not have both."""
    halves = pool(
        "part", 2, consumesCounters=[{"counterSet": "s", "counters": {"memory": {"value": "40Gi"}}}]
    )
    whole = pool("part", 0)
    del whole["spec"]["devices"]
    whole["metadata"]["name"] = "part-counters"
    whole["spec"]["sharedCounters"] = [{"name": "s", "counters": {"memory": {"value": "80Gi"}}}]
    for each in (halves, whole):
        each["spec"]["pool"]["resourceSliceCount"] = 2
    return halves, whole


_POLICY = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "80Gi"}}
SLICES = (
    pool("gpu", 24),
    pool(
        "shared",
        1,
        allowMultipleAllocations=True,
        capacity={"memory": {"value": "80Gi", "requestPolicy": _POLICY}},
    ),
    pool("pair", 2),
    pool("whole", 4, model="H100"),
    pool("going", 1),
    pool("bind", 2, bindsToNode=True, bindingConditions=[READY], bindingFailureConditions=["example.com/no"]),
    *parted(),
    pool("odd", 1, driver=ODD),
)


@dataclass(frozen=True)
class Row:
    """A session of a claim, as the ledger has it."""

    uid: str
    name: str
    rate: int
    bound: int
    ended: int | None
    posted: int
    consumers: str
    doubt: str | None


class World:
    """A node with devices, kube-scheduler, and a timekeeper."""

    def __init__(self, cp: ControlPlane, timekeeper: Process) -> None:
        self.cp, self.timekeeper = cp, timekeeper

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A PATCH merges."""
        return self.cp.api.call(method, path, body, MERGE if method == "PATCH" else "application/json")

    def namespace(self, **labels: str) -> str:
        """A new one's name."""
        name = f"claims-{next(_numbers)}"
        create_namespace(self.cp, name, **labels)
        return name

    def claim(self, namespace: str, name: str, *first_of: str, **exactly: Any) -> Json:
        """A claim on one device of the class ``gpu``, or as ``exactly`` says, or on the first of several
        classes."""
        request: Json = {"name": "r0", "exactly": {"deviceClassName": "gpu", **exactly}}
        if first_of:
            several = [{"name": f"s{n}", "deviceClassName": each} for n, each in enumerate(first_of)]
            request = {"name": "r0", "firstAvailable": several}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        made: Json = self.call("POST", f"{RESOURCES}/namespaces/{namespace}/resourceclaims", body)
        return made

    def pod(self, namespace: str, name: str, *claims: str, metadata: Json | None = None, **spec: Any) -> Json:
        """A pod that uses these claims."""
        used = [{"name": each} for each in claims]
        container = {"name": "main", "image": "x", "resources": {"claims": used}}
        body = {
            "containers": [container],
            "resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
            "terminationGracePeriodSeconds": 1,
            **spec,
        }
        made: Json = self.call(
            "POST", f"{NAMESPACES}/{namespace}/pods", {"metadata": metadata or {"name": name}, "spec": body}
        )
        return made

    def held_pod(self, namespace: str, name: str, **exactly: Any) -> None:
        """A pod with a claim of its name on one GPU, as admission governs it, behind the gate."""
        self.claim(namespace, name, **exactly)
        written = {"claims": "1", "standing": "IN_BUDGET", "held": "turn"}
        metadata = {
            "name": name,
            "labels": {"bursar.dev/governed": "true"},
            "annotations": {f"bursar.dev/{key}": text for key, text in written.items()},
        }
        self.pod(namespace, name, name, metadata=metadata, schedulingGates=[{"name": GATE}])

    def is_gated(self, namespace: str, name: str) -> bool:
        """Whether the pod is behind the gate."""
        found = self.call("GET", f"{NAMESPACES}/{namespace}/pods/{name}")
        return bool(found["spec"].get("schedulingGates"))

    def set_budget(self, namespace: str, entry: str) -> None:
        """Writes the namespace's entry, which is in force then."""
        path = f"{NAMESPACES}/bursar-system/configmaps/bursar-budgets"
        self.call("PATCH", path, {"data": {namespace: entry}})

        def is_in_force() -> bool:
            with closing(sqlite3.connect(self.timekeeper.database)) as connection:
                found = connection.execute("SELECT 1 FROM entries WHERE key = ?", (namespace,))
                return found.fetchone() is not None

        eventually(is_in_force, f"the entry of {namespace}")

    def uses(self, namespace: str, name: str, *first_of: str, **exactly: Any) -> Json:
        """A claim with a pod of the same name that uses it; the claim, once it is allocated."""
        self.claim(namespace, name, *first_of, **exactly)
        self.pod(namespace, name, name)
        return self.allocated(namespace, name)

    def allocates(self, claim: Json, device: str) -> None:
        """Writes an allocation that is reserved for no pod, and does not say when it was made."""
        result = {"request": "r0", "driver": DRIVER, "pool": device.partition("-")[0], "device": device}
        status = {"allocation": {"devices": {"results": [result]}}}
        self.call("PATCH", f"{path_of(claim)}/status", {"status": status})

    def delete_pod(self, namespace: str, name: str, grace_s: int | None = None) -> Json:
        """The pod as it is deleted, once it has its node: of one that is deleted between its claim's
        allocation and its binding, kube-scheduler takes the reservation back and leaves the allocation, to
        which nobody comes."""
        path = f"{NAMESPACES}/{namespace}/pods/{name}"
        eventually(lambda: self.call("GET", path)["spec"].get("nodeName"), f"the node of {name}")
        options = None if grace_s is None else {"gracePeriodSeconds": grace_s}
        deleted: Json = self.call("DELETE", path, options)
        return deleted

    def settler(self) -> int:
        """The process ID of the settler."""
        assert self.timekeeper.running is not None
        return next(iter(children(self.timekeeper.running.pid).get("settle", [])), 0)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """The settler is dead meanwhile; another follows it."""
        died = self.settler()
        os.kill(died, signal.SIGSTOP)
        yield
        os.kill(died, signal.SIGKILL)
        self.timekeeper.wait("another settler", lambda: self.settler() not in (0, died))

    def allocated(self, namespace: str, name: str) -> Json:
        """The claim, once it is allocated."""

        def found() -> Json | None:
            raw = get(self.cp.api, f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}")
            return raw if raw and raw.get("status", {}).get("allocation") else None

        return eventually(found, f"the allocation of {name}")

    def is_held(self, namespace: str, name: str) -> bool:
        """Whether the claim is there and allocated."""
        raw = get(self.cp.api, f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}")
        return bool(raw and raw.get("status", {}).get("allocation"))

    def known_ms(self) -> int:
        """Until when all claims were known, as the ledger has it."""
        with closing(sqlite3.connect(self.timekeeper.database)) as connection:
            (found,) = connection.execute("SELECT watermark_ms FROM nodes WHERE name = ?", (CLAIMS_SEEN,))
            return int(found[0])

    def rows(self, namespace: str, kind: str = "claim") -> list[Row]:
        """The sessions of a namespace's claims, or of its pods."""
        with closing(sqlite3.connect(self.timekeeper.database)) as connection:
            found = connection.execute(
                "SELECT s.uid, s.name, s.rate_milli, s.bound_ms, s.ended_ms, COALESCE(SUM(p.amount), 0),"
                " s.consumers, s.doubt FROM sessions s LEFT JOIN postings p ON p.session_uid = s.uid"
                " WHERE s.namespace = ? AND s.kind = ? GROUP BY s.uid ORDER BY s.bound_ms, s.uid",
                (namespace, kind),
            )
            return [Row(*row) for row in found]

    def audited(self, capsys: pytest.CaptureFixture[str]) -> list[Json]:
        """How `audit --cluster` says that claims differ."""
        which = (
            f"--kubeconfig={self.cp.admin_kubeconfig}",
            f"--database=sqlite:///{self.timekeeper.database}",
        )
        capsys.readouterr()
        assert main(["audit", "--cluster", "-o", "json", *which]) == 0
        compared = json.loads(capsys.readouterr().out)["cluster"]["claims"]
        assert compared["compared"] >= 6
        found: list[Json] = compared["differences"]
        return found

    def running(self, namespace: str, number: int = 1) -> list[Row]:
        """The sessions, once there are so many."""

        def found() -> list[Row] | None:
            rows = self.rows(namespace)
            return rows if len(rows) == number else None

        return eventually(found, lambda: f"{number} sessions, not {self.rows(namespace)}")

    def settled(self, namespace: str, number: int = 1) -> list[Row]:
        """The same, once all have ended."""

        def found() -> list[Row] | None:
            rows = self.rows(namespace)
            return rows if len(rows) == number and all(row.ended for row in rows) else None

        return eventually(found, lambda: f"{number} ended sessions, not {self.rows(namespace)}")


def path_of(claim: Json) -> str:
    """Where the claim is."""
    metadata = claim["metadata"]
    return f"{RESOURCES}/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"


def deleted_ms(pod: Json) -> int:
    """The second in which the pod was deleted."""
    metadata = pod["metadata"]
    return (moment(metadata["deletionTimestamp"]) or 0) - 1000 * int(metadata["deletionGracePeriodSeconds"])


def length(row: Row) -> int:
    """For how long the claim was held, once it has ended."""
    return (row.ended or 0) - row.bound


def is_exact(rows: list[Row]) -> bool:
    """Whether each is charged for all the time that it was held."""
    return all(row.posted == row.rate * length(row) for row in rows)


@pytest.fixture(scope="module")
def world(lender: Lender, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        lender.lent() as cp,
        prepared(tmp_path_factory.mktemp("timekeeper"), cp.admin_kubeconfig, traced=True) as timekeeper,
    ):
        cp.api.call("POST", NAMESPACES, {"metadata": {"name": "bursar-system"}})
        for name, data in (("bursar-settings", {"_settings": SETTINGS}), ("bursar-budgets", {})):
            config = {"metadata": {"name": name}, "data": data}
            cp.api.call("POST", f"{NAMESPACES}/bursar-system/configmaps", config)
        cp.api.call("POST", NODES, kwok_node("n1", labels={"devices": "claims"}))
        cp.api.call("POST", NODES, kwok_node("n2", capacity=nvidia_capacity(2), labels={"devices": "plugin"}))
        for name, selector in CLASSES.items():
            spec: Json = {"selectors": [{"cel": {"expression": selector}}]}
            spec |= {"extendedResourceName": "nvidia.com/gpu"} if name == "whole" else {}
            cp.api.call("POST", f"{RESOURCES}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
        for body in SLICES:
            cp.api.call("POST", f"{RESOURCES}/resourceslices", body)
        cp.start_scheduler()
        timekeeper.start_ready()
        yield World(cp, timekeeper)
        assert timekeeper.end() == 0


def test_an_allocated_claim_is_charged_until_its_release(world: World) -> None:
    home = world.namespace()
    world.claim(home, "c")
    world.pod(home, "p", "c")
    claim = world.allocated(home, "c")

    opened = world.running(home)
    world.delete_pod(home, "p")
    ended = world.settled(home)

    # without a time, as before Kubernetes 1.36, it begins when it is seen
    stamp = moment(claim["status"]["allocation"].get("allocationTimestamp")) or opened[0].bound
    assert opened[0].uid == f"{claim['metadata']['uid']}:claim:{stamp}"
    assert ended[0].rate == 1000
    assert stamp <= ended[0].bound <= stamp + SECOND_MS
    assert ended[0].posted == 1000 * ((ended[0].ended or 0) - ended[0].bound) > 0


def test_how_long_an_allocation_takes_into_the_ledger(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    """Twenty claims at once. The times are recorded, and none is asserted: they begin with the last look at
    which the API server did not show the allocation, and end with the first at which the database has its
    session."""
    home, names = world.namespace(), [f"c{number}" for number in range(20)]
    for name in names:
        world.claim(home, name)
    free_s: dict[str, float] = {}
    written_s: dict[str, float] = {}

    def are_written() -> bool:
        asked_s = time.monotonic()
        claims = world.call("GET", f"{RESOURCES}/namespaces/{home}/resourceclaims")["items"]
        free = (each for each in claims if not each.get("status", {}).get("allocation"))
        free_s.update((each["metadata"]["name"], asked_s) for each in free)
        rows = world.rows(home)
        for row in rows:
            written_s.setdefault(row.name, time.monotonic())
        return written_s.keys() == set(names)

    assert not are_written()
    for name in names:
        world.pod(home, name, name)
    eventually(are_written, lambda: f"{len(written_s)} sessions")
    for name in names:
        world.delete_pod(home, name)
    taken_ms = sorted(round(1000 * (written_s[name] - free_s[name])) for name in names)
    figures = {"median": taken_ms[10], "longest": taken_ms[-1]}
    record_property("allocation in the ledger, ms", figures)
    print("allocation in the ledger, ms:", figures)

    assert is_exact(world.settled(home, 20))


@pytest.mark.kubernetes("1.36")  # partitions and consumed capacity
def test_each_form_of_a_claim_pays_for_what_was_allocated(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit finds that the API server's claims hold what is charged."""
    home = world.namespace()
    world.uses(home, "two", count=2)
    world.uses(home, "part", deviceClassName="part")
    world.uses(home, "first", "none", "whole")
    world.uses(home, "all", deviceClassName="pair", allocationMode="All")
    for name, memory in (("half", "40Gi"), ("quarter", "20Gi")):
        capacity = {"requests": {"memory": memory}}
        world.uses(home, name, deviceClassName="shared", capacity=capacity)
    rates = {row.name: row.rate for row in world.running(home, 6)}
    differing = world.audited(capsys)
    for name in rates:
        world.delete_pod(home, name)

    assert [each for each in differing if each["claim"].startswith(f"{home}/")] == []
    assert rates == {"part": 500, "two": 2000, "first": 2000, "all": 2000, "half": 500, "quarter": 250}
    assert is_exact(world.settled(home, 6))


def test_eight_sharers_pay_once(world: World) -> None:
    home = world.namespace()
    world.claim(home, "c")
    for number in range(8):
        world.pod(home, f"p{number}", "c")
    eventually(lambda: [len(row.consumers.split()) for row in world.rows(home)] == [8], "eight sharers")
    for number in range(8):
        world.delete_pod(home, f"p{number}")

    assert is_exact(world.settled(home))


def test_a_claim_from_a_template_is_its_pods(world: World) -> None:
    home = world.namespace()
    request = {"name": "r0", "exactly": {"deviceClassName": "gpu"}}
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    world.call("POST", f"{RESOURCES}/namespaces/{home}/resourceclaimtemplates", template)
    made = world.pod(home, "p", "c", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}])
    running = world.running(home)
    world.delete_pod(home, "p")

    assert running[0].consumers == made["metadata"]["uid"]
    assert running[0].name.startswith("p-c-")
    assert is_exact(world.settled(home))


@pytest.mark.kubernetes("1.36")  # kube-scheduler's own claims
def test_an_extended_resource_is_paid_once_by_a_claim_here_and_by_a_plugin_there(world: World) -> None:
    home = world.namespace(**{"bursar.dev/mode": "meter"})
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    for name in ("claims", "plugin"):
        container = {"name": "main", "image": "x", "resources": limits}
        world.pod(home, name, containers=[container], nodeSelector={"devices": name})
    claimed = world.running(home)
    eventually(lambda: len(world.rows(home, "pod")) == 1, lambda: str(world.rows(home, "pod")))
    for name in ("claims", "plugin"):
        world.delete_pod(home, name)
    ended = world.settled(home)

    assert [row.rate for row in claimed] == [2000]  # of an H100
    assert is_exact(ended)
    assert [row.name for row in world.rows(home, "pod")] == ["plugin"]


def test_an_allocation_for_no_pod_and_without_a_time_is_charged_until_it_is_deleted(world: World) -> None:
    home = world.namespace()
    claim = world.claim(home, "c")
    world.allocates(claim, "gpu-23")
    running = world.running(home)
    world.call("DELETE", path_of(claim))
    ended = world.settled(home)

    assert (running[0].consumers, running[0].rate, running[0].doubt) == ("", 1000, None)
    assert is_exact(ended)
    assert length(ended[0]) > 0


def test_a_claim_whose_finalizer_was_removed_is_charged_until_its_pod_has_ended(world: World) -> None:
    home = world.namespace()
    claim = world.uses(home, "c")
    world.running(home)
    world.call("PATCH", path_of(claim), {"metadata": {"finalizers": None}})
    world.call("DELETE", path_of(claim))
    again = world.uses(home, "next")
    world.running(home, 2)
    assert [row.ended for row in world.rows(home)] == [None, None]
    deleted = [world.delete_pod(home, name) for name in ("c", "next")]
    ended = world.settled(home, 2)

    assert again["metadata"]["uid"] != claim["metadata"]["uid"]
    assert all((row.ended or 0) >= min(map(deleted_ms, deleted)) for row in ended)
    assert is_exact(ended)


def test_the_end_of_a_namespace_ends_its_claims(world: World) -> None:
    home = world.namespace()
    world.uses(home, "c")
    world.running(home)
    world.call("DELETE", f"{NAMESPACES}/{home}")

    assert is_exact(world.settled(home))


def test_a_class_that_was_repointed_while_a_pod_waited_costs_what_was_allocated(world: World) -> None:
    home = world.namespace()
    world.claim(home, "c", deviceClassName="later")
    world.pod(home, "p", "c")
    selector = [{"cel": {"expression": kind("whole")}}]
    world.call("PATCH", f"{RESOURCES}/deviceclasses/later", {"spec": {"selectors": selector}})
    running = world.running(home)
    world.delete_pod(home, "p")

    assert running[0].rate == 2000
    assert is_exact(world.settled(home))


def test_a_slice_that_goes_while_its_device_is_held_changes_nothing(world: World) -> None:
    home = world.namespace()
    world.uses(home, "c", deviceClassName="going")
    world.running(home)
    world.call("DELETE", f"{RESOURCES}/resourceslices/going")
    world.delete_pod(home, "c")
    ended = world.settled(home)

    assert [row.rate for row in ended] == [1000]
    assert is_exact(ended)


def test_admin_access_is_free(world: World) -> None:
    home = world.namespace(**{"resource.kubernetes.io/admin-access": "true"})
    world.uses(home, "c", adminAccess=True)
    running = world.running(home)
    world.delete_pod(home, "c")

    assert [row.rate for row in running] == [0]
    assert [row.posted for row in world.settled(home)] == [0]


@pytest.mark.kubernetes("1.36")  # the time of an allocation
def test_what_happens_while_no_settler_runs_is_charged_by_what_is_proved(world: World) -> None:
    home = world.namespace()
    for name in ("goes", "returns"):
        world.uses(home, name)
    before = {row.name: row for row in world.running(home, 2)}
    second = max(row.bound for row in before.values()) // 1000
    eventually(lambda: time.time() > second + 1, "another second, to which allocations are dated")
    with world.unwatched():
        deleted = []
        for name in ("goes", "returns"):
            deleted.append(world.delete_pod(home, name))
            eventually(lambda name=name: not world.is_held(home, name), "the release")  # type: ignore[misc]
        world.uses(home, "comes")
        world.pod(home, "anew", "returns")
        world.allocated(home, "returns")
    rows = world.running(home, 4)
    first = [row for row in rows if row.uid in {each.uid for each in before.values()}]
    later = [row for row in rows if row not in first]
    for name in ("comes", "anew"):
        world.delete_pod(home, name)
    ended = world.settled(home, 4)

    assert all(row.ended is not None for row in first)
    assert {row.name for row in later} == {"comes", "returns"}
    assert all(row.bound >= min(map(deleted_ms, deleted)) for row in later)
    assert is_exact(ended)


def test_devices_of_a_driver_without_a_rule_are_reported(world: World) -> None:
    home = world.namespace()
    world.uses(home, "c", deviceClassName="odd")

    def found() -> bool:
        with closing(sqlite3.connect(world.timekeeper.database)) as connection:
            (text,) = connection.execute("SELECT device_claims FROM pulse").fetchone()
        return [ODD, 1] in json.loads(text or "{}").get("unknown", [])

    eventually(found, "the finding")
    assert world.rows(home) == []


def test_pods_that_share_a_claim_of_a_spent_budget_leave_together_or_not_at_all(world: World) -> None:
    """A PodDisruptionBudget that would allow each of them alone keeps both; once it is gone both leave, and
    the claim is freed."""
    home = world.namespace()
    pdbs = f"/apis/policy/v1/namespaces/{home}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    world.call("POST", pdbs, {"metadata": {"name": "one"}, "spec": spec})
    world.claim(home, "c")
    for name in ("p", "q"):
        world.pod(home, name, "c")
        labels = {"metadata": {"labels": {"app": "x"}}}
        world.call("PATCH", f"{NAMESPACES}/{home}/pods/{name}", labels)
    eventually(lambda: [len(row.consumers.split()) for row in world.rows(home)] == [2], "two sharers")
    eventually(lambda: world.call("GET", f"{pdbs}/one").get("status", {}).get("disruptionsAllowed") == 1)
    entry = "gpuHours: 0.000001\nonExhausted: evict\nevictGrace: 1s\nevictRate: 60"
    world.set_budget(home, entry)

    def pods() -> list[Json]:
        found: list[Json] = world.call("GET", f"{NAMESPACES}/{home}/pods")["items"]
        return found

    noticed = "bursar.dev/delete-after"
    eventually(lambda: any(noticed in each["metadata"].get("annotations", {}) for each in pods()))
    assert not any("deletionTimestamp" in each["metadata"] for each in pods())
    assert len(pods()) == 2
    world.call("DELETE", f"{pdbs}/one")

    eventually(lambda: not pods(), "both pods leave")
    assert is_exact(world.settled(home))
    assert not world.is_held(home, "c")


def test_a_pod_waits_while_what_claims_hold_leaves_no_room_below_the_cap(world: World) -> None:
    """Another one, of a namespace without a cap, was created after it and is released before it."""
    home, elsewhere = world.namespace(), world.namespace()
    world.set_budget(home, "gpuHours: unlimited\nmaxGPUs: 2")
    world.uses(home, "held", count=2)
    world.running(home)
    world.held_pod(home, "waits")
    world.held_pod(elsewhere, "goes")

    world.allocated(elsewhere, "goes")
    assert world.is_gated(home, "waits")
    assert [row.name for row in world.rows(home)] == ["held"]
    world.delete_pod(home, "held")

    world.allocated(home, "waits")
    for namespace, name in ((home, "waits"), (elsewhere, "goes")):
        world.delete_pod(namespace, name)
    held, waited = world.settled(home, 2)
    assert (held.rate, waited.rate) == (2000, 1000)
    assert is_exact([held, waited])


@pytest.mark.kubernetes("1.36")  # binding conditions
def test_a_claim_that_is_allocated_before_its_pod_has_a_node_counts_once_below_the_cap(world: World) -> None:
    home = world.namespace()
    world.set_budget(home, "gpuHours: unlimited\nmaxGPUs: 2")
    world.held_pod(home, "first", deviceClassName="bind")
    claim = world.allocated(home, "first")
    world.running(home)
    assert not world.call("GET", f"{NAMESPACES}/{home}/pods/first")["spec"].get("nodeName")

    world.held_pod(home, "second")

    world.allocated(home, "second")
    assert not world.call("GET", f"{NAMESPACES}/{home}/pods/first")["spec"].get("nodeName")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    condition = {"type": READY, "status": "True", "reason": "Ready", "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    device = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [condition]}
    world.call("PATCH", f"{path_of(claim)}/status", {"status": {"devices": [device]}})
    for name in ("first", "second"):
        world.delete_pod(home, name)
    assert is_exact(world.settled(home, 2))


def test_a_claim_that_is_freed_after_an_orderly_end_is_charged_until_that(world: World) -> None:
    home = world.namespace()
    world.uses(home, "c")
    world.running(home)
    assert world.timekeeper.end() == 0
    known_ms = world.known_ms()
    world.delete_pod(home, "c")
    eventually(lambda: not world.is_held(home, "c"), "the release")
    world.timekeeper.start_ready()

    (row,) = world.settled(home)

    assert (row.ended or 0) >= known_ms
    assert is_exact([row])


def test_a_pod_whose_claim_a_quota_refuses_says_what_the_quota_says(world: World) -> None:
    home = world.namespace()
    quotas = f"{NAMESPACES}/{home}/resourcequotas"
    hard = {"count/resourceclaims.resource.k8s.io": "0"}
    world.call("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    eventually(lambda: world.call("GET", f"{quotas}/none").get("status", {}).get("hard") == hard, "the quota")
    requests = [{"name": "r0", "exactly": {"deviceClassName": "gpu"}}]
    template = {"metadata": {"name": "it"}, "spec": {"spec": {"devices": {"requests": requests}}}}
    world.call("POST", f"{RESOURCES}/namespaces/{home}/resourceclaimtemplates", template)
    metadata = {
        "name": "p",
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {"bursar.dev/claims": "1", "bursar.dev/standing": "IN_BUDGET"},
    }
    world.pod(
        home, "p", "c", metadata=metadata, resourceClaims=[{"name": "c", "resourceClaimTemplateName": "it"}]
    )

    def said() -> str:
        with closing(sqlite3.connect(world.timekeeper.database)) as connection:
            query = "SELECT figures FROM decisions WHERE namespace = ? AND reason = 'WaitsForClaims'"
            return " ".join(figures for (figures,) in connection.execute(query, (home,)))

    found = eventually(said, "the record")
    assert "waits for its claim: none is made from ResourceClaimTemplate it: " in found
    assert "exceeded quota: none" in found
