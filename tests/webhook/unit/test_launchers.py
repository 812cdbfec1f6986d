"""Pods without GPUs that wait with the gang of their name: a launcher, a chief, a CPU master, a driver. What
admission writes into their owner and into them, and of whom their owner's writer is warned."""

import copy
import json
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest

from tests.webhook.worlds import (
    POLICY,
    UNPLACED,
    admitted,
    half,
    mutated,
    object_review,
    patched,
    plain,
    review,
    violations_of,
    with_annotations,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from webhook.admission.gangs import of_owner
from webhook.admission.validation import validate
from webhook.wire.pod_review import AdmissionAnswer

AUTO = replace(POLICY, finds_gangs=True)
SIZE, LATE, GATE = "bursar.dev/gang-size", "bursar.dev/gang-late", {"name": "bursar.dev/gang"}
OF_JOB = {"training.kubeflow.org/job-name": "train"}


def template(*containers: Json, **annotations: str) -> Json:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": list(containers or [half()])}}


def owner(version: str, kind: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def replicas(field: str, version: str = "kubeflow.org/v1", workers: int = 2, **more: Any) -> Json:
    """A job of Kubeflow: of its replicas the first has no GPU."""
    kind, first = {
        "mpi": ("MPIJob", "Launcher"),
        "tf": ("TFJob", "Chief"),
        "pytorch": ("PyTorchJob", "Master"),
    }[field]
    specs = {
        first: {"replicas": 1, "template": template(plain())},
        "Worker": {"replicas": workers, "template": template()},
    }
    return owner(version, kind, **{f"{field}ReplicaSpecs": specs}, **more)


def jobset(*jobs: tuple[str, Json, Json], **more: Any) -> Json:
    """Jobs of two pods, each by its name, its template and further fields."""
    found = [
        {"name": name, "template": {"spec": {"parallelism": 2, "completions": 2, "template": of}}, **fields}
        for name, of, fields in jobs
    ]
    return owner("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=found, **more)


def leader(**more: Any) -> Json:
    group = {"size": 3, "leaderTemplate": template(plain()), "workerTemplate": template()}
    return owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", leaderWorkerTemplate=group, **more)


Replicated = tuple[str, Json, Json]
DRIVER: Replicated = ("driver", template(plain()), {})
WORKERS: Replicated = ("workers", template(), {})
IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}


def needs(name: str) -> Json:
    return {"dependsOn": [{"name": name, "status": "Ready"}]}


def answered(raw: Json, policy: AdmissionPolicy = AUTO, old: Json | None = None) -> AdmissionAnswer:
    return of_owner(object_review(raw, old), policy)


def after(raw: Json, policy: AdmissionPolicy = AUTO, old: Json | None = None) -> Any:
    """The owner after the patch."""
    return jsonpatch.apply_patch(raw, json.loads(json.dumps(answered(raw, policy, old).operations)))


def said(raw: Any) -> list[Json]:
    """The annotations of all templates, in the order of the fields."""
    if isinstance(raw, list):
        return [text for each in raw for text in said(each)]
    if not isinstance(raw, dict):
        return []
    own = [raw["metadata"].get("annotations", {})] if "containers" in raw.get("spec", {}) else []
    return [*own, *(text for each in raw.values() for text in said(each))]


MARK = {LATE: "true"}


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (replicas("mpi"), [MARK, {SIZE: "2"}]),
        (replicas("mpi", "kubeflow.org/v2beta1"), [MARK, {SIZE: "2"}]),
        (replicas("mpi", workers=1), [MARK, {SIZE: "1"}]),  # a single worker may wait, too
        (replicas("tf"), [MARK, {SIZE: "2"}]),
        (replicas("pytorch"), [MARK, {SIZE: "2"}]),
        (jobset(DRIVER, WORKERS), [MARK, {SIZE: "2"}]),
        (jobset(WORKERS, DRIVER), [{SIZE: "2"}, MARK]),
        (leader(), [MARK, {SIZE: "2"}]),
    ],
    ids=["MPI v1", "MPI v2beta1", "one worker", "chief", "master", "driver", "driver last", "leader"],
)
def test_pods_without_gpus_that_come_at_once_with_those_with_gpus_wait_for_them(
    raw: Json, texts: list[Json]
) -> None:
    written = after(raw)

    assert said(written) == texts
    assert not answered(raw).warnings
    assert answered(written) == AdmissionAnswer("passed")
    for policy in (AUTO, POLICY):  # "auto" has gone since
        assert after(raw, policy, written) == written  # its manifest is applied again


@pytest.mark.parametrize(
    "raw",
    [
        replicas("mpi", "kubeflow.org/v2beta1", launcherCreationPolicy="WaitForWorkersReady"),
        jobset(WORKERS, ("driver", template(plain()), needs("workers"))),
        jobset(WORKERS, DRIVER, **IN_ORDER),
        # those with GPUs come only once these run: each would wait for the other
        jobset(DRIVER, ("workers", template(), needs("driver"))),
        jobset(DRIVER, WORKERS, **IN_ORDER),
        leader(startupPolicy="LeaderReady"),
        jobset(DRIVER, ("other", template(plain()), {})),
    ],
    ids=["WaitForWorkersReady", "depends", "in order", "needed", "first in order", "LeaderReady", "no GPUs"],
)
@pytest.mark.parametrize("policy", [AUTO, POLICY], ids=["auto", "not auto"])
def test_pods_that_come_later_or_are_needed_first_do_not_wait_and_nobody_is_warned(
    raw: Json, policy: AdmissionPolicy
) -> None:
    assert LATE not in str(said(after(raw, policy)))
    assert not answered(raw, policy).warnings


def test_a_head_of_ray_does_not_wait_for_its_workers_which_wait_for_it() -> None:
    groups = [{"replicas": 2, "template": template()}]
    spec = {"headGroupSpec": {"template": template(plain())}, "workerGroupSpecs": groups}
    raw = owner("ray.io/v1", "RayCluster", **spec)

    assert said(after(raw)) == [{}, {SIZE: "2"}]
    assert not answered(raw, POLICY).warnings


def test_what_its_user_writes_stays() -> None:
    own = replicas("tf")
    own["spec"]["tfReplicaSpecs"]["Chief"]["template"]["metadata"]["annotations"] = {LATE: "false"}
    elsewhere = replicas("tf")
    elsewhere["spec"]["tfReplicaSpecs"]["Chief"]["template"]["metadata"]["annotations"] = {
        "bursar.dev/gang": "another"
    }

    assert said(after(own)) == [{LATE: "false"}, {SIZE: "2"}]
    assert said(after(elsewhere))[0] == {"bursar.dev/gang": "another"}
    assert not answered(own, POLICY).warnings


def test_an_owner_that_a_release_without_the_mark_counted_keeps_its_templates() -> None:
    """A JobSet's are fixed, and another revision of a LeaderWorkerSet would restart its groups."""
    for raw in (jobset(DRIVER, WORKERS), leader()):
        stored = after(raw)
        stored = json.loads(json.dumps(stored).replace(f'"{LATE}": "true"', ""))

        assert after(raw, AUTO, stored) == stored


def test_a_leader_whose_workers_are_taken_away_waits_for_none() -> None:
    alone = leader()
    alone["spec"]["leaderWorkerTemplate"]["size"] = 1

    assert said(after(alone, AUTO, after(leader())))[0] == {}


MPI_AT = "spec.mpiReplicaSpecs.Launcher.template"
AT_ONCE = "its pods start at once, and do not wait for those with GPUs; with"
SIZED = f'{AT_ONCE} annotation {LATE}: "true", and {SIZE}: "2" in templates with GPUs, they do.'
DEPENDS = (
    "spec.replicatedJobs[0].template.spec.template: "
    f'{AT_ONCE} dependsOn: [{{name: "workers", status: Ready}}], listed after it, they do.'
)


@pytest.mark.parametrize(
    ("raw", "policy", "warning"),
    [
        (
            replicas("mpi", "kubeflow.org/v2beta1"),
            POLICY,
            f"{MPI_AT}: {AT_ONCE} spec.launcherCreationPolicy: WaitForWorkersReady they do.",
        ),
        (replicas("mpi"), POLICY, f"{MPI_AT}: {SIZED}"),
        (replicas("tf"), POLICY, f"spec.tfReplicaSpecs.Chief.template: {SIZED}"),
        (leader(), POLICY, f"spec.leaderWorkerTemplate.leaderTemplate: {SIZED}"),
        (jobset(DRIVER, WORKERS), POLICY, DEPENDS),
        (jobset(DRIVER, ("workers", template(**{SIZE: "2"}), {})), AUTO, DEPENDS),  # its user said the size
    ],
    ids=["MPI v2beta1", "MPI v1", "chief", "leader", "JobSet", "its user's own size"],
)
def test_else_the_owners_writer_is_warned_with_the_field_that_helps(
    raw: Json, policy: AdmissionPolicy, warning: str
) -> None:
    assert answered(raw, policy) == AdmissionAnswer("passed", warnings=(warning,))


def test_where_its_user_says_the_size_the_mark_alone_helps() -> None:
    raw = replicas("pytorch")
    raw["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["annotations"] = {SIZE: "2"}
    at = "spec.pytorchReplicaSpecs.Master.template"

    assert answered(raw).warnings == (f'{at}: {AT_ONCE} annotation {LATE}: "true" they do.',)


@pytest.mark.parametrize(
    "policy", [replace(AUTO, mode="observe"), replace(UNPLACED, finds_gangs=True)], ids=["observe", "off"]
)
def test_nothing_is_said_or_written_where_no_gang_is(policy: AdmissionPolicy) -> None:
    assert answered(replicas("mpi"), policy) == AdmissionAnswer("passed")


def test_another_systems_gang_is_that_systems() -> None:
    raw = replicas("tf")
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}

    for policy in (AUTO, POLICY):
        assert answered(raw, policy) == AdmissionAnswer("passed")


# the pods


def launcher(labels: Json | None = None, annotations: Json | None = None, **fields: Any) -> Json:
    raw = admitted(plain(), **fields)
    raw["metadata"] |= {"labels": OF_JOB if labels is None else labels}
    return with_annotations(raw, MARK if annotations is None else annotations)


def gated(raw: Json, policy: AdmissionPolicy = POLICY) -> Json:
    """The pod after /mutate."""
    answer = mutated(raw, policy=policy)
    assert not answer.refusal
    return patched(raw, list(answer.operations))


def test_a_marked_pod_gets_the_gangs_gate_and_nothing_else() -> None:
    raw = launcher()
    written = copy.deepcopy(raw)
    written["spec"]["schedulingGates"] = [GATE]

    assert gated(raw) == written
    again = mutated(written)  # as after another webhook's change, or a copy of it
    assert (again.operations, again.warnings, again.refusal) == ((), (), "")
    assert validate(review(written), POLICY).verdict == "valid"
    assert violations_of(written, POLICY) == ()


@pytest.mark.parametrize(
    ("raw", "policy"),
    [
        (launcher(annotations={}), POLICY),
        (launcher(annotations={LATE: "false"}), POLICY),
        (launcher(annotations={LATE: "8"}), POLICY),  # of an older release
        (launcher(labels={}), POLICY),
        (launcher(annotations={**MARK, "scheduling.k8s.io/group-name": "g"}), POLICY),
        (launcher(schedulingGroup={"podGroupName": "g"}, labels={}), POLICY),
        (launcher(nodeName="n"), POLICY),
        (launcher(), UNPLACED),
        (launcher(), replace(POLICY, mode="observe")),
        (launcher(), replace(POLICY, mode="meter")),
    ],
    ids=[
        "no mark",
        "false",
        "another text",
        "no gang's name",
        "another system's",
        "a PodGroup's",
        "has a node",
        "placement off",
        "observe",
        "meter",
    ],
)
def test_another_pod_without_gpus_stays_as_it_is(raw: Json, policy: AdmissionPolicy) -> None:
    assert mutated(raw, policy=policy).operations == ()


def test_a_users_gate_on_a_pod_that_does_not_wait_goes_as_before() -> None:
    raw = launcher(annotations={})
    raw["spec"]["schedulingGates"] = [GATE]

    assert "schedulingGates" not in gated(raw)["spec"]
    assert validate(review(raw), POLICY).rules == (("forged-gate", "enforce"),)


def test_the_timekeepers_gate_on_a_marked_pod_goes() -> None:
    raw = launcher()
    raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/budget"}, GATE]

    assert gated(raw)["spec"]["schedulingGates"] == [GATE]


def test_a_pod_with_gpus_and_the_mark_is_governed_as_without_it() -> None:
    raw = admitted(half())
    marked = with_annotations(raw, MARK)

    assert gated(marked)["spec"] == gated(raw)["spec"]
