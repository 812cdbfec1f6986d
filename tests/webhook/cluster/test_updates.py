"""What a tenant who may change, evict and delete pods cannot do to a GPU pod, on a real API server with the
policies alone: each attack, and the nearest harmless request."""

import json
import string
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.cases import a_pod
from tests.webhook.policies import Policies
from tests.webhook.worlds import plain
from tests.worlds import Json
from timekeeper.core.admission.rules.size import MAX_BYTES
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.runtime.connect import connect
from timekeeper.settler.grace_policies import GracePolicies
from webhook.admission.cel import MAX_ENTRIES

PODS = "/api/v1/namespaces/team-a/pods"
LONGEST_S = BudgetSettings().max_grace_period_ms // 1000
EXTENDER = "--as=system:serviceaccount:bursar-system:bursar-scheduler"
TOO_LONG = f'and this one is too long, got "{LONGEST_S + 1}"; allowed: at most {LONGEST_S} seconds'
MAX_OF_ETCD = 1536 * 1024


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """The policies in force, and a node."""
    made = Policies(control_plane)
    control_plane.api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    make(made, "probe")
    made.kubectl(
        "create", "clusterrolebinding", "extender", "--clusterrole=cluster-admin", f"--user={EXTENDER[5:]}"
    )
    image = {"spec": {"containers": [{"name": "bursar-sidecar", "image": "other"}]}}
    make(made, "probe-sidecar", containers=[plain("bursar-sidecar")])
    eventually(
        lambda: (
            "denied" in made.said("DELETE", f"{PODS}/probe?dryRun=All&gracePeriodSeconds=9999")
            and "denied" in evicted(made, "probe", 9999)
            and "denied" in made.said("PATCH", f"{PODS}/probe-sidecar?dryRun=All", image)
        ),
        "the policies to be in force",
    )
    return made


def make(policies: Policies, name: str, governed: bool = True, bound: bool = True, **fields: Any) -> Json:
    """Creates a pod, bound to a node without a kubelet."""
    metadata = {"name": name, "labels": {"bursar.dev/governed": "true"} if governed else {}}
    metadata |= {each: fields.pop(each) for each in ("annotations", "finalizers") if each in fields}
    spec = {"containers": [plain()], **({"nodeName": "n1"} if bound else {}), **fields}
    pod: Json = policies.cp.api.call("POST", PODS, {"metadata": metadata, "spec": spec})
    return pod


def evicted(policies: Policies, name: str, grace_s: int | None, version: str = "v1") -> str:
    """What an eviction that stores nothing is refused with."""
    options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    body = {
        "apiVersion": f"policy/{version}",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "team-a"},
        "deleteOptions": options,
    }
    return policies.said("POST", f"{PODS}/{name}/eviction?dryRun=All", body)


def deleted(policies: Policies, name: str, grace_s: int | None = None) -> str:
    """What a deletion that stores nothing is refused with."""
    options = "" if grace_s is None else f"&gracePeriodSeconds={grace_s}"
    return policies.said("DELETE", f"{PODS}/{name}?dryRun=All{options}")


def patched(policies: Policies, name: str, patch: Json, manager: str = "tess", more: str = "") -> str:
    """What a patch is refused with."""
    return policies.said("PATCH", f"{PODS}/{name}?fieldManager={manager}{more}", patch)


# grace


def test_no_request_makes_the_grace_period_of_a_gpu_pod_longer_than_the_clusters(policies: Policies) -> None:
    make(policies, "graced")
    make(policies, "ungoverned", governed=False)
    make(policies, "slow", terminationGracePeriodSeconds=LONGEST_S + 100)

    too_long = [
        deleted(policies, "graced", LONGEST_S + 1),
        evicted(policies, "graced", LONGEST_S + 1),
        evicted(policies, "graced", LONGEST_S + 1, "v1beta1"),
        policies.said("DELETE", f"{PODS}?dryRun=All&gracePeriodSeconds={LONGEST_S + 1}"),
    ]
    assert all(each.startswith("403: pods ") for each in too_long), too_long
    assert all(TOO_LONG in each and each.endswith("[grace-period]") for each in too_long), too_long
    harmless = {
        f"{call.__name__} {name} {grace_s}": call(policies, name, grace_s)
        for call in (deleted, evicted)
        for name, graces in (
            ("graced", (None, 0, LONGEST_S)),
            ("ungoverned", (None, 10 * LONGEST_S)),
            ("slow", (None, LONGEST_S)),  # the API server itself fills in the period of the spec
        )
        for grace_s in graces
    }
    assert harmless == dict.fromkeys(harmless, "")
    kubelet = ("--as=system:node:n1", "--as-group=system:nodes", "--as-group=system:authenticated")
    options = ("--grace-period=0", "--force", "--dry-run=server")
    policies.kubectl("delete", "pod", "graced", "-n", "team-a", *options, *kubelet)


def test_the_namespace_controller_deletes_gpu_pods(policies: Policies) -> None:
    policies.namespace("leaving")
    pod = a_pod(plain(), nodeName="n1") | {
        "metadata": {"name": "p", "labels": {"bursar.dev/governed": "true"}}
    }
    policies.cp.api.call("POST", "/api/v1/namespaces/leaving/pods", pod)

    policies.cp.api.call("DELETE", "/api/v1/namespaces/leaving")

    def leaves() -> bool:
        (pod,) = policies.get("/api/v1/namespaces/leaving/pods")["items"]
        return "deletionTimestamp" in pod["metadata"]

    eventually(leaves, "the pod to be deleted")


def test_a_figure_that_is_not_the_budgets_is_reported(
    policies: Policies, capfd: pytest.CaptureFixture[str]
) -> None:
    longest_ms = [1000 * LONGEST_S]
    compared = GracePolicies(connect(policies.cp.admin_kubeconfig), lambda: longest_ms[0])
    compared.check()
    assert capfd.readouterr().err == ""

    longest_ms[0] *= 2
    compared.check()
    compared.check()
    longest_ms[0] //= 2
    compared.check()

    said = capfd.readouterr().err
    assert said.count("event=grace-policies-differ") == 2, "once for each policy"
    assert f"policy bursar-grace has '{LONGEST_S}', but maxGracePeriod is {2 * LONGEST_S} seconds" in said
    assert said.count("event=grace-policies-agree") == 1


# size

MANY = [f"{n:04d}{string.ascii_lowercase * 2}"[:50] for n in range(4000)]


def forged(fields: Json) -> Json:
    """Managed fields that nobody manages."""
    about = {"apiVersion": "v1", "fieldsType": "FieldsV1", "operation": "Apply", "manager": "forged"}
    return {"metadata": {"managedFields": [about | {"time": "2026-01-01T00:00:00Z", "fieldsV1": fields}]}}


# field -> what many of it, and one of it, is in a patch
GROWTH: dict[str, Callable[[list[str]], Json]] = {
    "labels": lambda names: {"metadata": {"labels": {f"{'x' * 200}/{each}": each for each in names[:990]}}},
    "finalizers": lambda names: {"metadata": {"finalizers": [f"{'x' * 200}/{each}" for each in names]}},
    "ownerReferences": lambda names: {
        "metadata": {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": each, "uid": each + "x" * 200}
                for each in names
            ]
        }
    },
    "tolerations": lambda names: {
        "spec": {"tolerations": [{"key": each, "operator": "Exists"} for each in names] * 3}
    },
    "nodeSelector": lambda names: {"spec": {"nodeSelector": {f"{'x' * 200}/{each}": each for each in names}}},
    "managedFields": lambda names: forged(
        {"f:metadata": {"f:labels": {f"f:{each}\u0001": {} for each in names * 2}}}
    ),
    "an image": lambda names: {
        "spec": {"containers": [{"name": "web", "image": "registry.example/" + "x/" * len(names) * 100}]}
    },
}


@pytest.mark.parametrize("field", GROWTH)
def test_an_update_that_makes_a_gpu_pod_too_large_is_refused_and_a_small_one_is_not(
    policies: Policies, field: str
) -> None:
    name = f"large-{field.replace(' ', '-').lower()}"
    long, gates = plain(args=["x" * 900_000]), [{"name": "team.example/wait"}]
    pod = make(policies, name, bound=False, containers=[long], schedulingGates=gates)
    ungoverned = make(
        policies, f"{name}-free", governed=False, bound=False, containers=[long], schedulingGates=gates
    )

    def patch(names: list[str], pod: Json) -> Json:
        made = GROWTH[field](names)
        if field == "tolerations":
            made["spec"]["tolerations"] = pod["spec"]["tolerations"] + made["spec"]["tolerations"]
        return made

    said = patched(policies, name, patch(MANY, pod), more="&dryRun=All")
    assert said.startswith(f'403: pods "{name}" is forbidden: '), said[:300]
    assert said.endswith("[pod-size]")
    assert patched(policies, name, patch(MANY[:1], pod), more="&dryRun=All") == ""
    assert (
        patched(policies, ungoverned["metadata"]["name"], patch(MANY, ungoverned), more="&dryRun=All") == ""
    )


def test_labels_added_until_they_are_refused_leave_room_for_all_that_others_write(policies: Policies) -> None:
    finalizers = ["team.example/first", "team.example/second"]
    make(policies, "stuffed", bound=False, containers=[plain(args=["x" * 900_000])], finalizers=finalizers)
    labels: Json = {}
    said, part = "", 0
    while not said:
        added = {f"{part:03d}{n:03d}{'x' * 240}/{'y' * 63}": "z" * 63 for n in range(50)}
        said, part = patched(policies, "stuffed", {"metadata": {"labels": added}}), part + 1
        labels |= {} if said else added

    assert said.endswith("or an update that adds nothing; for example removing labels [pod-size]")
    assert len(json.dumps(policies.get(f"{PODS}/stuffed"))) > MAX_BYTES
    # what adds nothing passes, by managers that never wrote to the pod before
    assert patched(policies, "stuffed", {"metadata": {"labels": {next(iter(labels)): None}}}, "remover") == ""
    assert patched(policies, "stuffed", {"metadata": {"finalizers": finalizers[:1]}}, "controller") == ""
    # a Binding, a long status, an eviction and a deletion
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "stuffed", "annotations": {"bursar.dev/devices": "d" * 60_000}},
        "target": {"kind": "Node", "name": "n1"},
    }
    path = f"{PODS}/stuffed/binding"
    policies.kubectl("create", "--raw", path, "-f", "-", EXTENDER, input=json.dumps(binding))
    status = {"status": {"phase": "Running", "message": "m" * 200_000}}
    assert policies.said("PATCH", f"{PODS}/stuffed/status", status) == ""
    assert patched(policies, "stuffed", {"metadata": {"finalizers": None}}, "another") == ""
    assert evicted(policies, "stuffed", None) == ""
    assert policies.said("DELETE", f"{PODS}/stuffed?gracePeriodSeconds=1") == ""


def test_annotations_leave_room_for_those_of_a_binding(policies: Policies) -> None:
    """The API server takes 256 KiB of annotations, and does not count those that a Binding adds."""
    make(policies, "annotated", bound=False)

    def kib(count: int) -> Json:
        return {"metadata": {"annotations": {"team.example/long": "x" * 1024 * count}}}

    assert "metadata.annotations: with these and those of a Binding" in patched(
        policies, "annotated", kib(200)
    )
    assert patched(policies, "annotated", kib(190)) == ""
    assert patched(policies, "annotated", kib(10)) == ""


# the sidecar


def test_no_update_changes_the_image_of_the_sidecar(policies: Policies) -> None:
    native = plain("bursar-sidecar", restartPolicy="Always")
    make(policies, "metered", initContainers=[native])
    make(policies, "metered-plain", containers=[plain(), plain("bursar-sidecar")])
    make(policies, "unmetered")

    def changed(pod: str, field: str, name: str) -> str:
        patch = {"spec": {field: [{"name": name, "image": "tenant.example/free:1"}]}}
        return policies.said("PATCH", f"{PODS}/{pod}", patch)

    for pod, field in (("metered", "initContainers"), ("metered-plain", "containers")):
        assert "must not change on an existing pod" in changed(pod, field, "bursar-sidecar")
        assert changed(pod, "containers", "web") == ""
    extra = {"spec": {"ephemeralContainers": [{"name": "bursar-sidecar", "image": "tenant.example/free:1"}]}}
    assert "[sidecar-name]" in policies.said("PATCH", f"{PODS}/unmetered/ephemeralcontainers", extra)
    extra["spec"]["ephemeralContainers"][0]["name"] = "debug"
    assert policies.said("PATCH", f"{PODS}/unmetered/ephemeralcontainers", extra) == ""


# too much to search


def test_a_pod_with_too_much_to_search_is_refused_and_the_largest_allowed_is_not(policies: Policies) -> None:
    many = {f"k{n}": "" for n in range(MAX_ENTRIES + 1)}
    most = dict(list(many.items())[:MAX_ENTRIES])
    for count, refused in ((MAX_ENTRIES, False), (MAX_ENTRIES + 1, True), (30_000, True)):
        said = policies.refusal(a_pod(plain(), annotations={f"k{n}": "" for n in range(count)}))
        assert ("[pod-parts]" in said) == refused == bool(said), (count, said[:300])
    # the API server has added the token's mount
    variables = [{"name": f"V{n}", "value": ""} for n in range(20_000)]
    assert "[pod-parts]" in policies.refusal(a_pod(plain(env=variables)))
    assert policies.refusal(a_pod(plain(env=variables[:-1]))) == ""
    make(policies, "searched", governed=False)
    for field in ("annotations", "labels"):
        assert "[pod-parts]" in patched(policies, "searched", {"metadata": {field: many}})
        assert patched(policies, "searched", {"metadata": {field: most}}) == ""
        assert patched(policies, "searched", {"metadata": {field: {"k0": None}}}) == ""


def test_what_would_be_searched_for_seconds_can_be_removed_at_once_and_not_one_by_one(
    policies: Policies,
) -> None:
    annotations = {f"k{n}": "" for n in range(30_000)}
    pods = "/api/v1/namespaces/kube-system/pods"
    body = {"metadata": {"name": "older", "annotations": annotations}, "spec": {"containers": [plain()]}}
    policies.cp.api.call("POST", pods, body)

    one = {"metadata": {"annotations": {"k0": None}}}
    assert "some of at most 5000" in policies.said("PATCH", f"{pods}/older", one)
    forged = dict.fromkeys(annotations) | {"bursar.dev/devices": "{}"}
    said = policies.said("PATCH", f"{pods}/older", {"metadata": {"annotations": forged}})
    assert "metadata.annotations[bursar.dev/devices]" in said
    assert policies.said("PATCH", f"{pods}/older", {"metadata": {"annotations": None}}) == ""


@pytest.mark.parametrize("long", ["", f"{'x' * 240}/{'y' * 50}"])
def test_from_a_pod_with_too_much_to_search_something_can_be_removed(policies: Policies, long: str) -> None:
    """It is from before the policies, or of a namespace that they leave out."""
    labels = {f"{long}k{n}": "" for n in range(2 * MAX_ENTRIES)}
    metadata = {"name": "old", "labels": labels, "finalizers": ["team.example/wait"]}
    pods = "/api/v1/namespaces/kube-system/pods"
    policies.cp.api.call("POST", pods, {"metadata": metadata, "spec": {"containers": [plain()]}})

    assert "[pod-parts]" in policies.said(
        "PATCH", f"{pods}/old", {"metadata": {"labels": {f"{long}k0": "changed"}}}
    )
    assert policies.said("PATCH", f"{pods}/old", {"metadata": {"labels": {f"{long}k0": None}}}) == ""
    assert policies.said("PATCH", f"{pods}/old", {"metadata": {"finalizers": None}}) == ""
    assert policies.said("PATCH", f"{pods}/old/status", {"status": {"phase": "Running"}}) == ""
    policies.cp.api.call("DELETE", f"{pods}/old")
