"""The pods that controllers of Deployments, ReplicaSets, StatefulSets, Jobs, JobSets, LeaderWorkerSets,
Kubeflow and Ray would create for a manifest, with the labels by which their gangs are known.

A TrainJob is read as in github.com/kubeflow/trainer v2.3.0: ``numNodes`` pods of one replicated Job, with
``resourcesPerNode``; all else is in its runtime, another object.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from timekeeper.core.gang_owners import OWNERS, PodSet, pod_sets
from timekeeper.core.json_values import Json, mapping

_TRAIN_JOB = "trainer.kubeflow.org", "TrainJob"
_APPS = "apps"  # of kinds whose pods do not start together
GROUPS = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet"), _APPS),
    **{kind: owner.group for owner in OWNERS for kind in owner.kinds},
    _TRAIN_JOB[1]: _TRAIN_JOB[0],
}
_LABELS = {
    "jobset.x-k8s.io": "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.x-k8s.io": "leaderworkerset.sigs.k8s.io/name",
    "kubeflow.org": "training.kubeflow.org/job-name",
    "ray.io": "ray.io/cluster",
}
_GROUP_INDEX, _WORKER_INDEX = (f"leaderworkerset.sigs.k8s.io/{each}-index" for each in ("group", "worker"))


def is_owner(document: Json) -> bool:
    """Whether the object is of a kind of `GROUPS`, of this kind's API group."""
    group, kind = _kind(document)
    return GROUPS.get(kind) == group


def may_own_gang(document: Json) -> bool:
    """Whether pods of the owner may start together."""
    return _kind(document)[0] != _APPS


def as_started(owner: Json) -> tuple[Json, str]:
    """The object whose controller creates the owner's pods: itself, or the one that its own controller makes
    of it; and a sentence on what of these pods its manifest does not say, or ""."""
    spec = mapping(owner.get("spec"))
    if _kind(owner) == _TRAIN_JOB:
        kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
        return {**kind, "metadata": {"name": _name(owner)}, "spec": _jobset_spec(spec)}, _unknown(owner)
    return owner, ""


def owned_pods(owner: Json, most: int) -> Iterator[dict[str, Any]]:
    """The pods of an owner whose controller creates pods, at most ``most``."""
    (group, kind), name = _kind(owner), _name(owner)
    sets = _replicas(owner) if group == _APPS else pod_sets(group, kind, owner)
    controller = {"kind": kind, "name": name, "controller": True}
    left = most
    for index in range(min(left, _groups(group, owner)) if sets else 0):
        numbers = count()
        for place, each in enumerate(sets):
            for at in range(min(each.count, left)):
                left -= 1
                of = name if kind == "Job" or group == _APPS else f"{name}-{index}-{place}"
                labels = {} if each.is_nameless else _labels(group, name, index, next(numbers))
                yield _pod(each, f"{of}-{at}", labels, controller)


def _replicas(owner: Json) -> tuple[PodSet, ...]:
    spec = mapping(owner.get("spec"))
    count = spec.get("replicas", 1)
    count = count if type(count) is int and count >= 0 else 1
    return (PodSet(("spec", "template"), mapping(spec.get("template")), count, count),)


def _labels(group: str, name: str, index: int, number: int) -> dict[str, str]:
    """Those by which the gang of a pod is known: the pod of this number in the owner's group ``index``."""
    labels = {_LABELS[group]: name} if group in _LABELS else {}
    of_group = {_GROUP_INDEX: str(index), _WORKER_INDEX: str(number)}
    return labels | of_group if group.startswith("leaderworkerset") else labels


def _kind(document: Json) -> tuple[str, str]:
    return str(document.get("apiVersion")).partition("/")[0], str(document.get("kind"))


def _name(owner: Json) -> str:
    return str(mapping(owner.get("metadata")).get("name"))


def _jobset_spec(spec: Json) -> Json:
    """Without a job where the manifest does not say what its pods request."""
    trainer = mapping(spec.get("trainer"))
    resources = mapping(trainer.get("resourcesPerNode"))
    container = {"name": "node", "image": trainer.get("image") or "of-the-runtime", "resources": resources}
    count = trainer.get("numNodes", 1)
    job = {"parallelism": count, "completions": count, "template": {"spec": {"containers": [container]}}}
    return {"replicatedJobs": [{"name": "node", "template": {"spec": job}}] if resources else []}


def _unknown(owner: Json) -> str:
    spec = mapping(owner.get("spec"))
    trainer, runtime = mapping(spec.get("trainer")), mapping(spec.get("runtimeRef")).get("name")
    of = f"of TrainJob {_name(owner)} the runtime {runtime} is not read"
    if not mapping(trainer.get("resourcesPerNode")):
        return f"{of}, and spec.trainer.resourcesPerNode is absent: what its pods request is not known"
    count = "" if "numNodes" in trainer else ", and spec.trainer.numNodes is absent: one node is assumed"
    return (
        f"{of}{count}: other requests, node selectors, annotations and priority of its pods, and its"
        " initializers and launchers, are not known"
    )


def _groups(group: str, owner: Json) -> int:
    """How often the owner has its sets: a LeaderWorkerSet as many times as it has groups."""
    number = mapping(owner.get("spec")).get("replicas", 1) if group.startswith("leaderworkerset") else 1
    return number if type(number) is int and number >= 0 else 1


def _pod(pods: PodSet, name: str, labels: Json, controller: Json) -> dict[str, Any]:
    metadata = mapping(pods.template.get("metadata"))
    named = {**metadata, "name": name, "labels": {**mapping(metadata.get("labels")), **labels}}
    return {"metadata": {**named, "ownerReferences": [controller]}, "spec": pods.template.get("spec")}
