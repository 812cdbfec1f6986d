"""Two tenants of one cluster: one does at once what a user with the ClusterRole `edit` could do to others,
and the other's ordinary pods are bound, run, and are charged exactly for what they held."""

import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from deploy.local.api import AdminApi, ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import Json, gpu_pod, held_ms, set_budgets
from tests.support.control_plane import MERGE, create_namespace, kubectl
from tests.support.waiting import eventually

pytestmark = pytest.mark.soak

SHARE = 50  # per cent of a card, of each of the neighbour's pods
LEAST = 3  # of each attack, while the neighbour's pods run
PILE = 3
LONG_S = 600  # the longest grace period that is allowed


@dataclass
class Attacker:
    """A user with `edit` in a namespace. ``done`` counts what its loops achieved."""

    stack: Stack
    api: AdminApi
    pods: str
    reports: str  # a token for reports of the namespace
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    errors: list[Exception] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def loop(self, attack: Callable[[int], str]) -> None:
        """One attack again and again; each call says what it has done."""
        for number in count():
            if self.ending.is_set():
                return
            try:
                self.done[attack(number)] += 1
            except (ApiError, urllib.error.HTTPError) as error:
                self.refused[attack.__name__] += 1
                code = error.status if isinstance(error, ApiError) else error.code
                if code not in (403, 404, 409, 422, 429, 503):
                    self.errors.append(error)
            except OSError as error:
                self.errors.append(error)

    def make(self, name: str, percent: int, **spec: object) -> None:
        """A pod of its own that would run for an hour."""
        pod = gpu_pod(name, percent, "1h")
        pod["spec"] |= spec
        self.api.call("POST", self.pods, pod)

    def bloat(self, number: int) -> str:
        """A gated pod as large as admission takes it, and labels until no more are."""
        name = f"bloat-{number}"
        self.make(name, 10, schedulingGates=[{"name": "example.com/later"}])
        for part in range(40):
            annotations = {f"example.com/{part}": "x" * 8_000}
            self.api.call("PATCH", f"{self.pods}/{name}", {"metadata": {"annotations": annotations}}, MERGE)
        return "bloated"

    def stockpile(self, number: int) -> str:
        """Whole cards for pods that it keeps behind a gate of its own, and lets go."""
        name = f"pile-{number}"
        self.make(name, 100, schedulingGates=[{"name": "example.com/later"}])
        self.api.call("PATCH", f"{self.pods}/{name}", {"spec": {"schedulingGates": []}}, MERGE)
        if number >= PILE:
            self.api.call("DELETE", f"{self.pods}/pile-{number - PILE}", {"gracePeriodSeconds": 0})
        return "stockpiled"

    def without_success(self, number: int) -> str:
        """A pod that no node can ever run, with a new UID each time."""
        none = {"labelSelector": {"matchLabels": {"no": "pod"}}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [none]}}
        self.make(f"vain-{number}", 400, affinity=affinity)
        name = f"vain-{number}"
        eventually(lambda: self.ending.is_set() or self._pod(name)["status"].get("conditions"), "an answer")
        self.api.call("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})
        return "without success"

    def _pod(self, name: str) -> Json:
        found: Json = self.api.call("GET", f"{self.pods}/{name}")
        return found

    def linger(self, number: int) -> str:
        """A pod that is deleted with a longer grace than allowed, and then with the longest."""
        name = f"linger-{number}"
        self.make(name, 10)
        eventually(lambda: self.ending.is_set() or "nodeName" in self._pod(name)["spec"], "its binding")
        try:
            self.api.call("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 1_000_000})
        except ApiError as error:
            self.done["refused a long grace"] += "[grace-period]" in str(error)
        self.api.call("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": LONG_S})
        return "lingering"

    def report(self, _number: int) -> str:
        """The dearest report of its namespace."""
        query = "/v1/usage?namespace=noisy&group=pod&by=day&from=2026-01-01T00:00:00Z"
        self.stack.get(query, self.reports)
        return "reported"

    @contextmanager
    def attacking(self) -> Iterator[None]:
        """All of it at once, with six loops of reports."""
        attacks = [self.bloat, self.stockpile, self.without_success, self.linger, *[self.report] * 6]
        threads = [threading.Thread(target=self.loop, args=(attack,)) for attack in attacks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ending.set()
            for thread in threads:
                thread.join()

    def total(self) -> Counter[str]:
        """How often each attack went to its end."""
        reports = self.done["reported"] + self.refused["report"]
        others = {
            "bloat": self.refused["bloat"],  # each ends with a refusal
            "stockpile": self.done["stockpiled"],
            "without success": self.done["without success"],
            "linger": self.done["refused a long grace"],
        }
        return Counter(others | {"report": reports})


@pytest.fixture
def attacker(stack: Stack) -> Attacker:
    """With the roles that docs give a tenant: `edit`, and an account for reports."""
    pods = create_namespace(stack.cp, "noisy")
    for account in ("tenant", "bursar-reader"):
        kubectl(stack.cp, "create", "serviceaccount", account, "-n", "noisy")
    for role, account in (("edit", "tenant"), ("bursar-viewer", "bursar-reader")):
        binding = ("create", "rolebinding", role, "-n", "noisy", f"--clusterrole={role}")
        kubectl(stack.cp, *binding, f"--serviceaccount=noisy:{account}")
    api = AdminApi(stack.cp.url, stack.cp.ca_file, stack.token("noisy", "tenant"))
    return Attacker(stack, api, pods, stack.token("noisy", "bursar-reader", audience="bursar"))


def test_a_tenant_that_tries_everything_stops_no_pod_of_its_neighbour(
    stack: Stack, sidecars: Sidecars, attacker: Attacker, reader: str
) -> None:
    for name in ("shared-a", "shared-b"):
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(name, cards=4, memory_mib=16_000, model="T4"))
    pods = create_namespace(stack.cp, "calm")
    set_budgets(stack, noisy="gpuHours: 20\nonExhausted: deny\nmaxGPUs: 4\n", calm="gpuHours: 10\n")
    stack.wait("the budget", lambda: stack.get("/v1/budgets/calm", reader)["gpuHours"]["granted"] == "10")
    waits: list[float] = []

    def one(name: str) -> None:
        """A pod of the neighbour from its creation to its end."""
        began = time.monotonic()
        stack.cp.api.call("POST", pods, gpu_pod(name, SHARE, "2s"))
        stack.wait(f"{name} to be bound", lambda: "nodeName" in pod(name)["spec"], "extender")
        waits.append(time.monotonic() - began)
        stack.wait(f"{name} to end", lambda: pod(name)["status"]["phase"] == "Succeeded", "timekeeper")

    def pod(name: str) -> Json:
        found: Json = stack.cp.api.call("GET", f"{pods}/{name}")
        return found

    for number in range(3):
        one(f"alone-{number}")
    with attacker.attacking():
        for number in range(6):
            before = attacker.total()
            one(f"beside-{number}")
            stack.wait(
                "the attacks to go on",
                lambda before=before: all(attacker.total()[each] > before[each] for each in before),  # type: ignore[misc]
            )
            assert stack.get("/v1/budgets/calm", reader)["namespace"] == "calm"
        stack.wait("enough of each", lambda: min(attacker.total().values()) >= LEAST)

    assert attacker.errors == []
    print("seconds to the binding:", [round(each, 2) for each in waits])
    print("attacks:", dict(attacker.done), "refused:", dict(attacker.refused))

    def usage() -> list[Json]:
        rows: list[Json] = stack.get("/v1/usage?namespace=calm&group=pod", reader)["rows"]
        return rows

    stack.wait("all to be posted", lambda: [each["pending"] for each in usage()] == 9 * [0], "timekeeper")
    held = {each["metadata"]["name"]: held_ms(each) for each in stack.cp.api.call("GET", pods)["items"]}
    assert {each["pod"]: each["posted"] for each in usage()} == {
        name: 10 * SHARE * of_ms for name, of_ms in held.items()
    }
