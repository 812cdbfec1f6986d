"""What admission writes into owners of pods that start together, and what it refuses in them."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonpatch
import orjson
import pytest
import yaml

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.policies import MANIFESTS
from tests.webhook.worlds import POLICY, UNPLACED, half, object_review, plain
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.budgets.policy import Budget, ineffective_fields
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.gang_owners import OWNERS
from timekeeper.core.gangs import gang_violations
from timekeeper.core.standings import Cap, Caps
from webhook.admission.gangs import of_owner
from webhook.admission.workloads import judge
from webhook.standings import decode
from webhook.wire.pod_review import AdmissionAnswer

AUTO = replace(POLICY, finds_gangs=True)
SIZE, MINIMUM = "bursar.dev/gang-size", "bursar.dev/gang-minimum"
COUNTED = "bursar.dev/counted"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def template(*containers: Json, **annotations: str) -> Json:
    metadata = {"metadata": {"annotations": annotations}} if annotations else {}
    return {**metadata, "spec": {"containers": list(containers or [half()]), "restartPolicy": "Never"}}


def job(of: Json, parallelism: int = 4) -> Json:
    spec = {"parallelism": parallelism, "completions": parallelism, "template": of}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def workers(*, cpu_only_master: bool) -> Json:
    specs = {
        "Master": {"replicas": 1, "template": template(plain() if cpu_only_master else half())},
        "Worker": {"replicas": 3, "template": template()},
    }
    spec = {"pytorchReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "t"}, "spec": spec}


def answered(raw: Json, policy: AdmissionPolicy = AUTO) -> AdmissionAnswer:
    return of_owner(object_review(raw), policy)


def after(raw: Json, policy: AdmissionPolicy = AUTO) -> Any:
    """The owner after the patch."""
    return jsonpatch.apply_patch(raw, json.loads(json.dumps(answered(raw, policy).operations)))


def sizes(raw: Json) -> Any:
    """What the template of a Job says."""
    return raw["spec"]["template"].get("metadata", {}).get("annotations", {})


@pytest.mark.parametrize("own", [{}, {"a": "b"}])
def test_a_parallel_jobs_template_gets_its_number_of_pods_once(own: Json) -> None:
    written = after(job(template(**own)))

    assert sizes(written) == {**own, SIZE: "4"}
    assert answered(written).operations == ()
    assert not judge(object_review(written), AUTO).refusal  # its pods are named by their Job later


def test_pods_without_cards_are_not_counted() -> None:
    specs = {
        each: after(workers(cpu_only_master=each))["spec"]["pytorchReplicaSpecs"] for each in (True, False)
    }

    of = {
        each: [set_["template"].get("metadata", {}).get("annotations") for set_ in found.values()]
        for each, found in specs.items()
    }
    waits = {"bursar.dev/gang-late": "true"}
    assert of == {True: [waits, {SIZE: "3"}], False: [{SIZE: "4"}, {SIZE: "4"}]}


DRIVER_ENDS = {"name": "driver", "status": "Complete"}


def jobset(*late: Json, **fields: Any) -> Json:
    """A driver, and jobs of three pods of these templates, which are created once it is ready."""
    jobs = [{"name": "driver", "template": {"spec": {"parallelism": 1, "template": template()}}}]
    for at, each in enumerate(late):
        of = {"spec": {"parallelism": 3, "template": each}}
        after = {"dependsOn": [{"name": "driver", "status": "Ready"}], **fields}
        jobs.append({"name": f"late-{at}", "template": of, **after})
    spec = {"replicatedJobs": jobs}
    version = "jobset.x-k8s.io/v1alpha2"
    return {"apiVersion": version, "kind": "JobSet", "metadata": {"name": "t"}, "spec": spec}


def ray_job(**fields: Json) -> Json:
    groups = [{"replicas": 2, "template": template()}]
    cluster = {"headGroupSpec": {"template": template(plain())}, "workerGroupSpecs": groups}
    spec = {"rayClusterSpec": cluster, **fields}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "t"}, "spec": spec}


def leader_ready(*containers: Json, size: int = 4) -> Json:
    group = {"size": size, "workerTemplate": template(*containers)}
    spec = {"leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}
    metadata = {"name": "t"}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**kind, "metadata": metadata, "spec": spec}


FOLLOWED = {
    "of one template": (leader_ready(), 1),
    "of one template, too many for a gang": (leader_ready(size=1026), 1),
    "workers and a launcher": (jobset(template(), template(plain())), 2),
    "a submitter, of no gang's name": (ray_job(submitterPodTemplate=template()), 1),
    "one pod, and others after its end": (jobset(template(), dependsOn=[DRIVER_ENDS]), 0),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_those_that_follow_say_the_number_of_those_before_them(case: str) -> None:
    """So they are members of a gang that runs, and single pods of it. Other templates stay as they are."""
    raw, templates = FOLLOWED[case]
    written = after(raw)

    first = 2 if raw["kind"] == "RayJob" else 1
    assert said(written) == [first] * templates
    assert answered(written) == AdmissionAnswer("passed")
    if raw["kind"] == "RayJob":
        made = {**ray_cluster(), "spec": written["spec"]["rayClusterSpec"]}
        assert answered(made) == AdmissionAnswer("passed")


def failure_policy(raw: Json, policy: AdmissionPolicy = AUTO) -> Any:
    return after(raw, policy)["spec"].get("podFailurePolicy")


IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAILS = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}


def test_a_gangs_job_does_not_count_evicted_pods() -> None:
    annotated = job(template(**{SIZE: "4"}))
    own = job(template())
    own["spec"]["podFailurePolicy"] = {"rules": [FAILS]}
    restarted = job(template())
    restarted["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"

    assert failure_policy(job(template())) == {"rules": [IGNORED]}
    assert failure_policy(annotated, POLICY) == {"rules": [IGNORED]}
    assert {**after(own)["spec"], "template": 0} == {**own["spec"], "template": 0}
    assert failure_policy(restarted) is None  # Kubernetes has none for it
    assert failure_policy(job(template()), POLICY) is None


@pytest.mark.parametrize(
    ("metadata", "written"),
    [
        ({}, "Failed"),  # it is the API server's default, as far as one can see
        ({"managedFields": [{"operation": "Update", "fieldsV1": {"f:podReplacementPolicy": {}}}]}, "Failed"),
        ({"managedFields": [{"operation": "Apply", "fieldsV1": {"f:podReplacementPolicy": {}}}]}, None),
        ({"annotations": {LAST_APPLIED: '{"spec":{"podReplacementPolicy":"TerminatingOrFailed"}}'}}, None),
    ],
)
def test_how_pods_are_replaced_stays_as_its_user_applied_it(metadata: Json, written: str | None) -> None:
    raw = job(template())
    raw["metadata"] |= metadata
    raw["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"

    spec = after(raw)["spec"]

    assert spec["podReplacementPolicy"] == (written or "TerminatingOrFailed")
    assert ("podFailurePolicy" in spec) == bool(written)


@pytest.mark.parametrize(
    ("raw", "policy"),
    [
        (job(template()), POLICY),
        (job(template()), replace(AUTO, mode="observe")),
        (job(template()), replace(UNPLACED, finds_gangs=True)),
        (job(template(plain())), AUTO),
        (job(template(), parallelism=1), AUTO),
    ],
    ids=["no auto", "observe", "unplaced", "no cards", "one pod"],
)
def test_another_owner_keeps_its_template(raw: Json, policy: AdmissionPolicy) -> None:
    assert answered(raw, policy) == AdmissionAnswer("passed")


def ray_cluster(replicas: int = 2, **fields: Any) -> Json:
    groups = [{"replicas": replicas, "template": template()}]
    spec = {"headGroupSpec": {"template": template(plain())}, "workerGroupSpecs": groups, **fields}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "t"}, "spec": spec}


def elastic(replicas: int = 3) -> Json:
    raw = workers(cpu_only_master=False)
    raw["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
    raw["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 9}
    return raw


def group_of(size: int, **annotations: str) -> Json:
    raw = leader_ready(size=size)
    raw["spec"] = {"leaderWorkerTemplate": {"size": size, "workerTemplate": template(**annotations)}}
    return raw


def updated(stored: Json, new: Json, policy: AdmissionPolicy = AUTO) -> Any:
    """The new version of the owner after the patch."""
    operations = of_owner(object_review(new, stored), policy).operations
    return jsonpatch.apply_patch(new, json.loads(json.dumps(operations)))


def applied(stored: Any, new: Any) -> Any:
    """As `kubectl apply` makes it of a custom resource: a JSON merge patch, by which lists are replaced."""
    if not (isinstance(stored, dict) and isinstance(new, dict)):
        return new
    return {name: applied(stored.get(name), new.get(name, stored.get(name))) for name in {**stored, **new}}


def said(owner: Json) -> list[int]:
    """The numbers in an owner's templates, in the order of its fields."""
    return [int(text) for text in re.findall(r'gang-(?:size|minimum)": "([0-9]+)"', json.dumps(owner))]


OWNED = {
    "Job": job(template(a="b")),
    "JobSet": jobset(template(), template(plain())),
    "LeaderWorkerSet": leader_ready(),
    "PyTorchJob": elastic(),
    "RayCluster": ray_cluster(),
    "RayJob": ray_job(),
}


@pytest.mark.parametrize("kind", OWNED)
@pytest.mark.parametrize("policy", [AUTO, POLICY], ids=["auto", "not any more"])
def test_an_update_from_the_users_manifest_changes_nothing(kind: str, policy: AdmissionPolicy) -> None:
    stored = after(OWNED[kind])

    assert stored["metadata"]["annotations"] == {COUNTED: "true"}
    assert updated(stored, OWNED[kind], policy) == stored  # replaced, without all that the webhook wrote
    assert updated(stored, applied(stored, OWNED[kind]), policy) == stored
    assert of_owner(object_review(stored, stored), policy) == AdmissionAnswer("passed")


def test_an_update_writes_only_where_the_webhook_has_counted() -> None:
    idle, own = ray_cluster(replicas=0), job(template(**{SIZE: "4"}))

    for old, new in ((idle, ray_cluster()), (own, job(template(**{SIZE: "4"}), 6))):
        assert after(old)["metadata"] == old["metadata"]
        assert updated(after(old), new) == new
    assert of_owner(object_review(None, after(own), operation="DELETE"), AUTO) == AdmissionAnswer("passed")
    status = object_review(own, after(OWNED["Job"]), subResource="status")
    assert of_owner(status, AUTO) == AdmissionAnswer("passed")


@pytest.mark.parametrize(
    ("raw", "changed", "before", "since"),
    [
        (group_of(4), group_of(5), [4], [5]),
        (group_of(4), group_of(1), [4], []),
        (group_of(4, a="b"), group_of(5, a="b"), [4], [5]),
        (elastic(3), elastic(5), [4, 2, 4, 2], [6, 2, 6, 2]),
        (elastic(3), elastic(1), [4, 2, 4, 2], [2, 2]),
        (ray_cluster(2), ray_cluster(4), [2], [4]),
        (ray_cluster(2), ray_cluster(4, enableInTreeAutoscaling=True), [2], []),
        (ray_cluster(2), ray_cluster(2, suspend=True), [2], [2]),
    ],
)
def test_an_owner_whose_pods_change_in_number_gets_the_new_one(
    raw: Json, changed: Json, before: list[int], since: list[int]
) -> None:
    stored = after(raw)

    assert said(stored) == before
    assert said(updated(stored, changed)) == since
    assert said(updated(stored, applied(stored, changed))) == since  # its templates still say the former ones


def test_a_number_that_nothing_in_the_update_changes_stays() -> None:
    """As after `kubectl scale`, of which the webhook is not asked."""
    stored = applied(after(elastic(3)), {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 5}}}})

    assert said(updated(stored, applied(stored, {"spec": {"runPolicy": {"suspend": True}}}))) == [4, 2, 4, 2]
    assert said(updated(stored, elastic(6))) == [7, 2, 7, 2]


def test_a_job_gets_a_new_number_while_the_api_server_takes_another_template() -> None:
    stored = after(job(template()))
    suspended = {**stored, "spec": {**stored["spec"], "suspend": True}}
    started = {**suspended, "status": {"startTime": "2026-11-01T00:00:00Z"}}

    for old, numbers in ((stored, [4]), (suspended, [6]), (started, [4])):
        grown = applied(old, job(template(), 6))
        assert said(updated(old, grown)) == numbers
        assert said(updated(old, {**grown, "spec": {**grown["spec"], "template": template()}})) == numbers
    assert said(updated(stored, applied(stored, job(template(), 1)))) == [4]


def test_a_jobset_keeps_its_numbers_where_it_takes_no_others() -> None:
    """As one that Kueue's label is added to while it runs: then it would have no gang."""
    labelled = jobset(template(), template())
    labelled["metadata"] = {"name": "t", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    stored = after(jobset(template(), template()))
    suspended = applied(labelled, {"spec": {"suspend": True}})

    assert said(updated(stored, labelled)) == said(stored) == [1, 1, 1]
    assert said(updated(stored, suspended)) == []


def test_a_number_alone_restarts_no_ray_cluster() -> None:
    """KubeRay's strategy Recreate compares templates, and leaves out replicas."""
    recreates = {"upgradeStrategy": {"type": "Recreate"}}
    stored = after(ray_cluster(2, **recreates))
    other = ray_cluster(4, **recreates)
    other["spec"]["workerGroupSpecs"][0]["template"]["spec"]["hostname"] = "b"

    assert said(updated(stored, ray_cluster(4, **recreates))) == [2]
    assert said(updated(stored, other)) == [4]


def test_a_minimum_and_a_size_of_its_user_stay() -> None:
    raw = group_of(8, **{MINIMUM: "6"})
    stored = after(raw)

    assert said(stored) == [8, 6]
    assert updated(stored, raw) == stored
    assert said(updated(stored, group_of(9, **{MINIMUM: "6"}))) == [9, 6]
    own = group_of(9, **{SIZE: "10", "bursar.dev/gang": "a"})
    assert updated(stored, own)["spec"] == own["spec"]


@pytest.mark.parametrize("policy", [POLICY, AUTO], ids=["annotated", "auto"])
@pytest.mark.parametrize("text", ["", "  ", "0", "4.0", "4 ", "-4", "1025", "many"])
@pytest.mark.parametrize("name", [SIZE, MINIMUM])
def test_a_size_that_is_no_number_of_pods_is_refused_and_not_replaced(
    text: str, name: str, policy: AdmissionPolicy
) -> None:
    """Nor in a template of pods without GPUs beside others of the owner, nor on a pod."""
    sentence = f'metadata.annotations[{name}]: this is no number of pods, got "{text}"; allowed: 1 to 1024'
    at, beside = "spec.leaderWorkerTemplate.workerTemplate", workers(cpu_only_master=True)
    of_master = beside["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    of_master["metadata"] = {"annotations": {name: text}}
    said = {SIZE: "4", "bursar.dev/gang": "g", name: text}

    refusal = answered(group_of(4, **{name: text}), policy).refusal
    assert refusal == f"{at}.{sentence}; for example 8"
    assert f"spec.pytorchReplicaSpecs.Master.template.{sentence}" in answered(beside, policy).refusal
    assert f"spec.template.{sentence}" in judge(object_review(job(template(**said))), policy).refusal
    assert f"{sentence}; for example 8" in [wrong.sentence() for wrong in gang_violations(template(**said))]


def test_a_minimum_above_the_number_that_the_webhook_counts_is_refused_with_both() -> None:
    raw = group_of(4, **{MINIMUM: "6"})
    sentence = (
        "spec.leaderWorkerTemplate.workerTemplate.metadata.annotations[bursar.dev/gang-minimum]: more pods"
        ' are to start at least than the gang has (bursar.dev/gang-size: 4), got "6"; allowed: 1 to 4; for'
        " example 4"
    )

    assert answered(raw).refusal == sentence
    stored = after(group_of(8, **{MINIMUM: "6"}))
    assert of_owner(object_review(raw, stored), AUTO).refusal == sentence


def capped(milli: int) -> AdmissionPolicy:
    return replace(AUTO, caps=Caps(own=Cap(total_milli=milli)))


def test_a_gang_above_the_cap_of_its_namespace_is_refused_at_once() -> None:
    answer = answered(job(template()), capped(1_500))

    assert answer.refusal == (
        "spec.template: its pods start together, and the budget of the namespace allows less at one time"
        ' (maxGPUs), got "2 GPUs"; allowed: at most 1.5; for example fewer pods, or smaller shares'
    )
    assert not answered(job(template()), capped(2_000)).refusal
    assert not answered(
        job(template()), replace(capped(1_500), finds_gangs=False)
    ).refusal  # they come singly
    assert not answered(elastic(), capped(1_000)).refusal  # two of its pods start
    assert answered(elastic(), capped(999)).refusal
    named = {"bursar.dev/gang": "a", SIZE: "4"}
    for policy in (capped(1_500), replace(capped(1_500), finds_gangs=False)):
        assert answered(job(template(**named)), policy).refusal == answer.refusal
    assert not answered(job(template(**named)), capped(2_000)).refusal
    assert not answered(job(template(**named, **{MINIMUM: "3"})), capped(1_500)).refusal
    of_many = named | {SIZE: "5"}
    assert not answered(job(template(**of_many)), capped(1_500)).refusal  # others have the name, too
    assert not of_owner(object_review(job(template(), 3), after(job(template()))), capped(500)).refusal


@pytest.mark.parametrize("policy", [POLICY, AUTO], ids=["annotated", "auto"])
def test_a_size_that_the_owner_contradicts_is_refused_with_its_field(policy: AdmissionPolicy) -> None:
    answer = answered(job(template(**{SIZE: "3"})), policy)

    assert answer.refusal == (
        "spec.template.metadata.annotations[bursar.dev/gang-size]: this Job creates 4 pods of the template, "
        'which would start together, got "3"; allowed: 4 or more; for example 4'
    )
    assert not answered(job(template(**{SIZE: "3"})), replace(policy, mode="observe")).refusal


def test_the_table_of_standings_says_where_owners_are_read() -> None:
    table = decode(orjson.dumps(standings(team_a=entry(gangs="auto"), team_b=entry())), "", 0)

    found = [effective_policy(POLICY, table, True, each).finds_gangs for each in ("team-a", "team-b")]
    assert (found, effective_policy(POLICY, None).finds_gangs) == ([True, False], False)


def test_an_entry_says_it_with_a_word_of_two() -> None:
    read_auto = read_entry("team-a", "gpuHours: 1\ngangs: auto")

    assert read_auto == Budget(3_600_000_000, gangs="auto")
    assert "gangs" in str(read_entry("team-a", "gpuHours: 1\ngangs: all"))
    assert "gangs" in str(read_entry("_group.a", "gpuHours: 1\ngangs: auto"))
    assert ineffective_fields(Budget(None, gangs="auto"), "on") == ()
    assert ineffective_fields(Budget(None, gangs="auto"), "off") == (
        "gangs: it has no effect where placement is off",
    )


def test_the_manifest_names_all_kinds_of_the_table() -> None:
    documents = yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text())
    (found,) = (
        each for document in documents for each in document["webhooks"] if each["name"] == "gangs.bursar.dev"
    )

    registered = {(rule["apiGroups"][0], each) for rule in found["rules"] for each in rule["resources"]}
    assert registered == {(each.group, f"{kind.lower()}s") for each in OWNERS for kind in each.kinds}
    assert {operation for rule in found["rules"] for operation in rule["operations"]} == {"CREATE", "UPDATE"}
    assert not any("/" in each for rule in found["rules"] for each in rule["resources"])  # no subresource
    assert (found["failurePolicy"], found["clientConfig"]["service"]["path"]) == ("Ignore", "/gangs")
