"""How often the API server asks us while it creates one pod: once to govern it and once to check it, for what
we leave behind its own plugins find nothing to change in."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.stack import Stack
from tests.support.control_plane import answer
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.timekeeper.processes import settler_stopped
from tests.webhook.exports import exported_of
from tests.webhook.injector import Injector, of_every_pod
from tests.webhook.worlds import env
from tests.worlds import Json
from webhook.settings.certificates import CONFIGURATION

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"

GPU = "nvidia.com/gpu"


class World:
    """All of Bursar on a control plane: namespaces with and without GPU time, and a class above ours."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.api = stack, stack.cp.api
        self.reader = stack.reader_token()
        self.api.call("POST", _CLASSES, {"metadata": {"name": "urgent"}, "value": 1_000})
        # settings of the file before, whose stack this is, count for two minutes after they are gone
        budgets = {"spent": "gpuHours: 0\nperiod: month\n", "_settings": "lookahead: 10m\n"}
        self.api.call(
            "POST",
            "/api/v1/namespaces/bursar-system/configmaps",
            {"metadata": {"name": "bursar-budgets"}, "data": budgets},
        )
        for namespace in ("free", "spent", "limited"):
            self.add(namespace)
        stack.wait("the class to be seen by admission", lambda: self._takes(priorityClassName="urgent"))
        stack.wait("the budget to be heard", lambda: self._class_of("spent") == "gpu-lower-priority")

    def add(self, namespace: str) -> None:
        """A namespace, complete."""
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        self.stack.wait(f"the account of {namespace}", lambda: self.stack.exists(path))

    def creates(self, namespace: str, **spec: Any) -> tuple[Json, Json]:
        """`counted` for a half-card pod with these fields."""
        return self.counted(namespace, pod(**spec))

    def counted(self, namespace: str, made: Json) -> tuple[Json, dict[str, int]]:
        """The pod as it is stored, and how often each webhook was asked for it."""
        before = self.asked()
        stored = self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", made)
        after = self.asked()
        return stored, {name: after[name] - before.get(name, 0) for name in ("mutate", "validate")}

    def budget(self, namespace: str, text: str) -> None:
        """Writes the namespace's entry."""
        path = "/api/v1/namespaces/bursar-system/configmaps/bursar-budgets"
        self.api.call("PATCH", path, {"data": {namespace: text}}, "application/merge-patch+json")

    def limit(self, namespace: str, resource: str, **limits: Json) -> None:
        """A LimitRange that adds the resource to each container that the API server's own plugin sees, acted
        on."""
        limited = {"metadata": {"name": "range"}, "spec": {"limits": [{"type": "Container", **limits}]}}
        self.api.call("POST", f"/api/v1/namespaces/{namespace}/limitranges", limited)

        def is_acted_on() -> bool:
            plain = {
                "metadata": {"generateName": "cpu-"},
                "spec": {"containers": [{"name": "m", "image": "x"}]},
            }
            stored = self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", plain)
            return resource in stored["spec"]["containers"][0]["resources"].get("requests", {})

        eventually(is_acted_on, "the limit range to be seen by admission")

    def asked(self) -> dict[str, int]:
        """The reviews answered so far, by webhook."""
        lines = self.stack.get("/metrics", self.reader, self.stack.webhook_url)
        found: dict[str, int] = {}
        for name, count in re.findall(r'bursar_webhook_reviews_total\{.*webhook="(\w+)"\} ([0-9.]+)', lines):
            found[name] = found.get(name, 0) + int(float(count))
        return found

    def tls(self) -> Tls:
        """What the certificate process has written for the webhook."""
        found = object.__new__(Tls)
        found.folder = self.stack.tls / "webhook"
        return found

    def ca_bundle(self) -> str:
        """The CA that the API server trusts our webhook by."""
        configuration = self.api.call("GET", f"{_CONFIGURATIONS}/{CONFIGURATION}")
        return str(configuration["webhooks"][0]["clientConfig"]["caBundle"])

    def _takes(self, **spec: Any) -> bool:
        try:
            self.api.call("POST", "/api/v1/namespaces/free/pods?dryRun=All", pod(**spec))
        except ApiError:
            return False
        return True

    def _class_of(self, namespace: str) -> str:
        made = self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod())
        return str(made["spec"]["priorityClassName"])


def pod(**spec: Any) -> Json:
    """A half-card pod as a user writes it, which no scheduler touches."""
    main = {"name": "main", "image": "x", "resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}
    gates = [{"name": "example.com/test"}]
    return {
        "metadata": {"generateName": "p-"},
        "spec": {"containers": [main], "schedulingGates": gates, **spec},
    }


@pytest.fixture(scope="module")
def world(lender: Lender) -> Iterator[World]:
    """One for all tests here."""
    with lender.stack() as stack:
        yield World(stack)
        stack.start("timekeeper")
        stack.wait("the timekeeper", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")


ORDINARY: dict[str, tuple[str, Json, tuple[str, int, str]]] = {
    "a pod": ("free", {}, ("gpu-default-priority", 0, "PreemptLowerPriority")),
    "one that is demoted": ("spent", {}, ("gpu-lower-priority", -5, "Never")),
    "one whose own class is too high": (
        "free",
        {"priorityClassName": "urgent"},
        ("gpu-default-priority", 0, "PreemptLowerPriority"),
    ),
    "one whose own class is too high, demoted": (
        "spent",
        {"priorityClassName": "urgent"},
        ("gpu-lower-priority", -5, "Never"),
    ),
    "one without a token of its own": (
        "free",
        {"automountServiceAccountToken": False},
        ("gpu-default-priority", 0, "PreemptLowerPriority"),
    ),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_an_ordinary_pod_is_governed_once_and_checked_once(world: World, case: str) -> None:
    namespace, spec, expected = ORDINARY[case]

    stored, asked = world.creates(namespace, **spec)

    assert asked == {"mutate": 1, "validate": 1}
    found = stored["spec"]
    assert (found["priorityClassName"], found["priority"], found["preemptionPolicy"]) == expected


def test_the_sidecar_gets_no_token_but_ours(world: World) -> None:
    stored, _ = world.creates("free")

    (sidecar,) = (each for each in stored["spec"]["initContainers"] if each["name"] == "bursar-sidecar")
    assert [each["name"] for each in sidecar["volumeMounts"]] == ["bursar-token", "bursar-spool"]
    (main,) = stored["spec"]["containers"]
    assert [each["name"].rpartition("-")[0] for each in main["volumeMounts"]] == ["kube-api-access"]


def test_what_another_webhook_adds_after_us_brings_the_pod_back_once(world: World) -> None:
    injector = Injector(world.tls())
    world.api.call("POST", _CONFIGURATIONS, of_every_pod("zzz", injector, world.ca_bundle(), "Never"))

    def is_called() -> bool:
        world.creates("free")
        return bool(injector.calls)

    eventually(is_called, "the other webhook to be called")

    stored, asked = world.creates("free")
    world.api.call("DELETE", f"{_CONFIGURATIONS}/zzz")
    injector.end()

    assert asked == {"mutate": 2, "validate": 1}
    proxy = stored["spec"]["containers"][0]
    assert (proxy["name"], env(proxy)["NVIDIA_VISIBLE_DEVICES"]) == ("proxy", "void")


def test_what_a_limit_range_adds_to_the_sidecar_brings_the_pod_back_once(world: World) -> None:
    world.limit("limited", "ephemeral-storage", defaultRequest={"ephemeral-storage": "1Mi"})

    assert world.creates("limited")[1] == {"mutate": 2, "validate": 1}


def test_a_limit_range_with_a_maximum_of_gpus_adds_none_to_the_sidecar(world: World) -> None:
    """Kubernetes makes the maximum the default of each container that names nothing, and does so again after
    the webhooks."""
    world.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "bounded"}})
    world.limit("bounded", GPU, max={GPU: "8"})
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: "1"}}}

    stored, asked = world.creates("bounded", containers=[main])

    (sidecar,) = (init for init in stored["spec"]["initContainers"] if init["name"] == "bursar-sidecar")
    assert sidecar["resources"] == {"limits": {GPU: "0"}, "requests": {GPU: "0"}}
    assert stored["metadata"]["annotations"]["bursar.dev/request"].count("bursar-sidecar") == 0
    assert asked == {"mutate": 1, "validate": 1}


def test_a_pod_from_its_own_export_is_created_and_governed_anew(world: World) -> None:
    """As `kubectl replace --force` does with what it printed of a bound pod: delete, then create."""
    stored, _ = world.creates("free")
    exported = exported_of({"metadata": {**stored["metadata"], "name": "again"}, "spec": stored["spec"]})
    for field in ("uid", "resourceVersion", "generateName"):  # kubectl leaves them out
        del exported["metadata"][field]
    exported["spec"].pop("schedulingGates")

    again, asked = world.counted("free", exported)

    assert asked == {"mutate": 1, "validate": 1}
    assert "nodeName" not in again["spec"]
    assert again["metadata"]["annotations"] == stored["metadata"]["annotations"]
    names = [[init["name"] for init in pod["spec"]["initContainers"]] for pod in (again, stored)]
    assert names[0] == names[1]


def made_again(stored: Json, name: str) -> Json:
    """As `kubectl replace --force` makes it of what it printed of a pod that waits."""
    metadata = {part: stored["metadata"][part] for part in ("labels", "annotations")}
    return {"metadata": {**metadata, "name": name}, "spec": stored["spec"]}


@pytest.mark.parametrize("action", ["deprioritize", "deny"])
def test_a_pod_that_was_demoted_while_it_waited_and_is_made_again_is_in_budget(
    world: World, action: str
) -> None:
    namespace = f"again-{action}"
    world.add(namespace)
    world.budget(namespace, "gpuHours: 0\nperiod: month\n")
    eventually(lambda: world._class_of(namespace) == "gpu-lower-priority", "the budget to be heard")
    stored, _ = world.creates(namespace)
    assert stored["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    world.budget(namespace, f"gpuHours: 1000\nperiod: month\nonExhausted: {action}\n")
    eventually(lambda: world._class_of(namespace) == "gpu-default-priority", "the hours to be heard")

    again, asked = world.counted(namespace, made_again(stored, "again"))

    assert asked == {"mutate": 1, "validate": 1}
    assert again["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    spec = again["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "gpu-default-priority",
        0,
        "PreemptLowerPriority",
    )


def test_a_pod_restored_where_images_have_another_registry_gets_the_sidecar_of_here(world: World) -> None:
    stored, _ = world.creates("free")
    restored = made_again(stored, "restored")
    image = restored["spec"]["initContainers"][0]["image"]
    spec = {
        **restored["spec"],
        "initContainers": [{**restored["spec"]["initContainers"][0], "image": "elsewhere.example/s:1"}],
    }

    again, asked = world.counted("free", {**restored, "spec": spec})

    assert asked == {"mutate": 1, "validate": 1}
    assert [container["image"] for container in again["spec"]["initContainers"]] == [image]


def test_forty_copies_at_once_are_counted_as_forty_plain_pods_are(world: World) -> None:
    """Of 0.5 GPU-hours each takes a twelfth of an hour, and each of the two workers lets six through. The
    settler stands still meanwhile: two seconds after a count, its tick would take the count away."""
    stored, _ = world.creates("free")
    passed = {}

    def created(path: str, bodies: list[Json]) -> int:
        with ThreadPoolExecutor(40) as threads:
            said = threads.map(partial(answer, world.stack.cp, "POST", path), bodies)
            return sum(not answered.refusal for answered in said)

    for kind in ("plain", "copied"):
        namespace = f"burst-{kind}"
        world.add(namespace)
        dry = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        for hours, passing in (("0", 0), ("0.5", 40)):  # every worker has heard the former
            world.budget(namespace, f"gpuHours: {hours}\nperiod: month\nonExhausted: deny\n")
            eventually(lambda: created(dry, [pod()] * 40) == passing, f"{hours} hours to be heard")  # noqa: B023
        made = made_again(stored, "p") if kind == "copied" else pod()
        bodies = [{**made, "metadata": {**made["metadata"], "name": f"p{number}"}} for number in range(40)]
        path = f"/api/v1/namespaces/{namespace}/pods"
        with settler_stopped(world.stack.processes["timekeeper"].pid):
            passed[kind] = created(path, bodies)

    assert 0 < passed["plain"] <= 12
    assert 0 < passed["copied"] <= 12


def test_creations_that_fail_refuse_nobody_else_in_their_group(world: World) -> None:
    """Of a namespace over its own budget, that answer 409, and of one without a limit, whose quota is full:
    each of 21.3 hours, beside a group with 300."""
    world.budget("_group.lab", "gpuHours: 300\nperiod: month\nonExhausted: deny\n")
    entries = {"fails": "gpuHours: 0\n", "unlimited": "gpuHours: unlimited\n", "other": "gpuHours: 900\n"}
    for namespace, entry in entries.items():
        world.add(namespace)
        world.budget(namespace, f"{entry}period: month\ngroup: lab\n")
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    world.api.call("POST", "/api/v1/namespaces/unlimited/resourcequotas", quota)
    eventually(lambda: world._class_of("fails") == "gpu-lower-priority", "the budget to be heard")
    large = {"limits": {"bursar.dev/gpu-percent": "6400"}}
    containers = [{"name": f"c{number}", "image": "x", "resources": large} for number in range(2)]
    made = {**pod(containers=containers), "metadata": {"name": "taken"}}
    world.api.call("POST", "/api/v1/namespaces/fails/pods", made)

    failed: list[tuple[int, str]] = []
    for namespace, name in [("fails", "taken")] * 40 + [("unlimited", f"p{each}") for each in range(10)]:
        try:
            body = {**made, "metadata": {"name": name}}
            world.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        except ApiError as error:
            failed.append((error.status, "quota" if "quota" in str(error) else "exists"))
    path = "/api/v1/namespaces/other/pods"
    said = [answer(world.stack.cp, "POST", path, pod()).refusal for _ in range(6)]

    assert said == [""] * 6
    assert Counter(failed) == {(409, "exists"): 40, (403, "quota"): 10}
    left = world.stack.get("/v1/budgets/_group.lab", world.reader)["remaining"]
    assert left > 299 * 3_600_000_000


def test_a_class_made_anew_with_another_value_is_written_with_it_as_soon_as_it_arrives(world: World) -> None:
    """Until then such pods are refused, with the value of the class that is no more; or they get no class, if
    the timekeeper looked while there was none."""
    lower = world.api.call("GET", f"{_CLASSES}/gpu-lower-priority")
    world.api.call("DELETE", f"{_CLASSES}/gpu-lower-priority")
    anew = {"metadata": {"name": "gpu-lower-priority"}, "value": -50, "preemptionPolicy": "Never"}
    world.api.call("POST", _CLASSES, anew)
    stored: list[tuple[str | None, int]] = []
    refused: list[int] = []

    def is_taken() -> bool:
        try:
            spec = world.creates("spent")[0]["spec"]
        except ApiError as error:
            refused.append(error.status)
            return False
        stored.append((spec.get("priorityClassName"), spec["priority"]))
        return stored[-1][0] is not None

    eventually(is_taken, "the new value to be heard")

    assert stored[-1] == ("gpu-lower-priority", -50)
    assert set(stored[:-1]) <= {(None, 0)}
    assert set(refused) <= {403}
    assert lower["value"] == -5


def test_a_pod_to_which_the_cluster_gave_its_default_class_gets_ours(world: World) -> None:
    """As if its user had named none, also where a class above ours is refused."""
    everyday = {"metadata": {"name": "everyday"}, "value": 1_000, "globalDefault": True}
    world.api.call("POST", _CLASSES, everyday)
    plain = {"metadata": {"name": "cpu"}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    dry = "/api/v1/namespaces/free/pods?dryRun=All"
    eventually(lambda: world.api.call("POST", dry, plain)["spec"]["priority"] == 1_000, "the default class")
    path = "/api/v1/namespaces/bursar-system/configmaps/bursar-budgets"
    strict = {"data": {"_settings": "rules: {priority-class: enforce}"}}
    world.api.call("PATCH", path, strict, "application/merge-patch+json")
    eventually(lambda: not world._takes(priorityClassName="urgent"), "the rule to be enforced")

    eventually(world._takes, "a pod without a class to be admitted")

    stored, _ = world.creates("free")
    usual = {"data": {"_settings": "lookahead: 10m\n"}}
    world.api.call("PATCH", path, usual, "application/merge-patch+json")
    world.api.call("DELETE", f"{_CLASSES}/everyday")
    assert stored["spec"]["priorityClassName"] == "gpu-default-priority"


def test_without_the_timekeeper_the_api_server_fills_in_the_numbers_and_calls_again(world: World) -> None:
    world.stack.stop("timekeeper")
    found: list[Json] = []

    def is_asked_again() -> bool:
        stored, asked = world.creates("free")
        found.append(stored)
        return asked == {"mutate": 2, "validate": 1}

    eventually(is_asked_again, "the classes' numbers to age")

    spec = found[-1]["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
