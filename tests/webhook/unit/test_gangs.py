"""What admission writes into owners of pods that start together, and what it refuses in them."""

import json
from dataclasses import replace
from typing import Any

import jsonpatch
import orjson
import pytest
import yaml

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.policies import MANIFESTS
from tests.webhook.worlds import POLICY, UNPLACED, half, object_review, plain
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.budgets.policy import Budget, ineffective_fields
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.gang_owners import OWNERS
from timekeeper.core.request.request import parse
from webhook.admission.gangs import of_owner
from webhook.admission.workloads import judge
from webhook.standings import decode
from webhook.wire.pod_review import AdmissionAnswer

AUTO = replace(POLICY, finds_gangs=True)
SIZE = "bursar.dev/gang-size"


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
    assert of == {True: [None, {SIZE: "3"}], False: [{SIZE: "4"}, {SIZE: "4"}]}


def test_an_elastic_jobs_template_gets_its_minimum_too() -> None:
    raw = workers(cpu_only_master=False)
    raw["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3}

    (first, *_) = after(raw)["spec"]["pytorchReplicaSpecs"].values()
    assert first["template"]["metadata"]["annotations"] == {SIZE: "4", "bursar.dev/gang-minimum": "2"}


def told(raw: Json, policy: AdmissionPolicy = AUTO) -> Any:
    """What a JobSet's first template tells of the pods that follow."""
    (first, *_) = after(raw, policy)["spec"]["replicatedJobs"]
    metadata = first["template"]["spec"]["template"].get("metadata", {"annotations": {}})
    return metadata["annotations"].get("bursar.dev/gang-late")


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


def test_the_first_template_tells_of_those_that_follow_as_admission_leaves_them() -> None:
    workers, launcher = template(), template(plain())
    workers["spec"]["nodeSelector"] = {"pool": "a"}
    workers["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]

    first, second = json.loads(told(jobset(workers, launcher)))

    assert (first["count"], second["count"]) == (3, 3)
    spec = first["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "a"}
    assert "volumes" not in spec
    request = parse(first["template"]).request
    assert request == parse({"spec": template()["spec"]}).request is not None
    assert "bursar-sidecar" in [each["name"] for key in spec for each in spec[key] if "ontainers" in key]
    assert parse(second["template"]).request is None
    assert told(jobset(*[template(*[half(name=f"c{at}") for at in range(99)])] * 3)) is None  # too long


def ray_job(**fields: Json) -> Json:
    groups = [{"replicas": 2, "template": template()}]
    cluster = {"headGroupSpec": {"template": template(plain())}, "workerGroupSpecs": groups}
    spec = {"rayClusterSpec": cluster, **fields}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "t"}, "spec": spec}


def test_a_ray_jobs_workers_tell_of_its_submitter_and_its_cluster_says_no_more() -> None:
    own = template(plain(resources={"requests": {"cpu": "3"}}))
    for fields, cpu in (({}, "500m"), ({"submitterPodTemplate": own}, "3")):
        cluster = after(ray_job(**fields))["spec"]["rayClusterSpec"]

        (group,) = cluster["workerGroupSpecs"]
        annotations = group["template"]["metadata"]["annotations"]
        (submitter,) = json.loads(annotations["bursar.dev/gang-late"])
        assert (annotations[SIZE], submitter["count"]) == ("2", 1)
        assert submitter["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == cpu
        assert "metadata" not in cluster["headGroupSpec"]["template"]
        made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "t"}, "spec": cluster}
        assert answered(made) == AdmissionAnswer("passed")


def leader_ready(*containers: Json, size: int = 4) -> Json:
    group = {"size": size, "workerTemplate": template(*containers)}
    spec = {"leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}
    metadata = {"name": "t"}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**kind, "metadata": metadata, "spec": spec}


def test_a_template_of_leader_and_workers_tells_of_those_that_come_later_once() -> None:
    written = after(leader_ready())

    annotations = written["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["annotations"]
    (workers,) = json.loads(annotations["bursar.dev/gang-late"])
    assert (annotations[SIZE], workers["count"]) == ("1", 3)
    assert answered(written) == AdmissionAnswer("passed")


def test_of_one_template_that_cannot_tell_of_those_that_come_later_no_size_is_said() -> None:
    """The workers would have it too, and wait as members of a gang that runs."""
    assert answered(leader_ready(size=1026)) == AdmissionAnswer("passed")
    assert answered(leader_ready(*[half(name=f"c{at}") for at in range(400)])) == AdmissionAnswer("passed")


def test_cards_of_a_submitter_are_not_kept() -> None:
    cluster = after(ray_job(submitterPodTemplate=template()))["spec"]["rayClusterSpec"]

    assert cluster["workerGroupSpecs"][0]["template"]["metadata"]["annotations"] == {SIZE: "2"}


def test_whole_cards_are_told_of_in_bursars_words() -> None:
    policy = replace(AUTO, takes_whole_cards=True)
    gpu = container() | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}

    (first,) = json.loads(told(jobset(template(gpu)), policy))

    assert "bursar.dev/gpu-percent" in str(first)
    assert "nvidia.com" not in str(first)


def failure_policy(raw: Json, policy: AdmissionPolicy = AUTO) -> Any:
    return after(raw, policy)["spec"].get("podFailurePolicy")


IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAILS = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}


def test_a_gangs_job_does_not_count_evicted_pods() -> None:
    annotated = job(template(**{SIZE: "4"}))
    other = job(template())
    other["spec"]["podFailurePolicy"] = {"rules": [FAILS]}
    own = job(template())
    own["spec"]["podFailurePolicy"] = {"rules": [FAILS, IGNORED | {"action": "Count"}]}
    restarted = job(template())
    restarted["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"

    assert failure_policy(job(template())) == {"rules": [IGNORED]}
    defaulted = job(template())
    defaulted["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    assert after(defaulted)["spec"]["podReplacementPolicy"] == "Failed"
    assert failure_policy(annotated, POLICY) == {"rules": [IGNORED]}
    assert failure_policy(other) == {"rules": [IGNORED, FAILS]}
    assert failure_policy(own) == own["spec"]["podFailurePolicy"]
    assert failure_policy(restarted) is None  # Kubernetes has none for it
    assert failure_policy(job(template()), POLICY) is None
    full = job(template())
    full["spec"]["podFailurePolicy"] = {"rules": [FAILS] * 20}
    assert failure_policy(full) == full["spec"]["podFailurePolicy"]


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


def test_a_size_that_the_user_says_stays() -> None:
    own = {"bursar.dev/gang": "a", SIZE: "9"}

    assert sizes(after(job(template(**own)))) == own


def test_only_a_new_owner_is_changed() -> None:
    assert of_owner(object_review(job(template()), operation="UPDATE"), AUTO).operations == ()


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
    assert {operation for rule in found["rules"] for operation in rule["operations"]} == {"CREATE"}
    assert (found["failurePolicy"], found["clientConfig"]["service"]["path"]) == ("Ignore", "/gangs")
