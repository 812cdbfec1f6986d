"""Pod templates inside workloads on a real API server:
what is refused when they are written, and what never is."""

import copy
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from deploy.local.cluster import ControlPlane
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
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


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook in a cluster that knew a broken workload of each kind before it."""
    folder: Path = tmp_path_factory.mktemp("templates")
    flags = ("--template-path", "example.org/Training=spec.workers.*.template")
    document = standings(
        team_a=entry("IN_BUDGET"),
        team_b=entry("IN_BUDGET", mode="observe"),
        planned=entry("IN_BUDGET", requireDuration=True),
    )
    made = Registered(control_plane, folder, *flags, document=document)
    old = [workload(kind, BAD, name=f"old-{kind.lower()}") for kind in RESOURCES]
    for each in old:
        if "replicas" not in each["spec"] and each["kind"] not in ("Job", "CronJob", "DaemonSet"):
            each["spec"]["replicas"] = 0
        if each["kind"] in ("Job", "CronJob"):
            each["spec"]["suspend"] = True
    assert made.apply(*old) == (0, "")
    with made:
        yield made


@pytest.mark.parametrize("kind", RESOURCES)
def test_kubectl_apply_of_a_bad_template_is_refused(world: Registered, kind: str) -> None:
    code, said = world.apply(workload(kind, BAD, name="new"))

    assert code == 1
    assert f'admission webhook "templates.bursar.dev" denied the request: {sentence(at(kind))}' in said
    assert world.apply(workload(kind, GOOD, name="fine")) == (0, "")


@pytest.mark.parametrize("kind", RESOURCES)
def test_an_old_bad_workload_can_be_scaled_labelled_and_deleted(world: Registered, kind: str) -> None:
    name, before = f"old-{kind.lower()}", world.reviews("templates")
    field = {"DaemonSet": "minReadySeconds", "Job": "backoffLimit", "CronJob": "successfulJobsHistoryLimit"}
    patch = orjson.dumps({"spec": {field.get(kind, "replicas"): 3}}).decode()

    world.kubectl("label", "-n", "team-a", RESOURCES[kind], name, "some=label")
    world.kubectl("patch", "-n", "team-a", RESOURCES[kind], name, "--type", "merge", "-p", patch)
    if kind in ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"):
        world.kubectl("scale", "-n", "team-a", RESOURCES[kind], name, "--replicas", "2")
        world.kubectl("scale", "-n", "team-a", RESOURCES[kind], name, "--replicas", "0")
    world.kubectl("delete", "-n", "team-a", RESOURCES[kind], name, "--wait=false")

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
        assert world.apply(old) == (0, "")
    finally:
        world.register()
    eventually(lambda: world.denies(workload("Job", BAD, name="probe")), "the webhook to be asked")

    code, said = world.said(
        "set", "image", "-n", "team-a", "deployment/rolled", "main=registry.example/app:2"
    )

    assert code == 1
    assert sentence("spec.template") in said
    assert world.apply(workload("Deployment", GOOD, name="rolled"))[0] == 0


def test_workloads_without_gpus_do_not_come_to_us(world: Registered) -> None:
    before = world.reviews("templates")

    for kind in RESOURCES:
        assert world.apply(workload(kind, template({"name": "web", "image": "x"}), name="plain")) == (0, "")

    of_plain = [line for line in world.webhook.log().splitlines() if "name=plain" in line]
    assert of_plain == []
    assert world.reviews("templates") >= before


def test_a_template_that_names_devices_without_a_request_is_refused(world: Registered) -> None:
    shown, other = (
        template({"name": "main", "image": "x"})
        | {"metadata": {"labels": {"app": "x"}, "annotations": {key: "all"}}}
        for key in ("nvidia.com/container.main.gpus.devices", "nvidia.com/containers.main.gpus.devices")
    )

    code, said = world.apply(workload("Deployment", shown, name="shown"))

    assert code == 1
    assert "spec.template.metadata.annotations[nvidia.com/container.main.gpus.devices]: the container" in said
    assert world.apply(workload("Deployment", other, name="shown")) == (0, "")


def test_an_observed_namespace_is_only_warned(world: Registered) -> None:
    done = world.said("apply", "-n", "team-b", "-f", "-", input=orjson.dumps(workload("Job", BAD)).decode())

    assert done[0] == 0
    assert (
        "Warning: Observe mode: this would be refused: spec.template.spec.containers[0].resources.limits"
        in done[1]
    )


def test_a_custom_kind_is_refused_by_the_webhook_that_the_docs_add(world: Registered) -> None:
    world.kubectl("apply", "-f", "-", input=orjson.dumps(TRAINING).decode())
    world.kubectl("wait", "--for=condition=Established", "crd/trainings.example.org", "--timeout=30s")
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

    _, said = world.apply(written)

    assert sentence("spec.workers[1].template") in said


def test_a_jobs_deadline_becomes_that_of_its_pods_where_they_must_have_one(world: Registered) -> None:
    world.post("/api/v1/namespaces", {"metadata": {"name": "planned"}})
    path = "/apis/batch/v1/namespaces/planned/jobs"
    said = []
    for kind in ("Job", "Deployment"):
        text = orjson.dumps(workload(kind, GOOD)).decode()
        said.append(world.said("create", "-n", "planned", "-f", "-", input=text)[1])
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
        assert world.apply(workload("Job", BAD, name="unseen")) == (0, "")
    finally:
        world.register()
