"""The pods of owners, as their controllers create them."""

from collections import Counter
from typing import Any

import pytest

from tests.worlds import Json
from timekeeper.core.gangs import gang_of, group_of
from timekeeper.core.kube.owned_pods import as_started, is_owner, may_own_gang, owned_pods


def _template(size: int) -> dict[str, Any]:
    marks = {"bursar.dev/gang-size": str(size), "bursar.dev/gang-topology": "example.com/rack"}
    return {"metadata": {"labels": {"app": "x"}, "annotations": marks}, "spec": {"containers": []}}


def _job(parallelism: int) -> dict[str, Any]:
    return {"template": {"spec": {"parallelism": parallelism, "template": _template(5)}}}


_SPECS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    # kind -> apiVersion, spec, and how many pods each of its gangs has
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        {"replicatedJobs": [{"replicas": 2, **_job(2)}, {"replicas": 1, **_job(1)}]},
        {"jobset/train": 5},
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": _template(3)}},
        {"leaderworkerset/train-0": 3, "leaderworkerset/train-1": 3},
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": _template(4)},
                "Worker": {"replicas": 3, "template": _template(4)},
            }
        },
        {"kubeflow/train": 4},
    ),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": _template(2)}}},
        {"kubeflow/train": 2},
    ),
    "RayCluster": (
        "ray.io/v1",
        {
            "headGroupSpec": {"template": _template(3)},
            "workerGroupSpecs": [{"replicas": 2, "template": _template(3)}],
        },
        {"ray/train": 3},
    ),
}
_SPECS["Job"] = ("batch/v1", {"parallelism": 5, "completions": 4, "template": _template(4)}, {"job/train": 4})
_RAY_JOB = {"rayClusterSpec": _SPECS["RayCluster"][1], "submissionMode": "HTTPMode"}
_SPECS["RayJob"] = ("ray.io/v1", _RAY_JOB, {"ray/train": 3})


@pytest.mark.parametrize("kind", _SPECS)
def test_the_pods_of_an_owner_of_gangs_are_known_as_those_that_its_controller_creates(kind: str) -> None:
    """By their controllers' labels; the template's own labels and annotations stay."""
    version, spec, gangs = _SPECS[kind]
    owner: Any = {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}

    found = list(owned_pods(as_started(owner)[0], 1000))

    known = [gang for each in found if (gang := gang_of(each)) is not None]
    assert Counter(each.key for each in known) == gangs
    assert {each.topology for each in known} == {"example.com/rack"}
    assert len({each["metadata"]["name"] for each in found}) == len(found)
    assert {each["metadata"]["labels"]["app"] for each in found} == {"x"}
    assert [each["metadata"]["ownerReferences"][0]["kind"] for each in found] == [kind] * len(found)
    assert is_owner(owner)
    assert not is_owner(owner | {"apiVersion": "example.com/v1"})


def test_a_ray_jobs_submitter_is_a_pod_without_the_name_of_its_gang() -> None:
    spec = {name: value for name, value in _RAY_JOB.items() if name != "submissionMode"}
    owner: Any = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "train"}, "spec": spec}

    *_, submitter = owned_pods(owner, 50)

    assert "labels" in submitter["metadata"]
    assert group_of(submitter) == ""
    assert submitter["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "200Mi"}


def test_of_each_group_of_a_leader_worker_set_the_first_pod_is_the_leader() -> None:
    group = {"size": 3, "leaderTemplate": _template(3), "workerTemplate": _template(3)}
    spec = {"replicas": 2, "leaderWorkerTemplate": group}
    metadata = {"name": "train"}
    owner: Any = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
    }

    labels = [each["metadata"]["labels"] for each in owned_pods(owner | {"spec": spec}, 50)]

    assert [each["leaderworkerset.sigs.k8s.io/worker-index"] for each in labels] == ["0", "1", "2"] * 2


def test_the_pods_of_a_large_owner_are_no_more_than_the_server_refuses() -> None:
    workers = {"Worker": {"replicas": 10**9, "template": _template(4)}}
    owner: Any = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "train"}}

    assert len(list(owned_pods(owner | {"spec": {"tfReplicaSpecs": workers}}, 51))) == 51


def train_job(**trainer: object) -> Any:
    spec = {"runtimeRef": {"name": "torch"}, "trainer": trainer}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "spec": spec,
    }


def test_a_train_job_has_as_many_pods_as_nodes_with_what_each_requests_and_says_what_is_unknown() -> None:
    resources = {"limits": {"bursar.dev/gpu-percent": "100"}}

    jobset, unknown = as_started(train_job(numNodes=3, resourcesPerNode=resources))

    found = list(owned_pods(jobset, 50))
    assert [each["metadata"]["name"] for each in found] == [f"train-0-0-{at}" for at in range(3)]
    assert {each["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] for each in found} == {"train"}
    assert [each["spec"]["containers"][0]["resources"] for each in found] == [resources] * 3
    assert unknown == (
        "of TrainJob train the runtime torch is not read: other requests, node selectors, annotations and"
        " priority of its pods, and its initializers and launchers, are not known"
    )


def test_what_a_train_job_leaves_to_its_runtime_is_not_guessed() -> None:
    one, count = as_started(train_job(resourcesPerNode={"limits": {"nvidia.com/gpu": 8}}))
    none, requests = as_started(train_job(numNodes=3))

    assert len(list(owned_pods(one, 50))) == 1
    assert "and spec.trainer.numNodes is absent: one node is assumed: other requests" in count
    assert list(owned_pods(none, 50)) == []
    assert requests == (
        "of TrainJob train the runtime torch is not read, and spec.trainer.resourcesPerNode is absent: what"
        " its pods request is not known"
    )


@pytest.mark.parametrize(
    "spec", [None, {}, {"trainer": 7}, {"trainer": {"numNodes": "x"}}, {"runtimeRef": []}]
)
def test_an_odd_train_job_has_no_pods(spec: object) -> None:
    assert list(owned_pods(as_started(train_job() | {"spec": spec})[0], 50)) == []


@pytest.mark.parametrize(
    ("replicas", "count"), [({"replicas": 2}, 2), ({}, 1), ({"replicas": "2"}, 1), ({"replicas": 0}, 0)]
)
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_are_pods_of_no_gang(kind: str, replicas: dict[str, object], count: int) -> None:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}
    owner = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {**replicas, "template": template},
    }

    pods = list(owned_pods(owner, 10))

    assert (is_owner(owner), may_own_gang(owner)) == (True, False)
    assert [pod["metadata"]["name"] for pod in pods] == [f"web-{at}" for at in range(count)]
    for pod in pods:
        assert (pod["metadata"]["labels"], gang_of(pod)) == ({"app": "x"}, None)
        assert pod["metadata"]["ownerReferences"] == [{"kind": kind, "name": "web", "controller": True}]


def test_of_groups_without_number_the_most_are_made_and_no_other_is_counted() -> None:
    template: Json = {"spec": {"containers": []}}
    owner = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "train"},
        "spec": {"replicas": 10**15, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }

    assert [pod["metadata"]["name"] for pod in owned_pods(owner, 3)] == [
        "train-0-0-0",
        "train-0-0-1",
        "train-1-0-0",
    ]
