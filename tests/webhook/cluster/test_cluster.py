"""The webhook, its certificates and its policies on a real API server."""

import copy
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from tests.support.control_plane import Answer, apply, apply_files, bind_role
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.clusters import Admin
from tests.webhook.injector import Injector, of_every_pod
from tests.webhook.replicas import certify
from tests.webhook.servers import ROOT, Webhook, environment
from tests.webhook.worlds import env, half, plain, sidecar_of
from tests.worlds import Json, container
from timekeeper.runtime.connect import connect
from webhook.controller.cluster import CertificateStore
from webhook.controller.issue import new_ca
from webhook.controller.plan import CertificatePair, leaves
from webhook.controller.run import certified
from webhook.settings.certificates import CONFIGURATION

pytestmark = pytest.mark.make_test("refuses and governs a pod")

MANIFESTS = ROOT / "deploy" / "manifests"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
NAMES = ("--extra-name", "127.0.0.1", "--extra-name", "localhost")
TIMEKEEPER = "system:serviceaccount:bursar-system:bursar-timekeeper"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = "/api/v1/namespaces/team-a/pods"
SECRETS = "/api/v1/namespaces/bursar-system/secrets"
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


class World(Admin):
    """A cluster with our policies and classes, and certificates that the certificate process made."""

    def __init__(self, cp: ControlPlane, folder: Path) -> None:
        super().__init__(cp)
        self.folder, self.tls_folder = folder, folder / "tls"
        self.certificates_log = folder / "certificates.log"
        for namespace in ("bursar-system", "team-a", "team-b", "strict"):
            self.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        apply_files(cp, [MANIFESTS / f"{name}.yaml" for name in ("priority-classes", "admission-policies")])

    def create(self, namespace: str, pod: Json) -> None:
        """Creates a pod."""
        self.post(f"/api/v1/namespaces/{namespace}/pods", pod)

    def changed(self, name: str, patch: Json | list[Json], how: str = "") -> str:
        """What a change of a pod of team-a, or of its subresource ``how``, is refused with; empty where it is
        done."""
        return self.answer("PATCH", f"{PODS}/{name}{how}", patch).refusal

    def annotated(self, name: str, annotations: Mapping[str, str | None]) -> str:
        """What a change of its annotations is refused with."""
        return self.changed(name, {"metadata": {"annotations": annotations}})

    def certificates(self, *flags: str) -> "subprocess.Popen[bytes]":
        """The certificate process, as admin."""
        command = [
            *(sys.executable, "-m", "webhook", "certificates", "--kubeconfig", str(self.cp.admin_kubeconfig)),
            *(
                "--write",
                str(self.tls_folder),
                *NAMES,
                *flags,
            ),
        ]
        with self.certificates_log.open("ab") as log:
            return subprocess.Popen(command, stderr=log, cwd=ROOT, env=environment())

    def certify(self) -> int:
        """One look of the certificate process: its exit code."""
        return self.certificates("--once").wait(timeout=LONGEST_S)

    def looks(self) -> bool:
        """The same without a process of its own: whether all is as it should be."""
        return certify(self.cp, self.folder, *NAMES)

    def configure(self, url: str) -> None:
        """Registers both webhooks by URL."""
        documents = list(yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text()))
        for document in documents:
            for each in document["webhooks"]:
                each["clientConfig"] = {"url": url + each["clientConfig"]["service"]["path"]}
        apply(self.cp, *documents)

    def ca_bundles(self) -> list[str]:
        """The caBundle of each webhook; empty where there is none."""
        found = [self.cp.api.call("GET", f"{CONFIGURATIONS}/{kind}/{CONFIGURATION}") for kind in KINDS]
        return [each["clientConfig"].get("caBundle", "") for one in found for each in one["webhooks"]]

    def tls(self) -> Tls:
        """What the certificate process has written for the webhook."""
        folder = self.tls_folder / "webhook"
        found = object.__new__(Tls)
        found.folder = folder
        found.ca = CertificatePair(b"", b"", (folder / "ca.crt").read_bytes())
        return found


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The cluster, certified, with webhook configurations that name no CA yet but for the first look's."""
    made = World(control_plane, tmp_path_factory.mktemp("world"))
    made.configure("https://127.0.0.1:1")
    assert made.certify() == 0
    return made


@pytest.fixture(scope="module")
def timekeeper(world: World) -> Iterator[SimulatedTimekeeper]:
    """A timekeeper whose leaf is of the same CA."""
    document = standings(team_a=entry("IN_BUDGET"), team_b=entry("OVER_BUDGET"))
    with SimulatedTimekeeper(world.tls(), document) as running:
        yield running


@pytest.fixture(scope="module")
def webhook(world: World, timekeeper: SimulatedTimekeeper) -> Iterator[Webhook]:
    """The webhook, registered, with its table heard."""
    with Webhook(
        world.folder, world.tls(), timekeeper.url, "--sidecar-image", "example/sidecar:1"
    ) as running:
        world.configure(running.url)
        eventually(
            lambda: running.log().count("event=standings-updated") == 2, "the standings in both workers"
        )
        yield running


def manifest(name: str, *containers: Json, **spec: Any) -> Json:
    """A pod as a user writes it."""
    metadata: Json = {"name": name}
    for key in ("annotations", "labels"):
        if key in spec:
            metadata[key] = spec.pop(key)
    whole = {"containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def stored(world: World, name: str, namespace: str = "team-a") -> Json:
    """A pod as the API server has it."""
    found: Json = world.cp.api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


def reviews(webhook: Webhook) -> int:
    """How many reviews have been answered."""
    return webhook.log().count("event=review")


def test_a_malformed_pod_is_refused_with_the_sentence_in_kubectls_output(
    world: World, webhook: Webhook
) -> None:
    pod = manifest("typo", container(gpu_percent="150"), nodeName="n1")

    code, said = world.said("create", "-n", "team-a", "-f", "-", input=json.dumps(pod))

    assert code != 0
    assert said.startswith('Error from server (Forbidden): error when creating "STDIN": ')
    assert 'admission webhook "govern.bursar.dev" denied the request: 2 problems:' in said
    assert (
        "1. spec.containers[0].resources.limits[bursar.dev/gpu-percent]: "
        "more than one card, but not a multiple of 100, "
        'got "150"; allowed: 1 to 100 for a share of one card, or a multiple of 100 for whole cards; '
        'for example bursar.dev/gpu-percent: "200"'
    ) in said
    assert "2. spec.nodeName: " in said


def test_a_good_pod_is_stored_governed(world: World, webhook: Webhook) -> None:
    world.create("team-a", manifest("good", half(), plain("web", env=ALL), initContainers=[plain("setup")]))

    pod = stored(world, "good")
    spec, metadata = pod["spec"], pod["metadata"]
    assert metadata["labels"] == {"bursar.dev/governed": "true"}
    assert metadata["annotations"] == {
        "bursar.dev/request": '{"main":{"devices":1,"memory_mib":0,"share_milli":500}}',
        "bursar.dev/standing": "IN_BUDGET",
    }
    assert (spec["priorityClassName"], spec["priority"]) == ("gpu-default-priority", 0)
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    assert spec["schedulerName"] == "bursar-scheduler"
    assert [each["name"] for each in spec["initContainers"]] == ["bursar-sidecar", "setup"]
    sidecar = sidecar_of(pod)
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("example/sidecar:1", "Always")
    assert env(sidecar)["BURSAR_CA"] == (world.tls_folder / "webhook" / "ca.crt").read_text()
    main, web = (env(each) for each in spec["containers"])
    assert main["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert (web, env(spec["initContainers"][1])) == ({"NVIDIA_VISIBLE_DEVICES": "void"},) * 2
    assert {each["name"] for each in spec["volumes"]} >= {"bursar-token", "bursar-spool"}


def test_a_pod_of_a_namespace_without_budget_is_demoted_with_a_warning(
    world: World, webhook: Webhook
) -> None:
    said = world.answer("POST", "/api/v1/namespaces/team-b/pods", manifest("poor", half()))

    warning = "Namespace team-b has used its GPU budget. This pod gets priority class gpu-lower-priority."
    assert said == Answer("", [warning])
    spec = stored(world, "poor", "team-b")["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "gpu-lower-priority",
        -5,
        "Never",
    )


def test_a_class_of_the_users_own_is_kept_or_replaced_by_its_value(world: World, webhook: Webhook) -> None:
    for name, value in (("urgent", 1_000), ("batch", -100)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        world.post("/apis/scheduling.k8s.io/v1/priorityclasses", kind | {"value": value})

    for name in ("urgent", "batch"):
        pod = manifest(f"own-{name}", half(), priorityClassName=name)
        eventually(
            lambda pod=pod: world.answer("POST", PODS, pod).refusal == "",  # type: ignore[misc]
            "the class to be seen by admission",
        )

    kept = stored(world, "own-batch")["spec"]
    assert (kept["priorityClassName"], kept["priority"]) == ("batch", -100)
    replaced = stored(world, "own-urgent")["spec"]
    assert (replaced["priorityClassName"], replaced["priority"]) == ("gpu-default-priority", 0)


def test_a_job_of_governed_pods_gets_them(world: World, webhook: Webhook) -> None:
    template = manifest("x", half(), restartPolicy="Never")
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    job["spec"] = {"template": {"metadata": {}, "spec": template["spec"]}}
    world.post("/apis/batch/v1/namespaces/team-a/jobs", job)

    def pods() -> list[Json]:
        path = "/api/v1/namespaces/team-a/pods?labelSelector=job-name%3Dj"
        return list(world.cp.api.call("GET", path)["items"])

    eventually(lambda: len(pods()) == 1, "the job's pod")
    assert pods()[0]["metadata"]["labels"]["bursar.dev/governed"] == "true"


def test_a_namespace_of_restricted_pod_security_takes_governed_pods(world: World, webhook: Webhook) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    world.patch("/api/v1/namespaces/strict", {"metadata": {"labels": level}})
    strict = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }

    world.create("strict", manifest("p", half(securityContext=strict)))

    assert sidecar_of(stored(world, "p", "strict"))["name"] == "bursar-sidecar"


def test_a_guaranteed_pod_stays_guaranteed(world: World, webhook: Webhook) -> None:
    limits = {"cpu": "1", "memory": "1Gi", "bursar.dev/gpu-percent": "50"}
    one = {"name": "main", "image": "x", "resources": {"limits": limits}}

    world.create("team-a", manifest("guaranteed", one))

    assert stored(world, "guaranteed")["status"]["qosClass"] == "Guaranteed"


def test_pods_that_are_none_of_our_business_do_not_come_to_us(world: World, webhook: Webhook) -> None:
    before = reviews(webhook)
    world.create(
        "team-a", manifest("cpu", plain(), annotations={"note": "bursar.dev/x"}, labels={"app": "x"})
    )
    world.create("bursar-system", manifest("own", half()))
    assert world.annotated("cpu", {"note": "y"}) == ""
    world.cp.api.call("DELETE", f"{PODS}/cpu")

    assert "labels" not in stored(world, "own", "bursar-system")["metadata"]
    assert reviews(webhook) == before


GPU_PODS = {
    "a limit in a dialect that is not spoken": manifest(
        "m1", {"name": "c", "image": "x", "resources": {"limits": {"amd.com/gpu": "1"}}}
    ),
    "an init container's": manifest("m2", plain(), initContainers=[half("i")]),
    "cards by hand": manifest("m3", plain(env=ALL)),
    "cards by hand, in an init container": manifest("m4", plain(), initContainers=[plain("i", env=ALL)]),
    "a label": manifest("m5", plain(), labels={"bursar.dev/governed": "true"}),
    "a placement": manifest("m6", plain(), annotations={"visible-devices.bursar.dev/web": "GPU-1"}),
    "a limit": manifest("m9", plain(), annotations={"mps-memory.bursar.dev/web": "0=80000M"}),
    "gpu-manager's": manifest("m7", plain(), annotations={"tencent.com/predicate-node": "n1"}),
    "a gate": manifest("m8", plain(), schedulingGates=[{"name": "bursar.dev/hold"}]),
}


@pytest.mark.parametrize("case", GPU_PODS)
def test_every_way_to_a_card_comes_to_us(world: World, webhook: Webhook, case: str) -> None:
    before = reviews(webhook)

    world.answer("POST", PODS, GPU_PODS[case])

    assert reviews(webhook) > before


def test_a_pod_in_which_every_container_sees_no_card_does_not_come_to_us(
    world: World, webhook: Webhook
) -> None:
    """The sample void-for-everyone.yaml makes every pod of the cluster such a one: they must start while the
    webhook is down. A second value of the variable, which takes precedence, is reviewed."""
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    before = reviews(webhook)

    world.create("team-a", manifest("v1", plain(env=[void])))
    assert (stored(world, "v1")["metadata"]["name"], reviews(webhook)) == ("v1", before)

    world.answer("POST", PODS, manifest("v2", plain(env=[void, *ALL])))
    assert reviews(webhook) > before


def test_a_dry_run_stores_nothing_and_is_answered_the_same(world: World, webhook: Webhook) -> None:
    shown = world.post(f"{PODS}?dryRun=All", manifest("dry", half()))

    assert shown["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    with pytest.raises(ApiError):
        stored(world, "dry")
    assert "dry_run=true" in webhook.log()


def test_an_ephemeral_container_that_shows_itself_cards_is_refused(world: World, webhook: Webhook) -> None:
    for name, one in (("debugged", half()), ("debugged-cpu", plain())):
        world.create("team-a", manifest(name, one))

        said = world.changed(name, debugging(ALL), "/ephemeralcontainers")

        assert 'admission webhook "check.bursar.dev" denied the request' in said
        assert "spec.ephemeralContainers[0].env[NVIDIA_VISIBLE_DEVICES]" in said
        void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        assert world.changed(name, debugging(void), "/ephemeralcontainers") == ""


def debugging(variables: list[Json]) -> Json:
    """A patch that adds an ephemeral container."""
    return {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", "env": variables}]}}


# what another webhook does to a governed pod


@pytest.mark.parametrize("name", ["aaa-before-us", "zzz-after-us"])
def test_a_proxy_that_another_webhook_injects_sees_no_card_in_either_order_of_calls(
    world: World, webhook: Webhook, name: str
) -> None:
    injector = Injector(world.tls())
    configuration = of_every_pod(name, injector, world.ca_bundles()[0], "IfNeeded")
    world.post(f"{CONFIGURATIONS}/{KINDS[0]}", configuration)
    pods = (f"{name}-{number}" for number in range(1_000))
    found: list[Json] = []

    def created() -> bool:
        pod = next(pods)
        world.create("team-a", manifest(pod, half()))
        found.append(stored(world, pod))
        return bool(injector.calls)

    eventually(created, "the other webhook to be called")
    world.cp.api.call("DELETE", f"{CONFIGURATIONS}/{KINDS[0]}/{name}")
    injector.end()

    proxy, main = found[-1]["spec"]["containers"]
    assert (proxy["name"], env(proxy)["NVIDIA_VISIBLE_DEVICES"]) == ("proxy", "void")
    assert env(main)["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert [each["name"] for each in found[-1]["spec"]["initContainers"]] == ["bursar-sidecar"]
    answers = [
        line for line in webhook.log().splitlines() if f"pod={name}" in line and "webhook=mutate" in line
    ]
    assert len(answers) > len(found)  # the pod came a second time


# the policy inside the API server: what is there stays as it is


@pytest.fixture(scope="module")
def standing_pod(world: World, webhook: Webhook) -> str:
    """A governed pod that nobody has bound, with a user's own annotation and finalizer."""
    world.create("team-a", manifest("steady", half(), annotations={"bursar.dev/policy": "spread"}))
    return "steady"


FORBIDDEN: dict[str, Json] = {
    "metadata.annotations[bursar.dev/standing]": {"annotations": {"bursar.dev/standing": "UNLIMITED"}},
    "metadata.annotations[bursar.dev/request]": {"annotations": {"bursar.dev/request": None}},
    "metadata.annotations[bursar.dev/policy]": {"annotations": {"bursar.dev/policy": "binpack"}},
    "metadata.annotations[bursar.dev/devices]": {"annotations": {"bursar.dev/devices": "{}"}},
    "metadata.annotations[visible-devices.bursar.dev/main]": {
        "annotations": {"visible-devices.bursar.dev/main": "GPU-0,GPU-1"}
    },
    "metadata.annotations[mps-memory.bursar.dev/main]": {
        "annotations": {"mps-memory.bursar.dev/main": "0=80000M"}
    },
    "metadata.annotations[mps-threads.bursar.dev/main]": {
        "annotations": {"mps-threads.bursar.dev/main": "100"}
    },
    "metadata.annotations[tencent.com/predicate-gpu-idx-0]": {
        "annotations": {"tencent.com/predicate-gpu-idx-0": "0"}
    },
    "metadata.labels[bursar.dev/governed]": {"labels": {"bursar.dev/governed": None}},
}


@pytest.mark.parametrize("subresource", ["", "/status"], ids=["pods", "pods/status"])
@pytest.mark.parametrize("path", FORBIDDEN)
def test_what_bursar_has_written_cannot_be_patched(
    world: World, standing_pod: str, path: str, subresource: str
) -> None:
    said = world.changed(standing_pod, {"metadata": FORBIDDEN[path]}, subresource)

    assert "ValidatingAdmissionPolicy 'bursar-written-once'" in said
    assert path in said


def test_all_that_was_changed_is_named(world: World, standing_pod: str) -> None:
    changes = {
        "bursar.dev/request": "{}",
        "bursar.dev/standing": None,
        "visible-devices.bursar.dev/web": "GPU-1",
    }

    said = world.annotated(standing_pod, changes)

    for name in changes:
        assert name in said


ALLOWED: dict[str, tuple[str, Json]] = {
    "another's annotation": ("", {"metadata": {"annotations": {"note": "x"}}}),
    "another's label": ("", {"metadata": {"labels": {"app": "x"}}}),
    "a domain that only ends like ours": (
        "",
        {"metadata": {"annotations": {"local.bursar.dev/run-for": "5s"}}},
    ),
    "a finalizer": ("", {"metadata": {"finalizers": ["example.com/wait"]}}),
    "no finalizer": ("", {"metadata": {"finalizers": None}}),
    "a kubelet's status": (
        "/status",
        {"status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}},
    ),
    "a wake-up": (
        "/status",
        {"status": {"conditions": [{"type": "bursar.dev/CardFreed", "status": "True"}]}},
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_everything_else_may_be_changed(world: World, standing_pod: str, case: str) -> None:
    subresource, patch = ALLOWED[case]

    assert world.changed(standing_pod, patch, subresource) == ""


# A bound pod's annotations, and the update of its node plugin: gpu-manager's, which writes the cards that it
# has given out, in any order (`PreStartContainer`, which waits for this update), and that of
# gpushare-device-plugin, which writes the time of the Binding anew (`Allocate`).
PLUGINS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "tencent.com/gpu-assigned": (
        {"tencent.com/predicate-gpu-idx-0": "0,1", "tencent.com/predicate-time": "2"},
        {"tencent.com/predicate-gpu-idx-0": "1,0", "tencent.com/predicate-gpu-idx-10": "2"},
    ),
    "ALIYUN_COM_GPU_MEM_ASSIGNED": (
        {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "2", "ALIYUN_COM_GPU_MEM_IDX": "0"},
        {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "3"},
    ),
    "volcano.sh/gpu-assigned": ({"volcano.sh/gpu-index": "0"}, {}),
}


@pytest.mark.parametrize("flag", PLUGINS)
def test_a_node_plugin_turns_its_annotation_once_and_no_one_turns_it_back(
    world: World, webhook: Webhook, flag: str
) -> None:
    name = flag.lower().replace("/", "-").replace("_", "-")
    bound, turned = PLUGINS[flag]
    world.create("team-a", manifest(name, plain()))
    binding = {
        "metadata": {"name": name, "annotations": {flag: "false", **bound}},
        "target": {"kind": "Node", "name": "nowhere"},
    }
    world.post(f"{PODS}/{name}/binding", binding)

    forged: list[dict[str, str | None]] = [{flag: None}, {flag: "other"}]
    forged += [{other: "1"} for other in bound]
    beside: dict[str, str | None] = {flag: "true", "ALIYUN_COM_GPU_MEM_IDX": "1"}
    for change in (*forged, beside):
        assert "bursar-written-once" in world.annotated(name, change)

    assert world.annotated(name, {flag: "true", **turned}) == ""

    assert stored(world, name)["metadata"]["annotations"].items() >= {flag: "true", **turned}.items()
    back: dict[str, str | None] = {flag: "false"}
    for change in (*forged, back):
        assert "bursar-written-once" in world.annotated(name, change)


def test_while_devices_are_handed_out_a_containers_can_be_erased_but_not_repeated(
    world: World, webhook: Webhook
) -> None:
    phase, devices = "hami.io/bind-phase", "hami.io/vgpu-devices-to-allocate"
    first, second = "GPU-a,NVIDIA,3000,0:", "GPU-b,NVIDIA,9000,0:"
    world.post("/api/v1/nodes", {"metadata": {"name": "handing-out"}})
    world.create("team-a", manifest("handed-out", plain()))
    given = {phase: "allocating", devices: f"{first};{first};{second};"}
    world.post(
        "/api/v1/namespaces/team-a/pods/handed-out/binding",
        {
            "metadata": {"name": "handed-out", "annotations": given},
            "target": {"kind": "Node", "name": "handing-out"},
        },
    )

    def written(text: str) -> str:
        return world.annotated("handed-out", {devices: text})

    for forged in (f"{second};{second};{second};", f"{first};{first};{first};", "GPU-c,NVIDIA,1,0:;"):
        assert "bursar-written-once" in written(forged)
    for erased in (f";{first};{second};", f"{second};", ""):
        assert written(erased) == ""
    assert "bursar-written-once" in written(f"{first};")
    world.cp.api.call("DELETE", f"{PODS}/handed-out?gracePeriodSeconds=0")
    world.cp.api.call("DELETE", "/api/v1/nodes/handing-out")


def test_a_pod_that_is_not_governed_cannot_be_made_to_look_so(world: World, webhook: Webhook) -> None:
    world.create("team-a", manifest("outsider", plain()))

    for change in (
        {"labels": {"bursar.dev/governed": "true"}},
        {"annotations": {"bursar.dev/devices": "{}"}},
    ):
        assert "bursar-written-once" in world.changed("outsider", {"metadata": change})


def test_a_binding_writes_the_cards_and_no_one_after_it(world: World, webhook: Webhook) -> None:
    world.create("team-a", manifest("bound", half()))
    binding = {
        "metadata": {"name": "bound", "annotations": {"visible-devices.bursar.dev/main": "GPU-0"}},
        "target": {"kind": "Node", "name": "nowhere"},
    }

    world.post("/api/v1/namespaces/team-a/pods/bound/binding", binding)

    assert stored(world, "bound")["metadata"]["annotations"]["visible-devices.bursar.dev/main"] == "GPU-0"
    assert "bursar-written-once" in world.annotated("bound", {"visible-devices.bursar.dev/main": "all"})
    world.cp.api.call("DELETE", f"{PODS}/bound?gracePeriodSeconds=0")


def test_a_gate_of_ours_is_opened_by_the_timekeeper_alone(world: World, webhook: Webhook) -> None:
    """No gate of ours passes admission from a user, so the pod is made where the webhook does not look."""
    gates = [{"name": "bursar.dev/budget"}, {"name": "example.com/wait"}]
    world.create("bursar-system", manifest("gated", plain(), schedulingGates=gates))
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}
    world.post(f"{RBAC}/clusterroles", {"metadata": {"name": "opens-gates"}, "rules": [rule]})
    bind_role(world.cp, "opens-gates", TIMEKEEPER)

    def opened(left: list[Json], user: str = "") -> str:
        path = "/api/v1/namespaces/bursar-system/pods/gated"
        patch = [{"op": "replace", "path": "/spec/schedulingGates", "value": left}]
        return world.answer("PATCH", path, patch, user).refusal

    said = opened([])
    assert "spec.schedulingGates[bursar.dev/budget]: only Bursar removes this gate" in said
    assert opened([gates[0]]) == ""
    eventually(lambda: opened([], TIMEKEEPER) == "", "the timekeeper to be let")
    assert "schedulingGates" not in stored(world, "gated", "bursar-system")["spec"]


def test_a_pod_of_a_pod_group_is_admitted_where_the_feature_is_off(world: World, webhook: Webhook) -> None:
    pod = manifest("grouped", half(), schedulingGroup={"podGroupName": "g"})

    assert world.answer("POST", PODS, pod).refusal == ""
    assert "schedulingGroup" not in stored(world, "grouped")["spec"]


GANG = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
FORGED: dict[str, dict[str, Any]] = {
    "the mark of a start": {"annotations": GANG | {"bursar.dev/gang-started": "2026-11-28T00:00:00Z"}},
    "with how many it starts": {"annotations": GANG | {"bursar.dev/gang-needs": "1"}},
    "another gang's key": {"annotations": GANG | {"bursar.dev/gang-key": "bursar/other"}},
    "the gate": {"annotations": GANG, "schedulingGates": [{"name": "bursar.dev/gang"}]},
}


@pytest.mark.parametrize("case", FORGED)
def test_what_a_user_forges_of_a_gang_is_removed_from_pods_and_refused_in_templates(
    world: World, webhook: Webhook, case: str
) -> None:
    pod = manifest("forged", half(), **FORGED[case])
    template = {"metadata": pod["metadata"], "spec": {**pod["spec"], "restartPolicy": "Never"}}
    job = {"metadata": {"name": "forged"}, "spec": {"template": template}}

    made = world.cp.api.call("POST", f"{PODS}?dryRun=All", pod)
    of_job = world.answer("POST", "/apis/batch/v1/namespaces/team-a/jobs", job).refusal

    annotations = made["metadata"]["annotations"]
    assert annotations.items() >= (GANG | {"bursar.dev/gang-key": "bursar/g"}).items()
    assert {"bursar.dev/gang-started", "bursar.dev/gang-needs"}.isdisjoint(annotations)
    gates = [gate["name"] for gate in made["spec"]["schedulingGates"]]
    assert gates == ["bursar.dev/budget", "bursar.dev/gang"]
    assert "only Bursar and node plugins write this" in of_job
    assert "spec.template." in of_job


def test_what_was_wrong_before_and_is_unchanged_keeps_no_one_from_an_update(
    world: World, webhook: Webhook
) -> None:
    world.create(
        "bursar-system",
        manifest(
            "old",
            plain(),
            annotations={"bursar.dev/request": "nonsense"},
            labels={"bursar.dev/governed": "x"},
        ),
    )

    path = "/api/v1/namespaces/bursar-system/pods/old"
    world.patch(path, {"metadata": {"annotations": {"note": "x"}}})
    world.patch(path, {"metadata": {"labels": {"app": "x"}}})
    world.cp.api.call("DELETE", path)


# certificates


def test_the_certificate_process_made_the_secrets_and_wrote_the_ca(world: World) -> None:
    secrets = {
        each["metadata"]["name"]: sorted(each["data"]) for each in world.cp.api.call("GET", SECRETS)["items"]
    }

    assert secrets == {
        "bursar-ca": ["ca.crt", "ca.key"],
        "bursar-scheduler-tls": ["ca.crt", "tls.crt", "tls.key"],
        "bursar-timekeeper-tls": ["ca.crt", "tls.crt", "tls.key"],
        "bursar-webhook-tls": ["ca.crt", "tls.crt", "tls.key"],
    }
    assert all(world.ca_bundles())


def test_a_second_look_changes_nothing(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    before = (world.tls_folder / "webhook" / "tls.crt").read_bytes()

    assert world.looks()

    assert (world.tls_folder / "webhook" / "tls.crt").read_bytes() == before
    assert capfd.readouterr().err == ""


def test_a_ca_bundle_that_someone_took_away_is_put_back_and_calls_work_again(
    world: World, webhook: Webhook
) -> None:
    patch = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    process = world.certificates("--every", "1")
    try:
        for kind in KINDS:
            world.patch(f"{CONFIGURATIONS}/{kind}/{CONFIGURATION}", patch)

        eventually(lambda: all(world.ca_bundles()), "the CA to be written again")
        pod = manifest("again", half())
        eventually(lambda: world.answer("POST", PODS, pod).refusal == "", "a pod to be created again")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LONGEST_S) == 0
    assert stored(world, "again")["metadata"]["labels"] == {"bursar.dev/governed": "true"}


def test_a_secret_that_someone_deleted_is_made_again_by_the_same_ca(world: World) -> None:
    ca = world.ca_bundles()
    world.cp.api.call("DELETE", f"{SECRETS}/bursar-webhook-tls")

    assert world.looks()

    assert world.ca_bundles() == ca
    assert world.cp.api.answers(f"{SECRETS}/bursar-webhook-tls")


def test_two_certificate_processes_that_begin_together_agree_on_one_ca(world: World) -> None:
    world.cp.api.call("DELETE", SECRETS)
    both = [world.certificates("--once") for _ in range(2)]

    assert [each.wait(timeout=LONGEST_S) for each in both] == [0, 0]
    found = world.cp.api.call("GET", SECRETS)["items"]
    assert len({each["data"]["ca.crt"] for each in found}) == 1
    assert set(world.ca_bundles()) == {found[0]["data"]["ca.crt"]}


def test_a_write_that_someone_else_was_faster_with_is_not_done(world: World) -> None:
    cluster = CertificateStore(connect(world.cp.admin_kubeconfig), "bursar-system")
    pair, version = cluster.secret("bursar-ca")
    assert pair is not None

    assert not cluster.store("bursar-ca", pair, "")
    assert cluster.store("bursar-ca", replace(pair, bundle=pair.bundle + pair.bundle), version)
    assert not cluster.store("bursar-ca", pair, version)
    world.cp.api.call("DELETE", f"{SECRETS}/bursar-ca")
    assert not cluster.store("bursar-ca", pair, version)
    assert cluster.store("bursar-ca", pair, "")


def test_the_ca_that_was_written_first_signs_the_leaves(world: World) -> None:
    cluster = CertificateStore(connect(world.cp.admin_kubeconfig), "bursar-system")
    world.cp.api.call("DELETE", SECRETS)
    theirs = new_ca(b"", datetime.now(UTC))
    looks: list[bool] = []

    def clock() -> datetime:
        """Asked between what is read and what is written: there the other one is faster."""
        looks.append(cluster.store("bursar-ca", theirs, "") if not looks else False)
        return datetime.now(UTC)

    ca, stored = certified(cluster, leaves("bursar-system", ("127.0.0.1", "localhost")), clock)

    assert looks == [True, False]
    assert ca.certificate == theirs.certificate
    assert {each.bundle for each in stored.values()} == {theirs.bundle}
    assert world.looks()


def test_a_missing_configuration_is_reported_and_the_rest_is_done(world: World) -> None:
    document = world.cp.api.call("GET", f"{CONFIGURATIONS}/{KINDS[0]}/{CONFIGURATION}")
    world.cp.api.call("DELETE", f"{CONFIGURATIONS}/{KINDS[0]}/{CONFIGURATION}")
    try:
        assert world.certify() == 1
        last = world.certificates_log.read_text().splitlines()[-1]
        assert "event=not-trusted" in last
        assert f"mutatingwebhookconfigurations/{CONFIGURATION}" in last
    finally:
        again = copy.deepcopy(document)
        again["metadata"] = {"name": CONFIGURATION}
        world.post(f"{CONFIGURATIONS}/{KINDS[0]}", again)
        assert world.looks()


def test_no_way_to_an_api_server_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "webhook", "certificates", "--kubeconfig", str(tmp_path / "absent")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
    )

    assert done.returncode == 2
    assert done.stderr.startswith("bursar-webhook certificates: --kubeconfig ")
    assert done.stderr.count("\n") == 1
