"""The pods that the controllers of JobSet, LeaderWorkerSet, Kubeflow and Ray would create for a manifest,
with the labels by which their gangs are known."""

from collections.abc import Iterator
from typing import Any

from timekeeper.core.gang_owners import OWNERS, PodSet, pod_sets
from timekeeper.core.json_values import Json, mapping

_JOBS = ("Job",)  # `simulation` makes their pods
_RAY_JOB = "RayJob"
KINDS = (*(kind for each in OWNERS for kind in each.kinds if kind not in _JOBS), _RAY_JOB)
_LABELS = {
    "jobset.x-k8s.io": "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.x-k8s.io": "leaderworkerset.sigs.k8s.io/name",
    "kubeflow.org": "training.kubeflow.org/job-name",
    "ray.io": "ray.io/cluster",
}
_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"


def owned_pods(document: Json, most: int) -> Iterator[dict[str, Any]]:
    """The pods of an owner of `KINDS`, at most ``most``; none for another kind of this name."""
    kind, name = str(document.get("kind")), str(mapping(document.get("metadata")).get("name"))
    group = str(document.get("apiVersion")).partition("/")[0]
    owner = document
    if kind == _RAY_JOB:
        owner = {**document, "spec": mapping(mapping(document.get("spec")).get("rayClusterSpec"))}
    sets = pod_sets(group, "RayCluster" if kind == _RAY_JOB else kind, owner)
    controller = {"kind": kind, "name": name, "controller": True}
    left = most
    for index in range(_groups(group, document) if sets else 0):
        labels = {_LABELS[group]: name}
        if group.startswith("leaderworkerset"):
            labels[_GROUP_INDEX] = str(index)
        for place, each in enumerate(sets):
            for at in range(min(each.count, left)):
                left -= 1
                yield _pod(each, f"{name}-{index}-{place}-{at}", labels, controller)


def _groups(group: str, owner: Json) -> int:
    """How often the owner has its sets: a LeaderWorkerSet as many times as it has groups."""
    count = mapping(owner.get("spec")).get("replicas", 1) if group.startswith("leaderworkerset") else 1
    return count if type(count) is int and count >= 0 else 1


def _pod(pods: PodSet, name: str, labels: Json, controller: Json) -> dict[str, Any]:
    metadata = mapping(pods.template.get("metadata"))
    named = {**metadata, "name": name, "labels": {**mapping(metadata.get("labels")), **labels}}
    return {"metadata": {**named, "ownerReferences": [controller]}, "spec": pods.template.get("spec")}
