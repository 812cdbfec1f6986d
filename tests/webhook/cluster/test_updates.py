"""A real API server with the policies alone: what a tenant who may change, evict and delete pods cannot do
to a GPU pod, who removes Bursar's scheduling gates, and who writes a budget entry with `protect`. Each
attack, and the nearest harmless request."""

import json
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.gang_table import gang_key
from tests.deploy.reading import NAMESPACE, the
from tests.support.control_plane import applied, apply, bind_role, refused
from tests.support.waiting import eventually
from tests.webhook.cases import a_pod
from tests.webhook.policies import Policies
from tests.webhook.unit.test_configmaps import config_map
from tests.webhook.worlds import half, plain
from tests.worlds import Json
from timekeeper.accounts.held.order import HeldPod
from timekeeper.core.admission.rules.size import MAX_BYTES, MAX_ENTRIES
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.runtime.api_server import Answered, Api, Reply
from timekeeper.runtime.connect import connect
from timekeeper.settler.grace_policies import GracePolicies
from timekeeper.settler.releaser import patch_with, removal

PODS = "/api/v1/namespaces/team-a/pods"
LONGEST_S = BudgetSettings().max_grace_period_ms // 1000
EXTENDER = "system:serviceaccount:bursar-system:bursar-scheduler"
TOO_LONG = f'and this one is too long, got "{LONGEST_S + 1}"; allowed: at most {LONGEST_S} seconds'
MAX_OF_ETCD = 1536 * 1024

# of held pods
OURS, GANGS = {"name": "bursar.dev/budget"}, {"name": "bursar.dev/gang"}
THEIRS = {"name": "example.com/quota"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"

# of budget entries
PROTECTS = "gpuHours: 1\nprotect: {labels: {tier: serving}, cards: 4}"
FORBIDDEN = "data[team-a]: this entry has or had the field protect; writing it requires the right to create"
LABELLED = {"bursar.dev/budgets": "true"}


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """The policies in force, and a node."""
    made = Policies(control_plane)
    control_plane.api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    make(made, "probe")
    apply(control_plane, the("ClusterRole", "bursar-extender"), the("ClusterRoleBinding", "bursar-extender"))
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


@pytest.fixture(scope="module")
def long_pods(policies: Policies) -> dict[str, Json]:
    """Two pods with room for a little more, one of which is governed, by their names."""
    long, gates = plain(args=["x" * 900_000]), [{"name": "team.example/wait"}]
    return {
        name: make(policies, name, governed, bound=False, containers=[long], schedulingGates=gates)
        for name, governed in (("large", True), ("large-free", False))
    }


@pytest.mark.parametrize("field", GROWTH)
def test_an_update_that_makes_a_gpu_pod_too_large_is_refused_and_a_small_one_is_not(
    policies: Policies, long_pods: dict[str, Json], field: str
) -> None:
    def grown(name: str, names: list[str]) -> str:
        patch = GROWTH[field](names)
        if field == "tolerations":
            patch["spec"]["tolerations"] = (
                long_pods[name]["spec"]["tolerations"] + patch["spec"]["tolerations"]
            )
        return patched(policies, name, patch, more="&dryRun=All")

    said = grown("large", MANY)
    assert said.startswith('403: pods "large" is forbidden: '), said[:300]
    assert said.endswith("[pod-size]")
    assert grown("large", MANY[:1]) == ""
    assert grown("large-free", MANY) == ""


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
    assert refused(policies.cp, "POST", path, binding, EXTENDER) == ""
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
    for count, is_refused in ((MAX_ENTRIES, False), (MAX_ENTRIES + 1, True), (30_000, True)):
        said = policies.refusal(a_pod(plain(), annotations={f"k{n}": "" for n in range(count)}))
        assert ("[pod-parts]" in said) == is_refused == bool(said), (count, said[:300])
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


# who removes the gates

Patch = Callable[[str, Any], Reply]
TIMEKEEPER, SCHEDULER = "bursar-timekeeper", "bursar-scheduler"
BY = {TIMEKEEPER: OURS, SCHEDULER: GANGS}
MARK = "bursar.dev/gang-started"
FORGIVEN = "bursar.dev/gang-forgiven"
NEEDS = "bursar.dev/gang-needs"


@pytest.fixture(scope="module")
def apis(policies: Policies) -> dict[str, Api]:
    """Connections with the tokens of the two accounts, which have their rights."""
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    apply(policies.cp, *(the(each, TIMEKEEPER) for each in ("ClusterRole", "ClusterRoleBinding")))
    made = {}
    for account in BY:
        policies.cp.api.call("POST", accounts, the("ServiceAccount", account))
        token = policies.kubectl("create", "token", account, "-n", NAMESPACE, "--duration=1h").stdout.strip()
        made[account] = connect(policies.cp.kubeconfig(token, account))
    probe = make_held(policies, "probe-held")
    label = {"metadata": {"labels": {"a": "b"}}}

    def refused_by(account: str) -> bool:
        return NOTHING_ELSE in message(patch_with(made[account])(path_of(probe), label))

    eventually(lambda: all(map(refused_by, BY)), "the policies")
    return made


@pytest.fixture(scope="module")
def patch(apis: dict[str, Api]) -> Patch:
    """Patches with the timekeeper's token."""
    return patch_with(apis[TIMEKEEPER])


NOTHING_ELSE = "and nothing else"


def make_held(
    policies: Policies, name: str, *gates: Json, claims: str = "", namespace: str = "team-a", **more: str
) -> Json:
    """A held pod as the webhook makes it. ``claims``: what is recorded of its claims; ``more``: annotations
    of a member of a gang."""
    annotations = {"bursar.dev/held": "budget"} | ({"bursar.dev/claims": claims} if claims else {})
    annotations |= {f"bursar.dev/gang-{key}": value for key, value in more.items()}
    metadata = {"name": name, "labels": {"bursar.dev/governed": "true"}, "annotations": annotations}
    spec = {
        "containers": [half("web")],
        "initContainers": [plain("first")],
        "schedulingGates": list(gates or (THEIRS, OURS)),
    }
    path = PODS.replace("team-a", namespace)
    pod: Json = policies.cp.api.call("POST", path, {"metadata": metadata, "spec": spec})
    return pod


def make_member(policies: Policies, name: str, namespace: str = "team-a") -> Json:
    """A member of a gang behind both gates, and another's."""
    gates, gang = (THEIRS, OURS, GANGS), {"size": "2", "key": "bursar/g"}
    return make_held(policies, name, *gates, namespace=namespace, **gang)


def path_of(pod: Json) -> str:
    return f"{PODS}/{pod['metadata']['name']}"


def message(reply: Reply) -> str:
    """Status and message of an answer."""
    return f"{reply.status} {reply.message}" if isinstance(reply, Answered) else reply.message


def of(pod: Json, uid: str = "") -> HeldPod:
    """The pod as the releaser knows it."""
    metadata = pod["metadata"]
    return HeldPod(
        uid=uid or metadata["uid"],
        namespace="team-a",
        name=metadata["name"],
        priority=0,
        created_ms=0,
        rate_milli=1_000,
        needs_budget=True,
    )


def test_the_timekeeper_removes_its_gate_from_this_pod_alone_and_no_user_adds_it_again(
    policies: Policies, patch: Patch
) -> None:
    pod = make_held(policies, "held")

    other = message(patch(path_of(pod), removal(of(pod, "another"))))
    before = policies.get(path_of(pod))
    done = patch(path_of(pod), removal(of(pod)))
    again = patch(path_of(pod), removal(of(pod)))
    after = policies.get(path_of(pod))
    back = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": [OURS, THEIRS]}})

    assert other.startswith("422 ")
    assert before["spec"] == pod["spec"]
    assert [each.status for each in (done, again) if isinstance(each, Answered)] == [200, 200]
    assert after["spec"] == pod["spec"] | {"schedulingGates": [THEIRS]}
    assert back.startswith("422")


def gates_of(policies: Policies, pod: Json) -> list[Json]:
    found: list[Json] = policies.get(path_of(pod))["spec"].get("schedulingGates", [])
    return found


def without(pod: Json, *gates: Json) -> Json:
    """The patch that removes these gates."""
    gone = [{"$patch": "delete", "name": gate["name"]} for gate in gates]
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "spec": {"schedulingGates": gone}}


def test_each_of_two_accounts_removes_its_own_gate_alone(policies: Policies, apis: dict[str, Api]) -> None:
    pod = make_member(policies, "gated")
    timekeeper, extender = (patch_with(apis[each]) for each in BY)

    for sent, gates in ((timekeeper, (GANGS,)), (extender, (OURS,)), (timekeeper, (OURS, GANGS))):
        assert message(sent(path_of(pod), without(pod, *gates))).startswith("403 "), gates
    assert gates_of(policies, pod) == [THEIRS, OURS, GANGS]
    calls = GangCalls(apis[SCHEDULER], lambda: 0, at_once=1)
    assert calls.open_gates(filter(None, [read_pod(pod)])) == ["done"]
    assert gates_of(policies, pod) == [THEIRS, OURS]
    assert message(timekeeper(path_of(pod), removal(of(pod)))).startswith("200 ")
    assert gates_of(policies, pod) == [THEIRS]


def test_the_extender_alone_says_once_that_a_gang_has_started(
    policies: Policies, apis: dict[str, Api]
) -> None:
    pod = make_held(policies, "marked", THEIRS, size="2", key="bursar/g")
    timekeeper, extender = (patch_with(apis[each]) for each in BY)
    path, at = path_of(pod), "2026-11-28T00:00:00Z"
    key, says = "bursar.dev/gang-key", {MARK: at}
    forged: list[Json] = [{MARK: "soon"}, says | {key: "bursar/h"}, says | {"a": "b"}, {key: None}]
    forged += [{FORGIVEN: at}, says | {FORGIVEN: at}]

    for each in forged:
        assert message(extender(path, {"metadata": {"annotations": each}})).startswith("403 "), each
    noted = {"metadata": {"annotations": says}}
    assert message(timekeeper(path, noted)).startswith("403 ")
    assert "must not change on an existing pod" in policies.said("PATCH", path, noted)
    assert message(extender(path, noted)).startswith("200 ")
    assert message(extender(path, {"metadata": {"annotations": {"a": "b"}}})).startswith("403 ")
    for there in ("", "/status"):
        for value in (None, "1970-01-01T00:00:00Z"):
            again = {"metadata": {"annotations": {MARK: value}}}
            assert message(extender(path + there, again)).startswith("403 "), (there, value)
            assert "must not change" in policies.said("PATCH", path + there, again)
    assert policies.get(path)["metadata"]["annotations"][MARK] == at


def test_the_finalizer_of_an_older_extender_is_removed_by_the_timekeeper_alone_of_both_and_added_by_neither(
    policies: Policies, apis: dict[str, Api]
) -> None:
    path = path_of(make_held(policies, "kept", THEIRS, size="2", key="bursar/g"))
    timekeeper, extender = (patch_with(apis[account]) for account in BY)

    def adds(*finalizers: str) -> Json:
        return {"metadata": {"finalizers": [*finalizers]}}

    def removes(*finalizers: str) -> Json:
        return {"metadata": {"$deleteFromPrimitiveList/finalizers": [*finalizers]}}

    assert policies.said("PATCH", path, adds("team.example/wait")) == ""
    for account in (timekeeper, extender):
        assert message(account(path, adds(FORGIVEN))).startswith("403 ")
    assert policies.said("PATCH", path, adds(FORGIVEN, "team.example/wait")) == ""
    for patch, body, status in (
        (extender, adds("team.example/other"), 403),
        (extender, removes(FORGIVEN), 403),
        (timekeeper, removes(FORGIVEN, "team.example/wait"), 403),
        (timekeeper, adds("team.example/other"), 403),
        (timekeeper, removes(FORGIVEN), 200),
    ):
        assert message(patch(path, body)).startswith(f"{status} "), (patch, body)
    assert policies.get(path)["metadata"]["finalizers"] == ["team.example/wait"]


def test_the_extender_alone_says_with_how_many_a_gang_starts(
    policies: Policies, apis: dict[str, Api]
) -> None:
    pod = make_member(policies, "needs")
    timekeeper, extender = (patch_with(apis[each]) for each in BY)
    path, calls = path_of(pod), GangCalls(apis[SCHEDULER], lambda: 0, at_once=1)
    members = list(filter(None, [read_pod(pod)]))

    assert [calls.note_needs(members, needed) for needed in (2, 1)] == [["done"], ["done"]]
    assert policies.get(path)["metadata"]["annotations"][NEEDS] == "1"
    for said in ({NEEDS: "few"}, {NEEDS: None}, {NEEDS: "2", "a": "b"}):
        assert message(extender(path, {"metadata": {"annotations": said}})).startswith("403 "), said
    forged = {"metadata": {"annotations": {NEEDS: "2"}}}
    for there in ("", "/status"):
        assert message(timekeeper(path + there, forged)).startswith("403 ")
        assert "must not change on an existing pod" in policies.said("PATCH", path + there, forged)
    assert calls.note_needs(members, 0) == ["done"]
    assert gates_of(policies, pod) == [THEIRS, OURS]


@pytest.mark.parametrize("key", ["bursar.dev/gang-key", "bursar.dev/gang-size", "bursar.dev/gang"])
def test_no_user_makes_a_pod_a_member_of_another_gang(policies: Policies, key: str) -> None:
    pod = make_member(policies, f"moved-{key.rpartition('-')[2].replace('/', '-')}")

    for value in ("3", None):
        moved = {"metadata": {"annotations": {key: value}}}
        is_changed = value is not None or key != "bursar.dev/gang"
        assert ("must not change" in policies.said("PATCH", path_of(pod), moved)) == is_changed


def test_an_exempt_namespaces_users_set_and_lift_gates_of_their_own_pods_alone(policies: Policies) -> None:
    """Keys are read with their namespace, so what is forged there is of no other gang."""
    policies.namespace("exempt-gangs", exempt="true")
    pod = make_member(policies, "forged", "exempt-gangs")
    path = path_of(pod).replace("team-a", "exempt-gangs")

    assert policies.said("PATCH", path, {"metadata": {"annotations": {MARK: "2026-11-28T00:00:00Z"}}}) == ""
    assert policies.said("PATCH", path, {"spec": {"schedulingGates": []}}) == ""
    mine, theirs = read_pod(policies.get(path)), read_pod(make_member(policies, "honest"))
    assert [gang_key(each) for each in (mine, theirs) if each] == ["exempt-gangs/bursar/g", "team-a/bursar/g"]


@pytest.mark.parametrize("gate", BY.values(), ids=["budget", "gang"])
def test_no_user_lifts_a_gate(policies: Policies, gate: Json) -> None:
    pod = make_member(policies, f"kept-{gate['name'].rpartition('/')[2]}")
    left = [each for each in (THEIRS, OURS, GANGS) if each != gate]

    refused = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": left}})
    theirs = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": [OURS, GANGS]}})

    assert f"spec.schedulingGates[{gate['name']}]: only Bursar removes this gate" in refused
    assert theirs == ""


RELEASES: dict[str, Json] = {
    "a label": {"metadata": {"labels": {"app": "x"}}},
    "an annotation": {"metadata": {"annotations": {"note": "x"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    "an image": {"spec": {"containers": [{"name": "web", "image": "other"}]}},
    "an image of an init container": {"spec": {"initContainers": [{"name": "first", "image": "other"}]}},
    "an owner": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}
    },
    "the deadline": {"spec": {"activeDeadlineSeconds": 5}},
    "a toleration": {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}},
    "the nodes": {"spec": {"nodeSelector": {"a": "b"}}},
    "the required nodes": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                    }
                }
            }
        }
    },
    "another's gate": {"spec": {"schedulingGates": [{"$patch": "delete", "name": THEIRS["name"]}]}},
}


@pytest.mark.parametrize("account", BY)
@pytest.mark.parametrize("case", RELEASES)
def test_who_removes_a_gate_changes_nothing_else_of_a_pod(
    policies: Policies, apis: dict[str, Api], case: str, account: str
) -> None:
    pod = make_member(policies, f"{account}-{list(RELEASES).index(case)}")
    release, change = without(pod, BY[account]), RELEASES[case]
    gates = release["spec"]["schedulingGates"] + change.get("spec", {}).get("schedulingGates", [])
    both = {
        "metadata": release["metadata"] | change.get("metadata", {}),
        "spec": change.get("spec", {}) | {"schedulingGates": gates},
    }

    assert NOTHING_ELSE in message(patch_with(apis[account])(path_of(pod), both))
    assert policies.get(path_of(pod))["spec"] == pod["spec"]


def test_the_timekeeper_records_what_claims_were_judged_for_with_the_release_and_once(
    policies: Policies, patch: Patch
) -> None:
    unknown = make_held(policies, "unknown", claims="unknown")
    known = make_held(policies, "known", claims="1")
    late = replace(of(unknown), late_devices=2)
    record = removal(late)
    beside = {"metadata": {"annotations": record["metadata"]["annotations"] | {"a": "b"}}}
    text = {"metadata": {"annotations": {"bursar.dev/claims": "many"}}}

    said = [message(patch(path_of(unknown), each)) for each in (beside, text)]
    assert all(NOTHING_ELSE in each for each in said)
    by_user = policies.said("PATCH", path_of(unknown), {"metadata": record["metadata"]})
    assert "must not change on an existing pod" in by_user
    assert message(patch(path_of(unknown), record)).startswith("200 ")
    after = policies.get(path_of(unknown))
    assert after["spec"]["schedulingGates"] == [THEIRS]
    assert after["metadata"]["annotations"] == {"bursar.dev/held": "budget", "bursar.dev/claims": "2"}
    for pod in (unknown, known):  # a number stays
        again = removal(replace(of(pod), late_devices=7))
        assert message(patch(path_of(pod), again)).startswith("403 ")


# who writes an entry with `protect`


@pytest.fixture(scope="module")
def writers(policies: Policies) -> ControlPlane:
    """Tess may write ConfigMaps, and olga also create protections."""
    cp = policies.cp
    allow(cp, "tess")
    allow(cp, "olga", {"apiGroups": ["bursar.dev"], "resources": ["protections"], "verbs": ["create"]})
    probe = config_map({"team-a": PROTECTS}, "bursar-settings")
    eventually(lambda: FORBIDDEN in write(cp, probe, dry=True), "the policy")
    eventually(lambda: write(cp, probe, "olga", dry=True) == "", "the right")
    return cp


def allow(cp: ControlPlane, user: str, *more: Json) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}, *more]
    role = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "rules": rules}
    apply(cp, role | {"metadata": {"name": user}})
    bind_role(cp, user, user)


def write(cp: ControlPlane, written: Json, user: str = "tess", dry: bool = False) -> str:
    """What the write is refused with; empty where it is not."""
    return applied(cp, written, user=user, dry=dry).refusal


def test_only_who_has_the_right_sets_changes_or_removes_it(writers: ControlPlane) -> None:
    both = {"team-a": PROTECTS, "team-b": "gpuHours: 2"}

    assert FORBIDDEN in write(writers, config_map(both))
    assert write(writers, config_map(both), "olga") == ""
    assert FORBIDDEN in write(writers, config_map(both | {"team-a": PROTECTS.replace("4", "5")}))
    assert FORBIDDEN in write(writers, config_map(both | {"team-a": "gpuHours: 1"}))
    assert write(writers, config_map(both | {"team-b": "gpuHours: 3"})) == ""
    assert write(writers, config_map(both | {"team-a": PROTECTS.replace("4", "5")}), "olga") == ""


@pytest.mark.parametrize(
    "text",
    [
        'gpuHours: 1\n"protect": {owners: [Job], cards: 1}',
        'gpuHours: 1\n"\\x70rotect": {owners: [Job], cards: 1}',
        "{gpuHours: 1, protect: {owners: [Job], cards: 1}}",
        "gpuHours: 1\n? protect\n: {owners: [Job], cards: 1}",
    ],
)
def test_no_way_to_write_the_field_in_yaml_passes(writers: ControlPlane, text: str) -> None:
    assert FORBIDDEN in write(writers, config_map({"team-a": text}, "more", labels=LABELLED), dry=True)


def test_a_config_map_that_becomes_one_of_budgets_has_only_new_entries(writers: ControlPlane) -> None:
    plain = config_map({"team-a": PROTECTS}, "becoming")

    assert write(writers, plain) == ""
    assert FORBIDDEN in write(writers, config_map({"team-a": PROTECTS}, "becoming", labels=LABELLED))
    assert write(writers, config_map({"team-a": "gpuHours: 1"}, "becoming", labels=LABELLED)) == ""


def test_config_maps_of_other_namespaces_are_nobodys_matter(writers: ControlPlane) -> None:
    elsewhere = config_map({"team-a": PROTECTS}, labels=LABELLED)
    elsewhere["metadata"]["namespace"] = "team-a"

    assert write(writers, elsewhere) == ""
