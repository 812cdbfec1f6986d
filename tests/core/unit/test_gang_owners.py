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


def job(parallelism: int, completions: int | None = None, **more: Any) -> Json:
    spec: Json = {"parallelism": parallelism, "template": template(), **more}
    return spec | ({"completions": completions} if completions is not None else {})


def replicated(name: str, replicas: int, parallelism: int, **more: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": {"spec": job(parallelism, parallelism)}, **more}


def replicas(count: int) -> Json:
    return {"replicas": count, "template": template()}


Counted = tuple[int, int, list[str], list[tuple[str, int]]]
JOB = ("batch", "Job")
JOBSET = ("jobset.x-k8s.io", "JobSet")
LWS = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
PYTORCH, MPI = ("kubeflow.org", "PyTorchJob"), ("kubeflow.org", "MPIJob")
RAY, RAY_JOB = ("ray.io", "RayCluster"), ("ray.io", "RayJob")


def counted(of: tuple[str, str], spec: Json, **metadata: Json) -> Counted | None:
    """Size, minimum, the templates' paths, and those of the pods that follow with their number."""
    found = gang(of[0], of[1], spec, **metadata)
    if found is None:
        return None
    late = [(pods.at, pods.count) for pods in found.late]
    return found.size, found.minimum, [pods.at for pods in found.sets], late


def size(of: tuple[str, str], spec: Json) -> int:
    return (counted(of, spec) or (0,))[0]


def jobs(*of: Json, **more: Any) -> Json:
    return {"replicatedJobs": list(of), **more}


def after(name: str, status: str) -> Json:
    return {"dependsOn": [{"name": name, "status": status}]}


def replica(index: int) -> str:
    return f"spec.replicatedJobs[{index}].template.spec.template"


def group(leader: bool = False, **more: Any) -> Json:
    """Of a LeaderWorkerSet: four pods."""
    templates = {"leaderTemplate": template()} if leader else {}
    return {"leaderWorkerTemplate": {"size": 4, "workerTemplate": template(), **templates}, **more}


def cluster(*groups: Json, **more: Any) -> Json:
    """Of a RayCluster."""
    workers = [{"template": template(), **each} for each in groups]
    return {"headGroupSpec": {"template": template()}, "workerGroupSpecs": workers, **more}


A, B = replicated("a", 2, 4), replicated("b", 1, 2)
IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
REFILLED: Json = {"name": "c", "replicas": 1, "template": {"spec": job(2, 9)}, **after("a", "Ready")}
LEADER, WORKER = (f"spec.leaderWorkerTemplate.{each}Template" for each in ("leader", "worker"))
EXCLUSIVE = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
MASTER_AND_WORKERS: Json = {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(7)}}
LAUNCHED: Json = {"mpiReplicaSpecs": {"Launcher": replicas(1), "Worker": replicas(4)}}
TORCH, OF_MPI = "spec.pytorchReplicaSpecs", "spec.mpiReplicaSpecs"
HEAD, WORKERS = "headGroupSpec.template", "workerGroupSpecs[0].template"
OF_RAY = "spec.rayClusterSpec"
TWO = {"replicas": 2}


@pytest.mark.parametrize(
    ("of", "spec", "expected"),
    [
        (JOB, job(8), (8, 8, ["spec.template"], [])),
        (JOB, job(8, 6), (6, 6, ["spec.template"], [])),
        (JOB, job(1), None),
        (JOB, job(4, 9), None),  # others follow those that end
        (("apps", "Deployment"), job(4), None),
        (JOBSET, jobs(A, B), (10, 10, [replica(0), replica(1)], [])),
        (JOBSET, jobs(A, B, **IN_ORDER), (8, 8, [replica(0)], [(replica(1), 2)])),
        (JOBSET, jobs(A, B | after("a", "Ready")), (8, 8, [replica(0)], [(replica(1), 2)])),
        # what follows an end has the cards of what ended
        (JOBSET, jobs(A, B | after("a", "Complete")), (8, 8, [replica(0)], [])),
        (JOBSET, jobs(A, REFILLED), (8, 8, [replica(0)], [])),
        # as a TrainJob's nodes come after its initializers, which ask for no GPU
        (JOBSET, jobs(A | after("initializer", "Complete")), (8, 8, [replica(0)], [])),
        (JOBSET, jobs(A | after("initializer", "Complete"), B | after("a", "Ready")), None),
        (LWS, group(replicas=3), (4, 4, [WORKER], [])),
        (LWS, group(leader=True), (4, 4, [LEADER, WORKER], [])),
        # its leader has its workers' template
        (LWS, group(startupPolicy="LeaderReady"), (1, 1, [WORKER], [(WORKER, 3)])),
        (LWS, group(leader=True, startupPolicy="LeaderReady"), (1, 1, [LEADER], [(WORKER, 3)])),
        (PYTORCH, MASTER_AND_WORKERS, (8, 8, [f"{TORCH}.Master.template", f"{TORCH}.Worker.template"], [])),
        (MPI, LAUNCHED, (5, 5, [f"{OF_MPI}.Launcher.template", f"{OF_MPI}.Worker.template"], [])),
        (
            MPI,
            LAUNCHED | {"launcherCreationPolicy": "WaitForWorkersReady"},
            (4, 4, [f"{OF_MPI}.Worker.template"], [(f"{OF_MPI}.Launcher.template", 1)]),
        ),
        (RAY, cluster(TWO | {"numOfHosts": 3}), (7, 7, [f"spec.{HEAD}", f"spec.{WORKERS}"], [])),
        (RAY, cluster(TWO, enableInTreeAutoscaling=True), None),
        (RAY_JOB, {"rayClusterSpec": cluster(TWO)}, (3, 3, [f"{OF_RAY}.{HEAD}", f"{OF_RAY}.{WORKERS}"], [])),
        (RAY_JOB, {"rayClusterSpec": cluster(TWO), "clusterSelector": {"ray.io/cluster": "c"}}, None),
    ],
)
def test_an_owners_fields_say_how_many_start_together_and_who_follows(
    of: tuple[str, str], spec: Json, expected: Counted | None
) -> None:
    assert counted(of, spec) == expected


def test_an_elastic_job_needs_its_minimum_and_an_exclusive_group_its_leader() -> None:
    elastic = MASTER_AND_WORKERS | {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 7}}

    assert (counted(PYTORCH, elastic) or ())[:2] == (8, 4)
    for leader, first in ((False, WORKER), (True, LEADER)):
        assert counted(LWS, group(leader), annotations=EXCLUSIVE) == (1, 1, [first], [(WORKER, 3)])
    alone = {"size": 1, "workerTemplate": template()}
    assert counted(LWS, {"leaderWorkerTemplate": alone, "startupPolicy": "LeaderReady"}) is None


@pytest.mark.parametrize("mode", [None, "K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"])
def test_a_ray_jobs_submitter_follows_where_a_job_submits(mode: str | None) -> None:
    """Kept for it nothing is: its pod does not have the gang's name."""
    spec: Json = {"rayClusterSpec": cluster(TWO), "submitterPodTemplate": template()}
    spec |= {"submissionMode": mode} if mode else {}

    follows = [each.at for each in pod_sets(*RAY_JOB, {"spec": spec}) if each.follows]

    assert follows == (["spec.submitterPodTemplate"] if mode in (None, "K8sJobMode") else [])
    assert (counted(RAY_JOB, spec) or ())[::3] == (3, [])


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
    spec = cluster(group, {"replicas": 1})

    for owner in (spec, spec | {"suspend": True}):
        assert size(RAY, owner) == size(RAY_JOB, {"rayClusterSpec": owner}) == workers + 2


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
