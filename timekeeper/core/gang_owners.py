"""How many pods an owner's controller creates together, by the owner's own fields: the table `OWNERS`.

Sources: the API types of Kubernetes 1.36 (batch/v1), sigs.k8s.io/jobset v0.11.0, sigs.k8s.io/lws v0.8.0,
github.com/kubeflow/training-operator v1.8.1, github.com/kubeflow/mpi-operator v0.6.0 and
github.com/ray-project/kuberay/ray-operator v1.7.0. A TrainJob is started as a JobSet, so it has no row. Of a
RayJob its own controller makes a RayCluster, whose templates say by then what was written into the RayJob.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.core import names
from timekeeper.core.gangs import (
    EXAMPLE_LABEL,
    MAX_SIZE,
    RULE,
    foreign_mark,
    least_said,
    marker_of,
    size_said,
    topologies_said,
)
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.violation import Violation, shown

Path = tuple[str | int, ...]
_STATEFUL_SET = ("apps", "StatefulSet")
_VERSION = re.compile(r"v[0-9a-z]{1,20}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PodSet:
    """``count`` pods of the template at ``path``, of which ``least`` suffice. ``is_late``: they are created
    only after others of the owner run, which may have the same template, ``is_last``: after these have ended.
    ``is_refilled``: others follow those that end; ``is_nameless``: they do not have the name of the others'
    gang."""

    path: Path
    template: Json
    count: int
    least: int
    is_late: bool = False
    is_refilled: bool = False
    is_last: bool = False
    is_nameless: bool = False

    @property
    def follows(self) -> bool:
        """Whether its pods are created while others of the owner run, and stay."""
        return self.is_late and not (self.is_last or self.is_refilled)

    @property
    def at(self) -> str:
        """The template's path, as errors name it."""
        return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in self.path)[1:]


@dataclass(frozen=True, slots=True)
class Owner:
    """Kinds whose pods may start together; `gangs.MARKERS` says by what these pods are known."""

    group: str
    kinds: tuple[str, ...]
    sets: Callable[[Json], Iterator[PodSet]]


@dataclass(frozen=True, slots=True)
class GangOfOwner:
    """The templates of the pods that start together, and how many these are; ``late``: those of the pods that
    follow while they run; ``beside``: those of pods without GPUs that wait for their start."""

    sets: tuple[PodSet, ...]
    size: int
    minimum: int
    late: tuple[PodSet, ...] = ()
    beside: tuple[PodSet, ...] = ()


def _of_job(owner: Json) -> Iterator[PodSet]:
    spec = mapping(owner.get("spec"))
    count, refilled = _pods_of_job(spec)
    yield from _set(spec, ("spec", "template"), count, is_refilled=refilled)


def _pods_of_job(spec: Json) -> tuple[int, bool]:
    """How many pods run at once, and whether others follow these."""
    parallelism, completions = _count(spec.get("parallelism")), spec.get("completions")
    if completions is None:
        return parallelism, False
    return min(parallelism, _count(completions)), _count(completions) > parallelism


def pods_left(job: Json) -> tuple[int, int]:
    """How many pods the Job runs at once at first, and from now on: no others follow those that succeeded,
    and indexes that failed for good. Source: ``manageJob`` of the Job controller."""
    spec, status = mapping(job.get("spec")), mapping(job.get("status"))
    at_once, _ = _pods_of_job(spec)
    succeeded, completions = _count(status.get("succeeded"), 0), spec.get("completions")
    if completions is None:  # after the first success it makes none
        return at_once, min(at_once, _count(status.get("active"), 0)) if succeeded else at_once
    left = _count(completions) - succeeded - _indexes(status.get("failedIndexes"))
    return at_once, min(at_once, max(0, left))


def _indexes(text: object) -> int:
    """How many ``1,3-5`` are."""
    ranges = _RANGE.findall(text) if isinstance(text, str) else ()
    return sum(max(0, int(last or first) - int(first) + 1) for first, last in ranges)


def _of_jobset(owner: Json) -> Iterator[PodSet]:
    spec = mapping(owner.get("spec"))
    in_order = mapping(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    for index, each in enumerate(sequence(spec.get("replicatedJobs"))):
        job = mapping(mapping(mapping(each).get("template")).get("spec"))
        count, refilled = _pods_of_job(job)
        others = [mapping(other) for other in sequence(mapping(each).get("dependsOn"))]
        is_last = any(other.get("status") == "Complete" for other in others)
        is_late = bool(others) or (in_order and index > 0)
        path = ("spec", "replicatedJobs", index, "template", "spec", "template")
        count *= _count(mapping(each).get("replicas"))
        yield from _set(job, path, count, is_late=is_late, is_refilled=refilled, is_last=is_last)


def _of_leader_worker_set(owner: Json) -> Iterator[PodSet]:
    """Of one group. Without a template of its own the leader has its workers'; `gangs.MARKERS` says by which
    label it is known."""
    spec = mapping(owner.get("spec"))
    group, at = mapping(spec.get("leaderWorkerTemplate")), ("spec", "leaderWorkerTemplate")
    annotations = annotations_of(owner)
    is_late = (
        spec.get("startupPolicy") == "LeaderReady"
        or "leaderworkerset.sigs.k8s.io/exclusive-topology" in annotations
    )
    size = _count(group.get("size"))
    if not group.get("leaderTemplate") and not is_late:
        yield from _set(group, (*at, "workerTemplate"), size)
        return
    leader = "leaderTemplate" if group.get("leaderTemplate") else "workerTemplate"
    yield from _set(group, (*at, leader), 1)
    yield from _set(group, (*at, "workerTemplate"), size - 1, is_late=is_late)


def _of_kubeflow(owner: Json) -> Iterator[PodSet]:
    spec = mapping(owner.get("spec"))
    least = mapping(spec.get("elasticPolicy")).get("minReplicas")
    waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    for field in (each for each in spec if each.endswith("ReplicaSpecs")):
        for kind, each in mapping(spec[field]).items():
            count = _count(mapping(each).get("replicas"))
            fewest = _count(least) if least is not None and kind == "Worker" else count
            is_late = waits and kind == "Launcher"
            path = ("spec", field, kind, "template")
            yield from _set(mapping(each), path, count, min(fewest, count), is_late=is_late)


def _of_ray_cluster(owner: Json) -> Iterator[PodSet]:
    yield from pods_of_ray_cluster(mapping(owner.get("spec")), ("spec",))


def _of_ray_job(owner: Json) -> Iterator[PodSet]:
    """Of its own cluster, and of the Job by which it submits its work once this is ready."""
    spec = mapping(owner.get("spec"))
    if spec.get("clusterSelector"):
        return
    yield from pods_of_ray_cluster(mapping(spec.get("rayClusterSpec")), ("spec", "rayClusterSpec"))
    if spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        given = {"submitterPodTemplate": spec.get("submitterPodTemplate") or _SUBMITTER}
        yield from _set(given, ("spec", "submitterPodTemplate"), 1, is_late=True, is_nameless=True)


def pods_of_ray_cluster(cluster: Json, at: Path) -> Iterator[PodSet]:
    """Of a cluster that is not scaled automatically, as it is once it is resumed. ``at``: where its spec is.
    KubeRay obeys a group's bounds whatever its ``replicas`` are, and makes no pod of a suspended group."""
    scales = cluster.get("enableInTreeAutoscaling") is True
    yield from _set(mapping(cluster.get("headGroupSpec")), (*at, "headGroupSpec", "template"), 1)
    for index, each in enumerate(sequence(cluster.get("workerGroupSpecs"))):
        group = mapping(each)
        least, most = _count(group.get("minReplicas"), 0), _count(group.get("maxReplicas"), MAX_SIZE + 1)
        count = min(max(_count(group.get("replicas"), 0), least), most) * _count(group.get("numOfHosts"))
        count = 0 if group.get("suspend") is True else count
        yield from _set(group, (*at, "workerGroupSpecs", index, "template"), count, is_refilled=scales)


# of a RayJob that has no submitterPodTemplate
_SUBMITS: Json = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
_SUBMITTER: Json = {"spec": {"containers": [{"name": "ray-job-submitter", "resources": _SUBMITS}]}}
_KUBEFLOW = ("PyTorch", "TF", "XGBoost", "Paddle", "JAX", "MPI")
OWNERS = (
    Owner("batch", ("Job",), _of_job),
    Owner("jobset.x-k8s.io", ("JobSet",), _of_jobset),
    Owner("leaderworkerset.x-k8s.io", ("LeaderWorkerSet",), _of_leader_worker_set),
    Owner("kubeflow.org", tuple(f"{each}Job" for each in _KUBEFLOW), _of_kubeflow),
    Owner("ray.io", ("RayCluster",), _of_ray_cluster),
    Owner("ray.io", ("RayJob",), _of_ray_job),
)


def pod_sets(group: str, kind: str, owner: Json) -> list[PodSet]:
    """The sets of pods that this object's controller creates; none for a kind that is not in the table."""
    rows = (each for each in OWNERS if each.group == group and kind in each.kinds)
    return [found for row in rows for found in row.sets(owner)]


def is_owner(api_version: str, kind: str) -> bool:
    """Whether an owner of this kind says how many pods it makes."""
    group, _, version = api_version.partition("/")
    is_known = (group, kind) == _STATEFUL_SET or any(
        row.group == group and kind in row.kinds for row in OWNERS
    )
    return is_known and _VERSION.fullmatch(version) is not None


def pods_at_once(group: str, kind: str, owner: Json, counts: Callable[[Json], bool]) -> int:
    """How many pods the owner makes before others of it run, of the templates that count."""
    if (group, kind) == _STATEFUL_SET:
        return _count(mapping(owner.get("spec")).get("replicas"))
    sets = pod_sets(group, kind, owner)
    return sum(pods.count for pods in sets if not pods.is_late and counts(pods.template))


def gang_of_owner(sets: Sequence[PodSet], owner: Json, others: Sequence[PodSet] = ()) -> GangOfOwner | None:
    """The gang of these sets, each of pods with a GPU request. None: they are no gang, or another system's,
    or their user says which is theirs. Where all of them are late, those of one set come together.
    ``others``: the sets of pods without GPUs."""
    late = tuple(each for each in sets if each.is_late)
    together = tuple(each for each in sets if not each.is_late)
    if not together and len(late) == 1:
        together = late
    # no pod could take cards that are kept without its gang's name
    late = tuple(each for each in late if each.follows and not each.is_nameless and each not in together)
    size = sum(each.count for each in together)
    beside = those_beside(together, others)
    if not (0 if late or beside else 1) < size <= MAX_SIZE or any(each.is_refilled for each in together):
        return None
    if foreign_mark(owner) or any(foreign_mark(each.template) or _is_marked(each.template) for each in sets):
        return None
    return GangOfOwner(together, size, sum(each.least for each in together), late, beside)


def those_beside(together: Sequence[PodSet], others: Sequence[PodSet]) -> tuple[PodSet, ...]:
    """The sets of pods without GPUs that are created at once with all of these, which need none of them to
    come; none of those that name another gang."""
    if not together or any(pods.is_late for pods in together):
        return ()
    return tuple(pods for pods in others if not pods.is_late and not marker_of(pods.template))


def contradictions(kind: str, sets: Sequence[PodSet], owner: Json) -> Iterator[Violation]:
    """What the templates' own annotations and the owner's fields say differently. ``sets``: as there."""
    total, foreign = sum(each.count for each in sets), foreign_mark(owner)
    first = sum(each.count for each in sets if not each.is_late) or total
    templates = _by_template(sets)
    yield from _apart(templates)
    for each in templates:
        said = size_said(each.template)
        if said is None or each.is_late:
            continue  # pods that follow say the size of those before them
        path = f"{each.at}.metadata.annotations[{names.GANG_SIZE}]"
        if foreign:
            problem = f"{foreign} of this {kind} leaves the start of its pods to another system"
            yield Violation(RULE, path, "", problem, "this annotation, or the other system's", "8")
        elif said < each.count:
            problem = f"this {kind} creates {each.count} pods of the template, which would start together"
            yield Violation(
                RULE, path, shown(str(said)), problem, f"{each.count} or more", str(max(total, each.count))
            )
        elif said > first and not marker_of(each.template):  # else other owners may have more of its pods
            others = " before its others" if first < total else ""
            problem = f"this {kind} creates {first} pods with GPUs{others}, so the gang would wait for ever"
            yield Violation(RULE, path, shown(str(said)), problem, f"{each.count} to {first}", str(first))


def _by_template(sets: Sequence[PodSet]) -> list[PodSet]:
    """One set for each template: the first, with all of its pods that start with these."""
    found: dict[Path, PodSet] = {}
    for each in sets:
        first = found.setdefault(each.path, each)
        if first is not each and not each.is_late:
            found[each.path] = replace(first, count=first.count + each.count)
    return list(found.values())


def _apart(sets: Sequence[PodSet]) -> Iterator[Violation]:
    """Templates of one gang that say different sizes or topologies, or a topology for pods in no gang."""
    first: dict[object, PodSet] = {}
    for each in sets:
        said = topologies_said(each.template)
        has_size = size_said(each.template) is not None
        if each.is_late and not has_size and said:
            problem = "pods of this template are created only after others run, and start one by one"
            yield _said(each, next(iter(said)), problem, "no annotation")
            continue
        gang = annotations_of(each.template).get(names.GANG), has_size, each.is_late
        other = first.setdefault(gang, each)
        ours, theirs = (
            {**annotations_of(pods.template), names.GANG_MINIMUM: str(least_said(pods.template))}
            for pods in (each, other)
        )
        of_one_size = size_said(each.template) == size_said(other.template)
        for name in (names.GANG_MINIMUM if of_one_size else names.GANG_SIZE, *names.GANG_TOPOLOGIES):
            if ours.get(name) != theirs.get(name):
                problem = f"{other.at} says {theirs.get(name) or 'none'}, and their pods start together"
                yield _said(each, name, problem, "one for all templates of a gang")


def waits_for_itself(stateful_set: Json) -> Iterator[Violation]:
    """Of a StatefulSet: its template says a gang, whose pods its controller creates one after another."""
    spec = mapping(stateful_set.get("spec"))
    template = mapping(spec.get("template"))
    policy = spec.get("podManagementPolicy") or "OrderedReady"
    can_be_whole = marker_of(template) and _count(spec.get("replicas")) <= 1  # others have the other pods
    if policy == "OrderedReady" and least_said(template) > 1 and not can_be_whole:
        problem = "each pod is created once the one before it is ready, so the gang would wait for itself"
        example = "podManagementPolicy: Parallel"
        yield Violation(RULE, "spec.podManagementPolicy", shown(policy), problem, "Parallel", example)


def _said(pods: PodSet, name: str, problem: str, allowed: str) -> Violation:
    said = annotations_of(pods.template).get(name)
    path, got = f"{pods.at}.metadata.annotations[{name}]", shown(str(said)) if said is not None else ""
    example = EXAMPLE_LABEL if name in names.GANG_TOPOLOGIES else "8"
    return Violation(RULE, path, got, problem, allowed, example)


def _is_marked(template: Json) -> bool:
    """Whether the user, or the owner's own owner, names a gang."""
    return size_said(template) is not None or marker_of(template) != ""


def _set(parent: Json, path: Path, count: int, least: int | None = None, **more: Any) -> Iterator[PodSet]:
    """The set of the template that is the path's last step in the parent."""
    template = mapping(parent.get(str(path[-1])))
    if count > 0 and mapping(template.get("spec")):
        yield PodSet(path, template, count, count if least is None else max(1, least), **more)


def _count(value: object, absent: int = 1) -> int:
    return value if type(value) is int and value >= 0 else absent
