"""The webhook as it is registered with a real API server: pod templates inside workloads, budget ConfigMaps,
and what people read of modes, exempt users and budgets that refuse."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from tests.support.control_plane import Answer, apply, bind_role, collection, create_namespace
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.unit.test_configmaps import BAD as BAD_BUDGET
from tests.webhook.unit.test_configmaps import GOOD as GOOD_BUDGET
from tests.webhook.unit.test_configmaps import SENTENCE, config_map
from tests.webhook.unit.test_templates import (
    BAD,
    GOOD,
    RESOURCES,
    at,
    registered,
    sentence,
    template,
    workload,
)
from tests.webhook.worlds import half, plain
from tests.worlds import Json, container, limits_of

PASSES = Answer("", [])
CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"

TRAINING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainings.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"kind": "Training", "plural": "trainings", "singular": "training"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


RUNNER = "system:serviceaccount:ci:runner"
FROM_MAP = [{"configMapRef": {"name": "m", "optional": True}}]
LABELLED = {"bursar.dev/budgets": "true"}
DOCUMENT = standings(
    {"exempt": [RUNNER]},
    team_a=entry("IN_BUDGET"),
    team_b=entry("IN_BUDGET", mode="observe"),
    planned=entry("IN_BUDGET", requireDuration=True),
    lenient=entry(rules={"host-pid": "warn", "grace-period": "off"}),
    denying=entry("OVER_BUDGET", onExhausted="deny"),
    watched=entry("OVER_BUDGET", mode="observe", onExhausted="deny"),
    unplaced=entry("IN_BUDGET", placement="off"),
    taking=entry("IN_BUDGET", wholeCards="bursar"),
    insisting=entry(sidecar="on"),
    bare=entry(sidecar="off"),
)


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook in a cluster that knew a broken workload of each kind before it, with namespaces that have
    settled different things."""
    folder: Path = tmp_path_factory.mktemp("registered")
    flags = ("--template-path", "example.org/Training=spec.workers.*.template", "--other-schedulers=volcano")
    made = Registered(control_plane, folder, *flags, document=DOCUMENT)
    namespaces = (
        "planned",
        "lenient",
        "denying",
        "watched",
        "unsettled",
        "unplaced",
        "taking",
        "insisting",
        "bare",
    )
    for namespace in namespaces:
        create_namespace(control_plane, namespace)
    old = [workload(kind, BAD, name=f"old-{kind.lower()}") for kind in RESOURCES]
    for each in old:
        if "replicas" not in each["spec"] and each["kind"] not in ("Job", "CronJob", "DaemonSet"):
            each["spec"]["replicas"] = 0
        if each["kind"] in ("Job", "CronJob"):
            each["spec"]["suspend"] = True
    apply(control_plane, *old, namespace="team-a")
    with made:
        yield made


def define_trainings(cp: ControlPlane) -> None:
    """Until the API server serves the kind."""
    apply(cp, TRAINING)
    path = "/apis/example.org/v1/namespaces/team-a/trainings"
    eventually(lambda: cp.api.answers(path), "the kind Training")


# pod templates inside workloads


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_bad_template_is_refused_where_it_is_applied(world: Registered, kind: str) -> None:
    said = world.applied(workload(kind, BAD, name="new")).refusal

    assert f'admission webhook "templates.bursar.dev" denied the request: {sentence(at(kind))}' in said
    assert world.applied(workload(kind, GOOD, name="fine")) == PASSES


@pytest.mark.parametrize("kind", RESOURCES)
def test_an_old_bad_workload_can_be_scaled_labelled_and_deleted(world: Registered, kind: str) -> None:
    name, before = f"old-{kind.lower()}", world.reviews("templates")
    field = {"DaemonSet": "minReadySeconds", "Job": "backoffLimit", "CronJob": "successfulJobsHistoryLimit"}
    path = f"{collection(workload(kind, BAD), 'team-a')}/{name}"

    world.patch(path, {"metadata": {"labels": {"some": "label"}}})
    world.patch(path, {"spec": {field.get(kind, "replicas"): 3}})
    if kind in ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"):
        world.patch(f"{path}/scale", {"spec": {"replicas": 2}})
        world.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    world.cp.api.call("DELETE", path)

    of_this_name = [
        line for line in world.webhook.log().splitlines() if "webhook=templates" in line and name in line
    ]
    assert of_this_name == []
    assert world.reviews("templates") >= before


def test_changing_an_old_bad_template_is_refused_until_it_is_good(world: Registered) -> None:
    world.unregister()
    try:
        old = workload("Deployment", BAD, name="rolled")
        old["spec"]["replicas"] = 0
        eventually(lambda: not world.denies(old), "the webhook not to be asked")
        assert world.applied(old) == PASSES
    finally:
        world.register()
    eventually(lambda: world.denies(workload("Job", BAD, name="probe")), "the webhook to be asked")

    image = {"containers": [{"name": "main", "image": "registry.example/app:2"}]}
    path = "/apis/apps/v1/namespaces/team-a/deployments/rolled"
    said = world.answer("PATCH", path, {"spec": {"template": {"spec": image}}}).refusal

    assert sentence("spec.template") in said
    assert world.applied(workload("Deployment", GOOD, name="rolled")) == PASSES


def test_workloads_without_gpus_do_not_come_to_us(world: Registered) -> None:
    before = world.reviews("templates")

    for kind in RESOURCES:
        raw = workload(kind, template({"name": "web", "image": "x"}), name="plain")
        assert world.applied(raw) == PASSES

    of_plain = [line for line in world.webhook.log().splitlines() if "name=plain" in line]
    assert of_plain == []
    assert world.reviews("templates") >= before


def test_a_template_that_names_devices_without_a_request_is_refused(world: Registered) -> None:
    shown, other = (
        template({"name": "main", "image": "x"})
        | {"metadata": {"labels": {"app": "x"}, "annotations": {key: "all"}}}
        for key in ("nvidia.com/container.main.gpus.devices", "nvidia.com/containers.main.gpus.devices")
    )

    said = world.applied(workload("Deployment", shown, name="shown")).refusal

    assert "spec.template.metadata.annotations[nvidia.com/container.main.gpus.devices]: the container" in said
    assert world.applied(workload("Deployment", other, name="shown")) == PASSES


def test_an_observed_namespace_is_only_warned(world: Registered) -> None:
    refusal, (said,) = world.applied(workload("Job", BAD), "team-b")

    assert refusal == ""
    assert said.startswith(
        "Observe mode: this would be refused: spec.template.spec.containers[0].resources.limits"
    )


def test_a_custom_kind_is_refused_by_the_webhook_that_the_docs_add(world: Registered) -> None:
    define_trainings(world.cp)
    own = copy.deepcopy(registered()["templates.bursar.dev"]) | {
        "name": "trainings.bursar.dev",
        "rules": [
            {
                "apiGroups": ["example.org"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["trainings"],
                "scope": "Namespaced",
            }
        ],
        "matchConditions": [],
    }
    world.register(own)
    written = {
        "apiVersion": "example.org/v1",
        "kind": "Training",
        "metadata": {"name": "t"},
        "spec": {"workers": [{"template": GOOD}, {"template": BAD}]},
    }
    eventually(lambda: world.denies(written), "the further webhook to be asked")

    assert sentence("spec.workers[1].template") in world.applied(written).refusal


def test_a_jobs_deadline_becomes_that_of_its_pods_where_they_must_have_one(world: Registered) -> None:
    path = "/apis/batch/v1/namespaces/planned/jobs"
    said = [world.applied(workload(kind, GOOD), "planned").refusal for kind in ("Job", "Deployment")]
    timed, short = workload("Job", GOOD, name="timed"), workload("Job", GOOD, name="short")
    timed["spec"]["activeDeadlineSeconds"] = short["spec"]["activeDeadlineSeconds"] = 7_200
    short["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 60
    timed["spec"]["suspend"] = short["spec"]["suspend"] = True

    made = [world.post(path, each)["spec"]["template"]["spec"] for each in (timed, short)]

    assert all(
        "spec.template.spec.activeDeadlineSeconds: the budget of the namespace" in each for each in said
    )
    assert [each["activeDeadlineSeconds"] for each in made] == [7_200, 60]


def test_while_the_webhook_is_down_workloads_are_written_all_the_same(world: Registered) -> None:
    world.register(at="https://127.0.0.1:1")
    try:
        eventually(lambda: not world.denies(workload("Job", BAD, name="unseen")), "the new configuration")
        assert world.applied(workload("Job", BAD, name="unseen")) == PASSES
    finally:
        world.register()
        eventually(lambda: world.denies(workload("Job", BAD, name="unseen-2")), "the webhook to be asked")


# budget ConfigMaps


def test_a_mistake_in_a_budget_is_refused_and_a_good_one_is_stored(world: Registered) -> None:
    said = world.applied(config_map({"team-a": BAD_BUDGET})).refusal

    assert f'admission webhook "budgets.bursar.dev" denied the request: {SENTENCE}' in said
    assert world.applied(config_map({"team-a": GOOD_BUDGET})) == PASSES
    said = world.answer("PATCH", f"{CONFIG_MAPS}/bursar-budgets", {"data": {"team-a": BAD_BUDGET}}).refusal
    assert SENTENCE in said


def test_a_labelled_config_map_is_reviewed_also_without_a_name_yet(world: Registered) -> None:
    named = config_map({"team-a": BAD_BUDGET}, "more-budgets", labels=LABELLED)
    generated = config_map({"team-a": BAD_BUDGET}, labels=LABELLED, generateName="more-")
    del generated["metadata"]["name"]

    for written in (named, generated):
        assert SENTENCE in world.answer("POST", CONFIG_MAPS, written).refusal


@pytest.mark.parametrize("metadata", [{"name": "bursar-budgets-7h2k"}, {"generateName": "bursar-budgets-"}])
def test_a_generated_name_that_is_not_read_is_warned_of(world: Registered, metadata: Json) -> None:
    written = {**config_map({"team-a": GOOD_BUDGET}), "metadata": {"namespace": "bursar-system", **metadata}}

    refusal, (said,) = world.answer("POST", CONFIG_MAPS, written)

    assert refusal == ""
    assert re.match(
        r"ConfigMap bursar-budgets-\w{4,5} is not read: give it the label bursar.dev/budgets=", said
    )


def test_a_mode_that_is_none_is_refused_in_the_modes_object(world: Registered) -> None:
    assert "data[mode]: " in world.applied(config_map({"mode": "observed"}, "bursar-mode")).refusal
    assert world.applied(config_map({"mode": "enforce", "placement": "on"}, "bursar-mode")) == PASSES


def test_who_ends_entries_by_a_write_a_label_or_a_deletion_is_warned(world: Registered) -> None:
    fewer, no_label = {"data": {"team-b": None}}, {"metadata": {"labels": {"bursar.dev/budgets": None}}}
    cases = {
        "bursar-budgets": ({}, fewer, "team-b loses its entry", "team-a loses its entry"),
        "more-budgets": (LABELLED, fewer, "team-b loses its entry", "team-a loses its entry"),
        "left-budgets": (LABELLED, no_label, "team-a, team-b lose their entry", ""),
        "others": ({}, fewer, "", ""),
    }
    for name, (labels, change, *said) in cases.items():
        written = config_map({"team-a": GOOD_BUDGET, "team-b": GOOD_BUDGET}, name, labels=labels)
        world.applied(written)
        path = f"{CONFIG_MAPS}/{name}"

        warnings = world.answer("PATCH", path, change).warnings, world.answer("DELETE", path).warnings

        heard = ["".join(lines).partition(":")[0] for lines in warnings]
        assert heard == said, name


def test_other_config_maps_and_other_namespaces_do_not_come_to_us(world: Registered) -> None:
    elsewhere = config_map({"team-a": BAD_BUDGET})
    elsewhere["metadata"]["namespace"] = "team-a"

    assert world.applied(config_map({"team-a": BAD_BUDGET}, "other")) == PASSES
    assert world.applied(config_map({"team-a": BAD_BUDGET}, "labelled", labels={"a": "b"})) == PASSES
    assert world.applied(elsewhere) == PASSES

    assert "name=other" not in world.webhook.log()
    assert "name=labelled" not in world.webhook.log()
    assert "webhook=budgets verdict=refused namespace=team-a" not in world.webhook.log()


def test_an_old_mistake_blocks_no_other_key_and_the_budgets_can_be_deleted_while_we_are_down(
    world: Registered,
) -> None:
    probe = config_map({"x": BAD_BUDGET}, "probe", labels=LABELLED)
    world.unregister()
    eventually(lambda: not world.denies(probe), "the webhook not to be asked")
    assert world.applied(config_map({"team-a": BAD_BUDGET})) == PASSES
    world.register()
    eventually(lambda: world.denies(probe), "the webhook to be asked")

    refusal, (said,) = world.applied(config_map({"team-a": BAD_BUDGET, "team-b": GOOD_BUDGET}))

    assert refusal == ""
    assert said.startswith("Wrong before and unchanged; the last valid entry stays in force: team-a, line 2")
    world.register(at="https://127.0.0.1:1")
    eventually(lambda: not world.denies(probe), "the webhook not to be asked")
    world.cp.api.call("DELETE", f"{CONFIG_MAPS}/bursar-budgets")
    world.register()
    eventually(lambda: world.denies(probe), "the webhook to be asked again")


# modes, exempt users and budgets that refuse


def manifest(name: str, *containers: Json, **spec: Any) -> Json:
    """A pod as a user writes it."""
    fields = {"containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields}


def created(world: Registered, namespace: str, raw: Json, user: str = "", how: str = "") -> Answer:
    """What the API server says to the creation of a pod."""
    return world.answer("POST", f"/api/v1/namespaces/{namespace}/pods{how}", raw, user)


def test_a_warning_of_both_webhooks_is_read_once(world: Registered) -> None:
    said = created(world, "lenient", manifest("once", half(envFrom=FROM_MAP), hostPID=True))

    assert said == Answer(
        "",
        [
            "spec.containers[0].envFrom[0]: it may set variables that change the isolation of "
            'cards, got "ConfigMap m"; admitted: admission does not see what it sets',
            "spec.hostPID: it exposes the processes of other tenants of a card; admitted",
        ],
    )
    assert world.reviews("validate") > 0


def test_the_same_pod_is_refused_where_the_namespace_has_settled_nothing(world: Registered) -> None:
    raw = manifest("strict", half(), hostPID=True, terminationGracePeriodSeconds=9_999)

    assert created(world, "lenient", raw).refusal == ""
    said = created(world, "unsettled", raw).refusal.splitlines()

    assert "denied the request: 2 problems:" in said[0]
    assert [line.split(":")[0].strip() for line in said[1:]] == [
        "1. spec.terminationGracePeriodSeconds",
        "2. spec.hostPID",
    ]


def test_a_budget_that_denies_says_so_in_kubectl(world: Registered) -> None:
    said = created(world, "denying", manifest("denied", half())).refusal

    assert said.startswith("403: ")  # and the words after the colon: a quota's refusal, for programs
    assert said.endswith(
        " denied the request: exceeded quota: "
        "Namespace denying has used its GPU budget (onExhausted: deny). 1.00 GPU-hours are left; "
        "this pod asks for 0.5 cards. New GPU pods are refused until the budget is raised. Ask your budget "
        "administrator: kubectl bursar budget has names and a text."
    )
    assert created(world, "denying", manifest("without", plain())) == PASSES


def test_a_gang_of_another_system_is_left_to_it_or_refused_also_with_a_size_of_ours(
    world: Registered,
) -> None:
    def operated(name: str, scheduler: str, mark: str) -> Json:
        raw = manifest(name, limits_of("main", nvidia_com__gpu="1"), schedulerName=scheduler)
        raw["metadata"] |= {
            "annotations": {"bursar.dev/gang-size": "2", mark: "train"},
            "ownerReferences": [
                {
                    "apiVersion": "kubeflow.org/v1",
                    "kind": "PyTorchJob",
                    "name": "t",
                    "uid": "u",
                    "controller": True,
                }
            ],
        }
        return raw

    assert created(world, "team-a", operated("kept", "volcano", "scheduling.k8s.io/group-name")).refusal == ""
    kept = world.cp.api.call("GET", "/api/v1/namespaces/team-a/pods/kept")
    assert kept["spec"]["schedulerName"] == "volcano"
    other = operated("moved", "yunikorn", "yunikorn.apache.org/task-group-name")
    assert "--other-schedulers names yunikorn" in created(world, "team-a", other).refusal


def test_a_rule_applies_where_what_it_protects_is_there(world: Registered) -> None:
    whole = limits_of("main", nvidia_com__gpu="1")
    by_hand = manifest("by-hand", whole, nodeName="n1")
    whole = whole | {"envFrom": FROM_MAP}

    assert "spec.nodeName: a GPU pod that names its node" in created(world, "team-a", by_hand).refusal
    assert created(world, "unplaced", by_hand).refusal == ""
    assert (
        "rules: {env-from-plugin: warn}" in created(world, "unplaced", manifest("framework", whole)).refusal
    )
    assert created(world, "taking", manifest("framework", whole)).refusal == ""
    assert world.applied(workload("Deployment", template(whole)), "taking").refusal == ""


def test_a_namespace_that_is_watched_has_nothing_refused_and_reads_what_would_be(world: Registered) -> None:
    bad = manifest("bad", container(gpu_percent="150"), nodeSelector={"a": "b"})
    refusal, (unread, would) = created(world, "watched", bad)
    good, told = created(world, "watched", manifest("good", half(), plain("bursar-sidecar")))

    assert (refusal, good) == ("", "")
    assert unread == (
        "The GPU request of this pod cannot be read; what it holds is charged as far as it is known."
    )
    assert would.startswith("Observe mode: this would be refused: spec.containers[0].resources.limits[")
    wanted = ("Namespace watched has used its GPU budget", "spec.containers[1].name: ")
    assert all(
        any(f"Observe mode: this would be refused: {each}" in line for line in told) for each in wanted
    )
    stored = world.get("/api/v1/namespaces/watched/pods/good")
    assert "labels" not in stored["metadata"]
    assert "initContainers" not in stored["spec"]


def test_a_namespace_that_is_watched_keeps_the_scheduler_that_ran_its_pods(world: Registered) -> None:
    """A node with NVIDIA's own plugin and without an inventory, where Bursar's scheduler finds no cards."""
    world.post("/api/v1/nodes", kwok_node("stock", capacity=nvidia_capacity(3)))
    world.cp.start_scheduler()
    given = {
        "defaulted": {},
        "explicit": {"schedulerName": "default-scheduler"},
        "foreign": {"schedulerName": "somebody"},
    }
    card = limits_of("main", nvidia_com__gpu="1")

    told = {name: created(world, "watched", manifest(name, card, **spec)) for name, spec in given.items()}
    enforced = created(world, "lenient", manifest("enforced", card, schedulerName="default-scheduler"))

    def pod(name: str, namespace: str = "watched") -> Json:
        return dict(world.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))

    for name in ("defaulted", "explicit"):
        eventually(lambda name=name: pod(name)["spec"].get("nodeName") == "stock", "the pod's binding")  # type: ignore[misc]
        assert "labels" not in pod(name)["metadata"]
    assert [pod(name)["spec"]["schedulerName"] for name in given] == ["default-scheduler"] * 2 + ["somebody"]
    assert [line for line in told["foreign"].warnings if "somebody" in line] == [
        'spec.schedulerName: only bursar-scheduler assigns cards, got "somebody"; would be replaced'
    ]
    assert not any(
        "bursar-scheduler" in line for name in ("defaulted", "explicit") for line in told[name].warnings
    )
    assert enforced.refusal == ""
    assert pod("enforced", "lenient")["spec"]["schedulerName"] == "bursar-scheduler"


@pytest.mark.parametrize(
    ("namespace", "spec", "value", "has_one", "said"),
    [
        ("lenient", {}, "", True, ""),
        ("lenient", {}, "off", False, ""),
        ("lenient", {"shareProcessNamespace": True}, "", False, "spec.shareProcessNamespace: "),
        ("lenient", {"hostNetwork": True}, "", False, "spec.dnsPolicy: "),
        ("lenient", {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, "", True, ""),
        ("insisting", {}, "off", True, 'bursar.dev/sidecar: "off" has no effect: '),
        ("insisting", {"dnsPolicy": "Default"}, "off", False, "spec.dnsPolicy: "),
        ("bare", {"shareProcessNamespace": True}, "", False, ""),
    ],
)
def test_a_pod_gets_its_sidecar_by_its_entry_its_annotation_and_its_own_fields(
    world: Registered, namespace: str, spec: Json, value: str, has_one: bool, said: str
) -> None:
    raw = manifest("evidence", half(), **spec)
    raw["metadata"]["annotations"] = {"bursar.dev/sidecar": value} if value else {}
    path = f"/api/v1/namespaces/{namespace}/pods/evidence"

    refusal, warnings = created(world, namespace, raw)

    assert refusal == ""
    assert [line.startswith(said) for line in warnings] == [True] * bool(said)
    stored = world.get(path)
    world.cp.api.call("DELETE", path, {"gracePeriodSeconds": 0})
    assert ("initContainers" in stored["spec"]) is has_one
    assert stored["metadata"]["labels"] == {"bursar.dev/governed": "true"}


def test_an_exempt_service_account_is_warned_and_its_pod_governed(world: Registered) -> None:
    bind_role(world.cp, "edit", RUNNER)
    raw = manifest("by-ci", half(), hostPID=True)
    eventually(
        lambda: "is forbidden: User" not in created(world, "unsettled", raw, RUNNER, "?dryRun=All").refusal,
        "the right to create pods",
    )

    assert created(world, "unsettled", raw).refusal
    assert created(world, "unsettled", raw, RUNNER) == Answer(
        "",
        [
            "spec.hostPID: it exposes the processes of other tenants of a card; admitted "
            "(you are exempt from this rule)"
        ],
    )
    stored = world.get("/api/v1/namespaces/unsettled/pods/by-ci")
    assert stored["metadata"]["annotations"]["bursar.dev/standing"] == "UNLIMITED"


def test_everything_that_can_be_wrong_at_once_stays_within_the_api_servers_limits(world: Registered) -> None:
    wrong = [container(f"c{number}", gpu_percent="150") for number in range(40)]

    refusal, said = created(world, "watched", manifest("everything", *wrong))

    assert refusal == ""
    assert len(said) > 10
    assert all(len(line.encode()) <= 256 for line in said)


def test_a_class_that_the_cluster_lacks_refuses_no_pod(world: Registered) -> None:
    lacking = {
        "inBudget": {"name": "gpu-default-priority", "value": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "overBudget": {"name": "typo", "value": None, "preemptionPolicy": None},
    }
    over = {"lenient": entry("OVER_BUDGET")}
    missing = 'Priority class "typo" does not exist in the cluster; it is not set.'
    raw = manifest("fresh", half())
    urgent = manifest("urgent", half(), priorityClassName="system-cluster-critical")
    world.timekeeper.document = standings({"priorityClasses": lacking}, revision="lacking", **over)
    try:
        eventually(
            lambda: missing in created(world, "lenient", raw, how="?dryRun=All").warnings,
            "the webhook to hear that the class is missing",
        )

        used = "Namespace lenient has used its GPU budget."
        assert created(world, "lenient", raw) == Answer("", [used, missing])
        assert created(world, "lenient", urgent).refusal == ""
    finally:
        world.timekeeper.document = DOCUMENT

    specs = [world.get(f"/api/v1/namespaces/lenient/pods/{name}")["spec"] for name in ("fresh", "urgent")]
    assert [(each.get("priorityClassName"), each["priority"]) for each in specs] == [
        (None, 0),
        ("gpu-default-priority", 0),
    ]
