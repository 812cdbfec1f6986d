"""How many pods of an owner start together, by its own fields."""

from typing import Any

import pytest

from tests.worlds import Json
from timekeeper.core.gang_owners import GangOfOwner, contradictions, gang_of_owner, pod_sets, pods_left


def template(labels: Json | None = None, **annotations: str) -> Json:
    named = {f"bursar.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {"metadata": {"labels": labels or {}, "annotations": named}, "spec": {"containers": []}}


def gang(group: str, kind: str, spec: Json, **metadata: Json) -> GangOfOwner | None:
    owner = {"metadata": metadata, "spec": spec}
    return gang_of_owner(pod_sets(group, kind, owner), owner)


def size(group: str, kind: str, spec: Json, **metadata: Json) -> tuple[int, int, list[str]] | None:
    """Size, minimum and the paths of the templates."""
    found = gang(group, kind, spec, **metadata)
    return (found.size, found.minimum, [each.at for each in found.sets]) if found else None


def late(group: str, kind: str, spec: Json) -> tuple[int, list[tuple[str, int]]] | None:
    """The size, and the templates of the pods that follow with their number."""
    found = gang(group, kind, spec)
    return (found.size, [(each.at, each.count) for each in found.late]) if found else None


def job(parallelism: int, completions: int | None = None, **more: Any) -> Json:
    spec: Json = {"parallelism": parallelism, "template": template(), **more}
    return spec | ({"completions": completions} if completions is not None else {})


def replicated(name: str, replicas: int, parallelism: int, **more: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": {"spec": job(parallelism, parallelism)}, **more}


def replicas(count: int) -> Json:
    return {"replicas": count, "template": template()}


def test_a_jobs_pods_are_those_that_run_at_once() -> None:
    assert size("batch", "Job", job(8)) == (8, 8, ["spec.template"])
    assert size("batch", "Job", job(8, 6)) == (6, 6, ["spec.template"])
    assert size("batch", "Job", job(1)) is None
    assert size("batch", "Job", job(4, 9)) is None  # others follow those that end
    assert size("apps", "Deployment", job(4)) is None


@pytest.mark.parametrize(
    ("spec", "status", "left"),
    [
        (job(4, 4), {}, (4, 4)),
        (job(4, 4), {"succeeded": 1}, (4, 3)),
        (job(4, 4), {"succeeded": 1, "failedIndexes": "0,2-3"}, (4, 0)),
        (job(4, 9), {"succeeded": 3}, (4, 4)),  # others follow these
        (job(4, 9), {"succeeded": 8, "failed": 5}, (4, 1)),  # others follow those that failed
        (job(3), {"active": 0}, (3, 3)),
        (job(3), {"active": 1, "succeeded": 1}, (3, 1)),  # after the first success it makes none
        (job(2, 2), {"succeeded": 5}, (2, 0)),
        (job(2, 2), {"succeeded": "1", "failedIndexes": ["x"]}, (2, 2)),
        (job(2, 2), {"failedIndexes": "x,7-5,1"}, (2, 1)),
    ],
)
def test_a_job_makes_no_more_pods_than_are_left_of_its_completions(
    spec: Json, status: Json, left: tuple[int, int]
) -> None:
    assert pods_left({"spec": spec, "status": status}) == left


def test_a_jobsets_are_those_of_its_jobs_that_wait_for_no_other() -> None:
    jobs = [replicated("a", 2, 4), replicated("b", 1, 2)]
    at = "spec.replicatedJobs[{}].template.spec.template"
    late = {"name": "c", "dependsOn": [{"name": "a", "status": "Ready"}]}

    assert size("jobset.x-k8s.io", "JobSet", {"replicatedJobs": jobs}) == (
        10,
        10,
        [at.format(0), at.format(1)],
    )
    more = [*jobs, replicated("c", 1, 7) | late]
    assert size("jobset.x-k8s.io", "JobSet", {"replicatedJobs": more}) == (
        10,
        10,
        [at.format(0), at.format(1)],
    )
    ordered = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert size("jobset.x-k8s.io", "JobSet", ordered) == (8, 8, [at.format(0)])


def test_the_jobs_of_a_jobset_that_wait_until_others_run_follow_these() -> None:
    kind = "jobset.x-k8s.io", "JobSet"
    at = "spec.replicatedJobs[{}].template.spec.template"
    jobs = [replicated("a", 1, 1), replicated("b", 2, 3)]

    ordered = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert late(*kind, ordered) == (1, [(at.format(1), 6)])
    for status, follows in (("Ready", [(at.format(1), 6)]), ("Complete", [])):
        waits = [jobs[0] | {}, jobs[1] | {"dependsOn": [{"name": "a", "status": status}]}]
        found = late(*kind, {"replicatedJobs": waits})
        assert found == ((1, follows) if follows else None)  # what follows an end has the cards of what ended
    refilled = replicated("c", 1, 2, dependsOn=[{"name": "a", "status": "Ready"}])
    refilled["template"]["spec"]["completions"] = 9
    assert late(*kind, {"replicatedJobs": [jobs[1], refilled]}) == (6, [])


def test_where_all_with_gpus_come_later_those_of_one_template_start_together() -> None:
    """As a TrainJob's nodes come after its initializers, which ask for no GPU."""
    jobs = [replicated("node", 1, 4, dependsOn=[{"name": "initializer", "status": "Complete"}])]

    assert late("jobset.x-k8s.io", "JobSet", {"replicatedJobs": jobs}) == (4, [])
    both = [*jobs, replicated("other", 1, 2, dependsOn=[{"name": "node", "status": "Ready"}])]
    assert late("jobset.x-k8s.io", "JobSet", {"replicatedJobs": both}) is None


def test_a_leader_worker_sets_are_one_groups_or_the_leader_where_workers_come_later() -> None:
    at = "spec.leaderWorkerTemplate"
    group = {"size": 4, "workerTemplate": template()}
    led = group | {"leaderTemplate": template()}
    kind = "leaderworkerset.x-k8s.io", "LeaderWorkerSet"

    assert size(*kind, {"replicas": 3, "leaderWorkerTemplate": group}) == (4, 4, [f"{at}.workerTemplate"])
    both = [f"{at}.leaderTemplate", f"{at}.workerTemplate"]
    assert size(*kind, {"leaderWorkerTemplate": led}) == (4, 4, both)
    exclusive = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
    # its leader has its workers' template
    assert late(*kind, {"leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}) == (
        1,
        [(f"{at}.workerTemplate", 3)],
    )
    assert size(*kind, {"leaderWorkerTemplate": group}, annotations=exclusive) == (
        1,
        1,
        [f"{at}.workerTemplate"],
    )
    assert size(*kind, {"leaderWorkerTemplate": group | {"size": 1}, "startupPolicy": "LeaderReady"}) is None
    assert late(*kind, {"leaderWorkerTemplate": led, "startupPolicy": "LeaderReady"}) == (
        1,
        [(f"{at}.workerTemplate", 3)],
    )
    by_leader = gang(*kind, {"leaderWorkerTemplate": led}, annotations=exclusive)
    assert by_leader is not None
    assert [each.count for each in by_leader.late] == [3]


def test_a_kubeflow_jobs_are_those_of_all_its_replicas() -> None:
    kind = "kubeflow.org", "PyTorchJob"
    specs = {"Master": replicas(1), "Worker": replicas(7)}
    at = ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"]

    assert size(*kind, {"pytorchReplicaSpecs": specs}) == (8, 8, at)
    elastic = {"pytorchReplicaSpecs": specs, "elasticPolicy": {"minReplicas": 3, "maxReplicas": 7}}
    assert size(*kind, elastic) == (8, 4, at)
    launched = {"mpiReplicaSpecs": {"Launcher": replicas(1), "Worker": replicas(4)}}
    assert (size("kubeflow.org", "MPIJob", launched) or (0,))[0] == 5
    waits = launched | {"launcherCreationPolicy": "WaitForWorkersReady"}
    assert size("kubeflow.org", "MPIJob", waits) == (4, 4, ["spec.mpiReplicaSpecs.Worker.template"])


def test_a_ray_clusters_are_its_head_and_workers_unless_it_is_scaled() -> None:
    workers = {"replicas": 2, "numOfHosts": 3, "template": template()}
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [workers]}
    at = ["spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template"]

    assert size("ray.io", "RayCluster", spec) == (7, 7, at)
    assert size("ray.io", "RayCluster", spec | {"enableInTreeAutoscaling": True}) is None


@pytest.mark.parametrize(
    ("group", "workers"),
    [
        ({"replicas": 2, "minReplicas": 0, "maxReplicas": 4}, 2),
        ({"replicas": 1, "minReplicas": 3, "maxReplicas": 4}, 3),
        ({"replicas": 9, "minReplicas": 0, "maxReplicas": 4, "numOfHosts": 2}, 8),
        ({"minReplicas": 2}, 2),
        ({"replicas": 2, "suspend": True}, 0),
        ({"replicas": 2, "suspend": False}, 2),
    ],
)
def test_a_ray_groups_bounds_count_whatever_its_replicas_are(group: Json, workers: int) -> None:
    groups = [group | {"template": template()}, {"replicas": 1, "template": template()}]
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups}

    for owner in (spec, spec | {"suspend": True}):
        assert (size("ray.io", "RayCluster", owner) or (0,))[0] == workers + 2
        assert (size("ray.io", "RayJob", {"rayClusterSpec": owner}) or (0,))[0] == workers + 2


def ray_job(**fields: Any) -> Json:
    workers = {"replicas": 2, "template": template()}
    cluster = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [workers]}
    return {"rayClusterSpec": cluster, **fields}


def test_a_ray_jobs_are_those_of_its_cluster() -> None:
    at = "spec.rayClusterSpec"
    both = [f"{at}.headGroupSpec.template", f"{at}.workerGroupSpecs[0].template"]

    assert size("ray.io", "RayJob", ray_job()) == (3, 3, both)
    scaled = ray_job()
    scaled["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    assert size("ray.io", "RayJob", scaled) is None
    of_another = ray_job(clusterSelector={"ray.io/cluster": "c"})
    assert pod_sets("ray.io", "RayJob", {"spec": of_another}) == []


@pytest.mark.parametrize("mode", [None, "K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"])
def test_a_ray_jobs_submitter_follows_where_a_job_submits(mode: str | None) -> None:
    """Kept for it nothing is: its pod does not have the gang's name."""
    spec = ray_job(submitterPodTemplate=template()) | ({"submissionMode": mode} if mode else {})

    follows = [each.at for each in pod_sets("ray.io", "RayJob", {"spec": spec}) if each.follows]

    assert follows == (["spec.submitterPodTemplate"] if mode in (None, "K8sJobMode") else [])
    assert late("ray.io", "RayJob", spec) == (3, [])


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
        {"labels": {"kai.scheduler/queue": "q"}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
    ],
)
def test_an_owner_that_another_system_starts_is_left_to_it(metadata: Json) -> None:
    assert gang("batch", "Job", job(4), **metadata) is None
    assert gang("batch", "Job", {"parallelism": 4, "template": {**template(), "metadata": metadata}}) is None


def test_what_the_user_or_the_owners_owner_says_counts() -> None:
    assert gang("batch", "Job", job(4, template=template(gang_size="4"))) is None
    assert gang("batch", "Job", job(4, template=template(gang="a", gang_size="8"))) is None
    of_jobset = template({"jobset.sigs.k8s.io/jobset-name": "a"})
    assert gang("batch", "Job", job(4, template=of_jobset)) is None


@pytest.mark.parametrize(
    ("said", "labels", "expected"),
    [
        ({"gang_size": "4"}, {}, ""),
        ({"gang_size": "3"}, {}, "this Job creates 4 pods of the template, which would start together"),
        ({"gang": "a", "gang_size": "3"}, {}, "this Job creates 4 pods of the template"),
        ({"gang_size": "5"}, {}, "this Job creates 4 pods with GPUs, so the gang would wait for ever"),
        ({"gang": "a", "gang_size": "5"}, {}, ""),  # another Job may have the fifth
        ({"gang_size": "5"}, {"jobset.sigs.k8s.io/jobset-name": "a"}, ""),
    ],
)
def test_a_size_that_the_owner_contradicts_is_refused(said: Json, labels: Json, expected: str) -> None:
    owner = {"metadata": {}, "spec": job(4, template=template(labels, **said))}

    found = [each.sentence() for each in contradictions("Job", pod_sets("batch", "Job", owner), owner)]

    assert len(found) == bool(expected)
    at = "spec.template.metadata.annotations[bursar.dev/gang-size]: "
    assert not expected or found[0].startswith(at + expected)


RACK = {"gang_topology": "example.com/rack"}


def refused(owner: Json, kind: str, group: str) -> list[str]:
    return [each.sentence() for each in contradictions(kind, pod_sets(group, kind, owner), owner)]


def of_leader(leader: Json, worker: Json, **more: str) -> Json:
    group = {"size": 4, "leaderTemplate": template(**leader), "workerTemplate": template(**worker)}
    return {"metadata": {}, "spec": {"leaderWorkerTemplate": group, **more}}


@pytest.mark.parametrize("size", [{}, {"gang_size": "4"}])
def test_templates_of_one_gang_that_say_different_topologies_are_refused(size: Json) -> None:
    kind = "LeaderWorkerSet", "leaderworkerset.x-k8s.io"

    assert refused(of_leader(size | RACK, size | RACK), *kind) == []
    assert refused(of_leader(size | RACK, size), *kind) == [
        "spec.leaderWorkerTemplate.workerTemplate.metadata.annotations[bursar.dev/gang-topology]: "
        "spec.leaderWorkerTemplate.leaderTemplate says example.com/rack, and their pods start together; "
        "allowed: one for all templates of a gang; for example topology.kubernetes.io/rack"
    ]
    other = {"gang": "other", "gang_size": "4"}
    assert refused(of_leader(other | RACK, {"gang": "a", "gang_size": "4"}), *kind) == []


@pytest.mark.parametrize(
    ("leader", "worker", "name", "texts"),
    [
        ({"gang_size": "4"}, {"gang_size": "3"}, "size", ("3", "4")),
        ({"gang_size": "4", "gang_minimum": "2"}, {"gang_size": "4"}, "minimum", ("", "2")),
    ],
)
def test_templates_of_one_gang_that_say_different_numbers_are_refused_with_both(
    leader: Json, worker: Json, name: str, texts: tuple[str, str]
) -> None:
    (found,) = refused(of_leader(leader, worker), "LeaderWorkerSet", "leaderworkerset.x-k8s.io")

    at = f"spec.leaderWorkerTemplate.workerTemplate.metadata.annotations[bursar.dev/gang-{name}]"
    says = f"spec.leaderWorkerTemplate.leaderTemplate says {texts[1]}, and their pods start together"
    assert found.startswith(f"{at}: {says}" + (f', got "{texts[0]}"' if texts[0] else ""))


def test_templates_that_say_the_same_in_other_words_are_not() -> None:
    kind = "LeaderWorkerSet", "leaderworkerset.x-k8s.io"

    assert refused(of_leader({"gang_size": "4", "gang_minimum": "4"}, {"gang_size": "4"}), *kind) == []
    other = {"gang": "other", "gang_size": "3"}
    assert refused(of_leader({"gang": "a", "gang_size": "4"}, other), *kind) == []
    assert refused(of_leader({}, {"gang_size": "3"}), *kind) == []  # its leader starts by itself


def of_one_template(**said: str) -> Json:
    """A leader and three workers, which come once it is ready."""
    group = {"size": 4, "workerTemplate": template(None, **said)}
    return {"metadata": {}, "spec": {"leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}}


def test_of_one_template_for_a_leader_and_those_that_follow_the_leader_alone_starts_whole() -> None:
    kind = "LeaderWorkerSet", "leaderworkerset.x-k8s.io"

    for said in ({"gang_size": "1"}, {"gang_size": "1", **RACK}, RACK):
        assert refused(of_one_template(**said), *kind) == []
    (found,) = refused(of_one_template(gang_size="4"), *kind)
    assert "this LeaderWorkerSet creates 1 pods with GPUs before its others" in found


def test_a_topology_of_pods_that_start_one_by_one_later_is_refused() -> None:
    kind = "LeaderWorkerSet", "leaderworkerset.x-k8s.io"

    (found,) = refused(of_leader({}, RACK, startupPolicy="LeaderReady"), *kind)

    assert "pods of this template are created only after others run, and start one by one" in found


def test_a_size_beside_another_systems_mark_on_the_owner_is_refused() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    owner = {"metadata": {"labels": labels}, "spec": job(4, template=template(gang_size="4"))}

    (found,) = contradictions("Job", pod_sets("batch", "Job", owner), owner)

    assert "metadata.labels[kueue.x-k8s.io/queue-name] of this Job leaves the start" in found.sentence()
