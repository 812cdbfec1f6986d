"""Governing on a real API server, beside other webhooks, controllers, quotas, limits and Pod Security; with a
sidecar, and with none."""

import base64
import copy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.support.control_plane import apply, apply_files
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.clusters import Admin
from tests.webhook.injector import CHANGES, Injector, configuration
from tests.webhook.servers import ROOT, Webhook
from tests.webhook.worlds import env, half, patch_of, patched, plain
from tests.worlds import Json
from webhook.settings.certificates import CONFIGURATION

MANIFESTS = ROOT / "deploy" / "manifests"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"

# A namespace's label says which of the webhooks it is reviewed by: they differ in their flags alone.
FLAGS = {
    "native": ("--sidecar", "native"),
    "off": ("--sidecar", "off"),
    "larger": ("--sidecar", "native", "--sidecar-resources", "cpu=100m,memory=128Mi"),
}
LABEL = "sidecars"
COST = 500 * 1_000  # of half a card over the lookahead, in milli-GPU x ms


class World(Admin):
    """A cluster with our policies and classes, a webhook for each way of injecting, and another's webhook
    called before and after ours."""

    def __init__(self, cp: ControlPlane, folder: Path, stack: ExitStack) -> None:
        super().__init__(cp)
        self.tls = Tls(folder / "tls")
        apply_files(cp, [MANIFESTS / f"{name}.yaml" for name in ("priority-classes", "admission-policies")])
        self.timekeeper = SimulatedTimekeeper(self.tls)
        stack.callback(self.timekeeper.end)
        self.timekeeper.document = standings(
            {"lookaheadMs": 1_000},
            spent_native=entry("OVER_BUDGET"),
            nearly_native=entry("IN_BUDGET", remaining=1),
            again_native=entry("IN_BUDGET", remaining=3 * COST // 2),
        )
        self.injector = Injector(self.tls)
        stack.callback(self.injector.end)
        for name in ("a-other", "z-other"):
            self.post(
                f"{CONFIGURATIONS}/mutatingwebhookconfigurations",
                configuration(name, self.injector, self.ca),
            )
        self.webhooks = {way: stack.enter_context(self._webhook(folder / way, way)) for way in FLAGS}
        for way, webhook in self.webhooks.items():
            self._register(way, webhook)
            eventually(lambda each=webhook: "event=standings-updated" in each.log(), "the standings")  # type: ignore[misc]
        self._namespaces: set[str] = set()

    @property
    def ca(self) -> str:
        """The CA of all webhooks, as configurations hold it."""
        return base64.b64encode(self.tls.ca.bundle).decode()

    def _webhook(self, folder: Path, way: str) -> Webhook:
        folder.mkdir()
        image = (
            "--sidecar-mirrors",
            "mirror.example/,example/sidecar:",
            "--sidecar-image",
            "example/sidecar:1",
        )
        return Webhook(folder, self.tls, self.timekeeper.url, *image, *FLAGS[way], workers=1)

    def _register(self, way: str, webhook: Webhook) -> None:
        documents = list(yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text()))
        documents = [each for each in documents if each["metadata"]["name"] == CONFIGURATION]
        for document in documents:
            document["metadata"]["name"] = f"bursar-{way}"
            for each in document["webhooks"]:
                path = each["clientConfig"]["service"]["path"]
                each["clientConfig"] = {"url": webhook.url + path, "caBundle": self.ca}
                selector = each.setdefault("namespaceSelector", {})
                selector["matchLabels"] = {LABEL: way}
        apply(self.cp, *documents)

    def namespace(self, name: str, way: str, probe: Json | None = None, **labels: str) -> str:
        """A namespace of this way of injecting, with labels of this key (``_`` for the slash), complete and
        seen by admission; made once. ``probe``: a container that it takes."""
        full = f"{name}-{way}"
        if full not in self._namespaces:
            keys = {key.replace("_", "/"): value for key, value in labels.items()}
            self.post("/api/v1/namespaces", {"metadata": {"name": full, "labels": {LABEL: way} | keys}})
            account = f"/api/v1/namespaces/{full}/serviceaccounts/default"
            eventually(lambda: self.cp.api.answers(account), "the namespace's service account")
            pod = manifest("probe", probe or half())
            eventually(lambda: self._is_reviewed(full, pod), f"{full} to be reviewed")
            self._namespaces.add(full)
        return full

    def _is_reviewed(self, namespace: str, pod: Json) -> bool:
        shown = self.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        return "labels" in shown["metadata"]

    def create(self, namespace: str, pod: Json) -> Json:
        """Creates a pod, and reads it back."""
        self.post(f"/api/v1/namespaces/{namespace}/pods", pod)
        return self.stored(namespace, pod["metadata"]["name"])

    def refused(self, namespace: str, pod: Json) -> str:
        """Why the pod is not created."""
        with pytest.raises(ApiError) as raised:
            self.post(f"/api/v1/namespaces/{namespace}/pods", pod)
        return str(raised.value)

    def stored(self, namespace: str, name: str) -> Json:
        """A pod as the API server has it."""
        found: Json = self.cp.api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def pods(self, namespace: str, selector: str) -> list[Json]:
        """The pods with this label."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector.replace('=', '%3D')}"
        return list(self.cp.api.call("GET", path)["items"])


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster with all webhooks answering."""
    with ExitStack() as stack:
        yield World(control_plane, tmp_path_factory.mktemp("world"), stack)


def manifest(name: str, *containers: Json, labels: Json | None = None, **spec: Any) -> Json:
    """A pod as a user writes it."""
    metadata: Json = {"name": name} | ({"labels": labels} if labels else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers), **spec},
    }


def named(pod: Json) -> dict[str, Json]:
    """Every container by name; there are no two of a name."""
    both = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    found = {each["name"]: each for each in both}
    assert len(found) == len(both)
    return found


def sees(container: Json) -> object:
    """What NVIDIA_VISIBLE_DEVICES is in the container."""
    return env(container).get("NVIDIA_VISIBLE_DEVICES")


def own(name: str) -> str:
    """The field by which a container reads its cards."""
    return f"metadata.annotations['visible-devices.bursar.dev/{name}']"


def is_governed(pod: Json, way: str = "native") -> None:
    """Fails where the pod of one GPU container ``main`` is not governed as it should be."""
    metadata, containers = pod["metadata"], named(pod)
    assert metadata["labels"]["bursar.dev/governed"] == "true"
    assert metadata["annotations"]["bursar.dev/request"] == (
        '{"main":{"devices":1,"memory_mib":0,"share_milli":500}}'
    )
    assert pod["spec"]["schedulerName"] == "bursar-scheduler"
    expected = dict.fromkeys(containers, "void") | {"main": own("main")}
    if way == "native":
        expected["bursar-sidecar"] = own("bursar-sidecar")
        assert containers["bursar-sidecar"].get("restartPolicy") == "Always"
        volumes = [each["name"] for each in pod["spec"]["volumes"]]
        assert sorted(each for each in volumes if each.startswith("bursar-")) == [
            "bursar-spool",
            "bursar-token",
        ]
    assert {name: sees(each) for name, each in containers.items()} == expected
    assert ("bursar-sidecar" in containers) is (way == "native")


# other mutating webhooks


# who is called when, and whether again where the pod was changed
ORDERS = (
    *(("a-other", "IfNeeded"), ("z-other", "IfNeeded"), ("both", "IfNeeded")),
    *(("a-other", "Never"), ("z-other", "Never")),
)
# each change in each order, and each of these with a sidecar or without one
PAIRS = [
    (change, *order, ("native", "off")[(number + place) % 2])
    for number, change in enumerate(CHANGES)
    for place, order in enumerate(ORDERS)
]


@pytest.mark.parametrize(("change", "called", "again", "way"), PAIRS)
def test_whatever_another_webhook_adds_before_or_after_us_the_pod_is_governed_once(
    world: World, change: str, called: str, again: str, way: str
) -> None:
    namespace = world.namespace("beside", way)
    name = f"{change}-{called}-{again}".lower()
    labels = {"change": change, "called": called, "again": again}
    pod = manifest(name, half(), plain("web"), labels=labels, initContainers=[plain("setup")])

    created = world.create(namespace, pod)

    is_governed(created, way)
    calls = [path for path, pod in world.injector.calls if pod == name]
    assert set(calls) == {change}
    if again == "IfNeeded":
        assert len(calls) > 1 or way == "off"


def test_a_proxy_that_an_api_server_adds_after_our_first_call_brings_a_second_one(world: World) -> None:
    namespace = world.namespace("beside", "native")
    labels = {"change": "native-first", "called": "z-other", "again": "Never"}

    created = world.create(namespace, manifest("called-twice", half(), labels=labels))

    first, *_ = created["spec"]["initContainers"]
    assert (first["name"], sees(first)) == ("native-proxy", "void")
    assert len(answers(world, "native", "called-twice", "mutate")) == 2


def answers(world: World, way: str, pod: str, webhook: str) -> list[str]:
    """The webhook's log lines of this pod."""
    return [
        line
        for line in world.webhooks[way].log().splitlines()
        if f"pod={pod} " in line and f"webhook={webhook}" in line
    ]


REFUSED = {
    ("stubborn", "z-other", "IfNeeded"): True,
    ("stubborn", "z-other", "Never"): False,
    ("stubborn", "a-other", "IfNeeded"): False,
    ("takes-away", "z-other", "IfNeeded"): True,
    ("takes-away", "z-other", "Never"): False,
    ("takes-away", "a-other", "IfNeeded"): False,
}


@pytest.mark.parametrize(("change", "called", "again"), REFUSED)
def test_where_another_webhook_has_the_last_word_against_us_the_pod_is_refused_and_never_half_governed(
    world: World, change: str, called: str, again: str
) -> None:
    namespace = world.namespace("beside", "native")
    name = f"{change}-{called}-{again}".lower()
    labels = {"change": change, "called": called, "again": again}
    pod = manifest(name, half(), labels=labels)

    if REFUSED[change, called, again]:
        assert "another webhook or a race changed what Bursar wrote here" in world.refused(namespace, pod)
    else:
        is_governed(world.create(namespace, pod))


def test_a_request_that_another_webhook_adds_after_us_is_refused_as_ungoverned(world: World) -> None:
    namespace = world.namespace("beside", "native")
    after = {"change": "asks", "called": "z-other", "again": "Never"}

    said = world.refused(namespace, manifest("late", plain("main"), labels=after))

    assert 'admission webhook "check.bursar.dev" denied the request' in said
    before = {**after, "called": "a-other"}
    is_governed(world.create(namespace, manifest("early", plain("main"), labels=before)))


# what controllers create


def of_controller(kind: str, name: str) -> tuple[str, Json]:
    """Where a workload of this kind is created, and itself: one pod of half a card."""
    labels = {"app": name}
    spec: Json = {"containers": [half()]} | ({"restartPolicy": "Never"} if kind == "Job" else {})
    template = {"metadata": {"labels": labels}, "spec": spec}
    group = "batch" if kind == "Job" else "apps"
    workload: Json = {"template": template}
    if kind != "Job":
        workload["selector"] = {"matchLabels": labels}
    if kind == "StatefulSet":
        workload["serviceName"] = name
    body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, "spec": workload}
    return f"/apis/{group}/v1/namespaces/{{}}/{kind.lower()}s", body


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "StatefulSet", "Job"])
def test_pods_that_a_controller_makes_are_governed_whatever_name_they_have_yet(
    world: World, kind: str
) -> None:
    namespace = world.namespace("made", "native")
    path, body = of_controller(kind, kind.lower())

    world.post(path.format(namespace), body)

    eventually(lambda: len(world.pods(namespace, f"app={kind.lower()}")) == 1, "the controller's pod")
    (pod,) = world.pods(namespace, f"app={kind.lower()}")
    is_governed(pod)
    assert pod["metadata"]["generateName"].startswith(f"{kind.lower()}-")


def test_the_namespace_of_the_request_counts_where_the_object_names_none(world: World) -> None:
    spent = world.namespace("spent", "native")
    raw = manifest("*", half())
    del raw["metadata"]["name"]
    raw["metadata"]["generateName"] = "of-a-controller-"

    response = world.webhooks["native"].review("/mutate", raw, namespace=spent)

    governed = patched(raw, patch_of(response))
    assert governed["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert governed["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert "of-a-controller-*" in world.webhooks["native"].log()


def test_a_governed_pod_that_is_taken_as_a_manifest_is_governed_as_it_was(world: World) -> None:
    """`kubectl get -o yaml`, edited and created under another name, also where the setting has changed."""
    original = world.create(world.namespace("copied", "native"), manifest("original", half()))
    for now in ("native", "off"):
        copied = world.create(world.namespace("copied", now), copy_of(original, "copy"))

        is_governed(copied)
        assert copied["spec"]["volumes"] == original["spec"]["volumes"]
        assert named(copied)["bursar-sidecar"] == named(original)["bursar-sidecar"]


def copy_of(pod: Json, name: str) -> Json:
    """The pod as people take it over into a manifest."""
    copied = copy.deepcopy(pod)
    del copied["status"]
    copied["metadata"] = {
        "name": name,
        "labels": pod["metadata"]["labels"],
        "annotations": pod["metadata"]["annotations"],
    }
    return copied


def test_a_pod_keeps_a_sidecar_with_a_mirrored_image_and_gets_ours_for_another_image(
    world: World,
) -> None:
    namespace = world.namespace("brought", "native")
    original = world.create(namespace, manifest("original", half()))

    def bringing(name: str, **changed: object) -> Json:
        copied = copy_of(original, name)
        named(copied)["bursar-sidecar"].update(changed)
        return copied

    ours = named(original)["bursar-sidecar"]["image"]
    for number, image in enumerate(("tenant.example/free:1", "tenant.example/mirror.example/sidecar:1")):
        created = world.create(namespace, bringing(f"own-{number}", image=image))
        is_governed(created)
        assert named(created)["bursar-sidecar"]["image"] == ours
    reserved = "is reserved for the container that Bursar adds"
    changes: tuple[Json, ...] = ({"command": ["sleep"]}, {"args": ["free"]})
    for changed in changes:
        assert reserved in world.refused(namespace, bringing("own", **changed)), changed
    mirrored = world.create(namespace, bringing("mirrored", image="mirror.example/example/sidecar:1"))
    is_governed(mirrored)
    assert named(mirrored)["bursar-sidecar"]["image"] == "mirror.example/example/sidecar:1"


def test_a_pod_that_another_release_governed_gets_its_settings_and_keeps_its_mounts(world: World) -> None:
    namespace = world.namespace("older", "native")
    original = world.create(namespace, manifest("original", half()))
    older = copy_of(original, "older")
    sidecar = named(older)["bursar-sidecar"]
    sidecar["image"] = "example/sidecar:0"
    sidecar["env"] = [{"name": "BURSAR_CA", "value": "older"}, {"name": "BURSAR_OLD", "value": "x"}]
    for mount in sidecar["volumeMounts"]:
        if mount["name"] == "bursar-token":
            mount["mountPath"] = "/var/run/bursar/token"

    stored = world.create(namespace, older)

    is_governed(stored)
    sidecar = named(stored)["bursar-sidecar"]
    assert sidecar["image"] == "example/sidecar:0"
    assert env(sidecar)["BURSAR_TOKEN_FILE"] == "/var/run/bursar/token/token"
    assert env(sidecar)["BURSAR_CA"] == world.tls.ca.bundle.decode()
    assert env(sidecar)["BURSAR_OLD"] == "x"


# what leaves no trace


def test_a_dry_run_spends_nothing_of_the_estimate_and_leaves_nothing_behind(world: World) -> None:
    """A single pod uses up what is left in these namespaces; so the second one that counts is demoted."""
    namespace = world.namespace("nearly", "native")
    path = f"/api/v1/namespaces/{namespace}/pods"

    dry = [world.post(f"{path}?dryRun=All", manifest(f"dry-{number}", half())) for number in range(5)]

    for pod in dry:
        is_governed(pod)
        assert pod["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    assert world.cp.api.call("GET", path)["items"] == []
    first, second = (world.create(namespace, manifest(name, half())) for name in ("first", "second"))
    assert first["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    assert second["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert {each["path"] for each in world.timekeeper.asked} == {"/v1/standings"}


def test_a_pod_that_is_reviewed_twice_counts_once(world: World) -> None:
    """A pod and a half fit into what is left in this namespace; so the third one is demoted."""
    namespace = world.namespace("again", "native")
    labels = {"change": "container-last", "called": "z-other", "again": "Never"}

    pods = [world.create(namespace, manifest(f"p{number}", half(), labels=labels)) for number in range(3)]

    assert len(answers(world, "native", "p0", "mutate")) == 2
    standings = [each["metadata"]["annotations"]["bursar.dev/standing"] for each in pods]
    assert standings == ["IN_BUDGET", "IN_BUDGET", "OVER_BUDGET"]


# what a namespace demands of every container


def amounts(cpu: str, memory: str, /, **requests: str) -> Json:
    """Resources of a container of half a card: limits, and requests where they differ."""
    limits = {"cpu": cpu, "memory": memory, "bursar.dev/gpu-percent": "50"}
    return {"limits": limits, "requests": limits | requests}


WHOLE = {"cpu": "2", "memory": "1Gi"}
QUALITIES: dict[str, tuple[Json, str]] = {
    "guaranteed": (manifest("p", half(resources=amounts("1", "1Gi"))), "Guaranteed"),
    "guaranteed-with-init": (
        manifest(
            "p", half(resources=amounts("1", "1Gi")), initContainers=[plain(resources={"limits": WHOLE})]
        ),
        "Guaranteed",
    ),
    "guaranteed-as-a-whole": (manifest("p", half(), resources={"limits": WHOLE}), "Guaranteed"),
    "burstable": (manifest("p", half(resources=amounts("1", "1Gi", cpu="500m"))), "Burstable"),
    "best-effort": (manifest("p", half()), "BestEffort"),
}


@pytest.mark.parametrize("way", ["native", "off"])
@pytest.mark.parametrize("case", QUALITIES)
def test_a_pods_quality_of_service_is_what_it_is_without_us(world: World, case: str, way: str) -> None:
    written, quality = QUALITIES[case]

    pod = world.create(world.namespace("qos", way), {**written, "metadata": {"name": case}})

    is_governed(pod, way)
    assert pod["status"]["qosClass"] == quality


@pytest.mark.parametrize("way", ["native", "off"])
def test_a_namespace_whose_quota_wants_every_amount_named_starts_governed_pods(
    world: World, way: str
) -> None:
    namespace = world.namespace("quota", way)
    hard = {"requests.cpu": "4", "requests.memory": "4Gi", "limits.cpu": "8", "limits.memory": "8Gi"}
    hard |= {"requests.ephemeral-storage": "1Gi", "limits.ephemeral-storage": "1Gi", "count/pods": "9"}
    quota = {"metadata": {"name": "all"}, "spec": {"hard": hard}}
    world.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/all"
    eventually(lambda: "used" in world.cp.api.call("GET", path).get("status", {}), "the quota to be computed")

    pod = world.create(namespace, manifest("p", half(resources=amounts("1", "1Gi", cpu="500m"))))

    is_governed(pod, way)
    told = world.cp.api.call("GET", path)["status"]["used"]
    used = {name: told[name] for name in told if name.endswith(("cpu", "memory"))}
    without = {"requests.cpu": "500m", "requests.memory": "1Gi", "limits.cpu": "1", "limits.memory": "1Gi"}
    sidecars = {
        "requests.cpu": "530m",
        "requests.memory": "1088Mi",
        "limits.cpu": "1030m",
        "limits.memory": "1088Mi",
    }
    assert used == (without if way == "off" else sidecars)
    said = world.refused(namespace, manifest("q", half()))
    assert "must specify" in said


LIMIT_RANGES: dict[str, Json] = {
    "minima": {
        "type": "Container",
        "min": {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
    },
    "minima and maxima": {
        "type": "Container",
        "min": {"cpu": "10m", "memory": "4Mi"},
        "max": {"cpu": "2", "memory": "2Gi"},
    },
    "defaults": {
        "type": "Container",
        "default": {"cpu": "1", "memory": "1Gi"},
        "defaultRequest": {"cpu": "250m", "memory": "256Mi"},
    },
    "a ratio": {
        "type": "Container",
        "default": {"cpu": "1", "memory": "1Gi"},
        "defaultRequest": {"cpu": "1", "memory": "1Gi"},
        "maxLimitRequestRatio": {"cpu": "1", "memory": "1"},
    },
    "of the pod": {
        "type": "Pod",
        "min": {"cpu": "100m", "memory": "64Mi"},
        "max": {"cpu": "1100m", "memory": "1200Mi"},
        "maxLimitRequestRatio": {"cpu": "1"},
    },
}


@pytest.mark.parametrize("way", ["native", "off"])
@pytest.mark.parametrize("case", LIMIT_RANGES)
def test_a_namespace_with_a_limit_range_starts_governed_pods(world: World, case: str, way: str) -> None:
    namespace = limited(world, case.replace(" ", "-"), way, LIMIT_RANGES[case])
    pods = {"named": half(resources=amounts("1", "1Gi")), "left-out": half()}
    if case == "of the pod":
        del pods["left-out"]  # refused without us too: nothing fills in a pod's own amounts

    for name, one in pods.items():
        is_governed(world.create(namespace, manifest(name, one)), way)


STRICT: Json = {
    "type": "Container",
    "default": {"cpu": "500m", "memory": "256Mi", "ephemeral-storage": "5Gi"},
    "maxLimitRequestRatio": {"ephemeral-storage": "1"},
}
ROOMY, FULL = {"cpu": "600m", "memory": "512Mi"}, {"cpu": "500m", "memory": "512Mi"}
AS_A_WHOLE: dict[str, tuple[Json, bool]] = {
    "no resources of the pod": ({}, True),
    "room for the sidecar": ({"requests": ROOMY, "limits": ROOMY}, True),
    "used up by the defaults": ({"requests": FULL, "limits": FULL}, False),
    "a limit of the pod alone, used up by the defaults": ({"limits": FULL}, False),
}


@pytest.mark.parametrize("way", ["native", "off"])
@pytest.mark.parametrize("case", AS_A_WHOLE)
def test_a_pod_that_starts_without_us_starts_where_a_namespace_fills_in_defaults(
    world: World, case: str, way: str
) -> None:
    whole, has_room = AS_A_WHOLE[case]
    namespace = limited(world, f"filled-in-{list(AS_A_WHOLE).index(case)}", way, STRICT)
    quota = {"metadata": {"name": "disk"}, "spec": {"hard": {"limits.ephemeral-storage": "5500Mi"}}}
    world.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/disk"
    eventually(lambda: "used" in world.cp.api.call("GET", path).get("status", {}), "the quota to be computed")

    pod = world.create(namespace, manifest("p", half(), **({"resources": whole} if whole else {})))

    is_governed(pod, way if has_room else "off")
    used = world.cp.api.call("GET", path)["status"]["used"]["limits.ephemeral-storage"]
    assert used == ("5184Mi" if way == "native" and has_room else "5Gi")


def limited(world: World, name: str, way: str, limit: Json) -> str:
    """A namespace in which this limit is in force."""
    namespace = world.namespace(name, way)
    body = {"metadata": {"name": "limits"}, "spec": {"limits": [limit]}}
    world.post(f"/api/v1/namespaces/{namespace}/limitranges", body)
    probe = manifest("probe", plain())

    def is_in_force() -> bool:
        try:
            shown = world.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", probe)
        except ApiError as error:
            return "usage per" in str(error)
        return "kubernetes.io/limit-ranger" in shown["metadata"].get("annotations", {})

    eventually(is_in_force, "the limit to be in force")
    return namespace


def test_minima_above_the_sidecars_amounts_want_larger_ones(world: World) -> None:
    minima = {"type": "Container", "min": {"cpu": "100m", "memory": "128Mi"}}
    pod = manifest("p", half(resources=amounts("1", "1Gi")))

    said = world.refused(limited(world, "strict-minima", "native", minima), pod)
    created = world.create(limited(world, "strict-minima", "larger", minima), pod)

    assert "minimum cpu usage per Container is 100m, but request is 30m" in said
    is_governed(created)
    asked = {"cpu": "100m", "memory": "128Mi", "bursar.dev/gpu-percent": "0"}
    assert named(created)["bursar-sidecar"]["resources"] == {"limits": asked, "requests": asked}


@pytest.mark.parametrize("way", ["native", "off"])
def test_a_namespace_of_restricted_pod_security_starts_governed_pods(world: World, way: str) -> None:
    enforce = {"pod-security.kubernetes.io_enforce": "restricted"}
    namespace = world.namespace("strict", way, probe=restricted(half()), **enforce)

    is_governed(world.create(namespace, manifest("p", restricted(half()))), way)

    assert 'violates PodSecurity "restricted' in world.refused(namespace, manifest("q", half()))


def restricted(container: Json) -> Json:
    """The container with what Pod Security's level restricted asks of it."""
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return container | {"securityContext": context}


def test_who_drains_a_node_of_governed_pods_must_allow_for_the_spool(world: World) -> None:
    """kubectl takes every emptyDir for data to be lost, also one in memory."""
    namespace = world.namespace("drained", "native")
    world.post("/api/v1/nodes", kwok_node("drained", cards=1, memory_mib=16_000, model="T4"))
    pod = world.create(namespace, manifest("p", half()))
    target = {"kind": "Node", "name": "drained"}
    world.post(
        f"/api/v1/namespaces/{namespace}/pods/p/binding", {"metadata": {"name": "p"}, "target": target}
    )

    def is_running() -> bool:
        return bool(world.stored(namespace, "p")["status"].get("phase") == "Running")

    eventually(is_running, "the pod to run")
    drain = ("drain", "drained", "--force", "--dry-run=server")

    done = world.cp.kubectl(*drain)

    assert done.returncode != 0
    assert f"--delete-emptydir-data to override): {namespace}/{pod['metadata']['name']}" in done.stderr
    world.kubectl(*drain, "--delete-emptydir-data")
