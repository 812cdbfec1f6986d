"""Where a GPU pod may run and how long it stays: node, scheduler, priority, grace period, constraints;
and what it may request where Bursar places no pods (`placement: off`): what its own scheduler and the node
plugin give out alone."""

import re
from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.admission.pods import annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import (
    DEFAULT_SCHEDULERS,
    AdmissionPolicy,
    is_above_budget_class,
    mark_of_its_scheduler,
    may_name_its_node,
    scheduler_of,
)
from timekeeper.core.admission.rules.size import size_violations
from timekeeper.core.dialects import (
    BY_NAME,
    DIALECTS,
    GPU_RESOURCE_PATTERN,
    Dialect,
    gas,
    nano,
    replaced_schedulers,
    tencent,
)
from timekeeper.core.json_values import Json
from timekeeper.core.name_lists import excess, listed
from timekeeper.core.request.request import containers
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown

_SWITCH = "or an administrator sets placement: on, in the namespace's budget entry or in _settings"

LEGACY_SIDECAR = "gpu-sidecar"

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+/()-]{0,62}", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9][A-Za-z0-9/-]{0,100}", re.ASCII)
_LISTS = (
    (names.MODELS, _MODEL, "a model's name from the inventory, or words of it", "H100,A100"),
    (names.EXCLUDE_MODELS, _MODEL, "a model's name from the inventory, or words of it", "T4"),
    (names.UUIDS, _UUID, "UUIDs of cards", "GPU-5a3c0e8f-0000-0000-0000-000000000000"),
)
_LISTED = frozenset(name for name, *_ in _LISTS)


def unplaced_violations(
    pod: Json, request: GPURequest | None, policy: AdmissionPolicy
) -> Iterator[Violation]:
    """A violation for each field that only Bursar's scheduler serves. ``request`` is None where the request
    is not valid."""
    scheduler = pod["spec"].get("schedulerName") or ""
    if scheduler == policy.scheduler_name:
        yield _violation(
            "spec.schedulerName",
            scheduler,
            f"placement is off here, so {scheduler} places no pod",
            "another scheduler, or no schedulerName",
            "schedulerName: default-scheduler",
        )
    annotations = annotations_of(pod)
    for name in names.USER_ANNOTATIONS:
        if name in annotations:
            yield _violation(
                f"metadata.annotations[{name}]",
                annotations[name],
                "placement is off here, and only Bursar's scheduler reads this",
                "a nodeSelector",
                "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}",
            )
    if request is not None and not _is_of_others(request, scheduler):
        yield from _parts(pod, request)


def _is_of_others(request: GPURequest, scheduler: str) -> bool:
    """Whether another system gives out the cards: its scheduler places the pod, or any does."""
    speaks = BY_NAME[request.dialect]
    if speaks.placed_by_others and not speaks.schedulers:
        return True
    return scheduler in (*speaks.schedulers, *replaced_schedulers(request.dialect))


def _parts(pod: Json, request: GPURequest) -> Iterator[Violation]:
    speaks = BY_NAME[request.dialect]
    if speaks.placed_by_others:
        yield _without_own_scheduler(pod, speaks)
        return
    for container in containers(pod):
        for name, amount in container.limits.items():
            if GPU_RESOURCE_PATTERN.match(name) and not _is_by_plugin(name, speaks.by_plugin):
                yield _served_by_bursar(f"{container.path}.resources.limits[{name}]", name, amount)
    for field, given, known in (
        ("annotations", annotations_of(pod), speaks.annotations),
        ("labels", labels_of(pod), speaks.labels),
    ):
        for name in known:
            if name in given:
                yield _served_by_bursar(f"metadata.{field}[{name}]", name, given[name])


def _without_own_scheduler(pod: Json, speaks: Dialect) -> Violation:
    return Violation(
        "own-scheduler",
        "spec.schedulerName",
        shown(pod["spec"].get("schedulerName") or ""),
        f"only {' or '.join(speaks.schedulers)} places pods with {speaks.first_name}",
        " or ".join(speaks.schedulers),
        f"schedulerName: {speaks.schedulers[0]}",
    )


def _is_by_plugin(resource: str, them: tuple[str, ...]) -> bool:
    return any(resource.startswith(each) if each[-1] == "-" else resource == each for each in them)


def _served_by_bursar(path: str, name: str, amount: object) -> Violation:
    return _violation(
        path,
        str(amount),
        f"placement is off here, and only Bursar's scheduler serves {name}",
        "whole cards of the node's device plugin",
        'nvidia.com/gpu: "1"',
    )


def _violation(path: str, got: str, problem: str, allowed: str, example: str) -> Violation:
    return Violation("placement-off", path, shown(got), problem, f"{allowed}; {_SWITCH}", example)


def placement_violations(
    pod: Json, request: GPURequest | None, policy: AdmissionPolicy
) -> Iterator[Violation]:
    """For a pod with a GPU request: what would prevent its placement, or its end in time. ``request`` is None
    where the request is not valid."""
    spec = pod["spec"]
    if not may_name_its_node(request, policy):
        yield from _by_hand(spec)
    yield from _init_containers(spec)
    if policy.places:
        yield from _constraints(annotations_of(pod))
        yield from _scheduler(pod, request, policy)
    else:
        yield from unplaced_violations(pod, request, policy)
    yield from _priority_class(spec, policy)
    yield from _grace_period(spec, policy)
    yield from _legacy_sidecar(spec)
    yield from size_violations(pod, request, is_bound=policy.places)


def _by_hand(spec: Json) -> Iterator[Violation]:
    node = spec.get("nodeName")
    if node:
        yield Violation(
            "node-name",
            "spec.nodeName",
            shown(node),
            "a GPU pod that names its node bypasses the scheduler that assigns cards",
            "spec.nodeSelector or affinity",
            "spec.nodeSelector: {kubernetes.io/hostname: node-a}",
        )


def _constraints(annotations: Json) -> Iterator[Violation]:
    if _LISTED.isdisjoint(annotations):
        return
    if any(excess(annotations, name) for name in _LISTED):
        return  # the request itself is refused
    for name, pattern, allowed, example in _LISTS:
        for each in listed(annotations, name):
            if not pattern.fullmatch(each):
                problem = "no inventory can contain this name"
                path = f"metadata.annotations[{name}]"
                yield Violation("malformed-name", path, shown(each), problem, allowed, f"{name}: {example}")
    models = listed(annotations, names.MODELS)
    excluded = {each.casefold() for each in listed(annotations, names.EXCLUDE_MODELS)}
    if models and all(each.casefold() in excluded for each in models):
        yield Violation(
            "contradicting-constraint",
            f"metadata.annotations[{names.EXCLUDE_MODELS}]",
            shown(annotations[names.EXCLUDE_MODELS]),
            f"it excludes every model that {names.MODELS} allows",
            "one of the two annotations, or a model that only the first one names",
            f"removing {names.EXCLUDE_MODELS}",
        )


# by resource or prefix: node plugins that count only the pod's ordinary containers
_ORDINARY_ONLY = {
    **dict.fromkeys(tencent.DIALECT.resources, "gpu-manager"),
    gas.DIALECT.prefix: "Intel's GPU plugin",
}
# those that look for a container in what the kubelet lists, where init containers are not, but for sidecars
_LISTED_ONLY = {name: "nano-gpu's agent" for each in nano.DIALECTS for name in each.resources}


def _init_containers(spec: Json) -> Iterator[Violation]:
    for index, container in enumerate(sequence_of(spec.get("initContainers"))):
        limits = asked_limits(container)
        unlisted = {} if container.get("restartPolicy") == "Always" else _LISTED_ONLY
        for resource in limits:
            system = _ORDINARY_ONLY.get(resource) or _ORDINARY_ONLY.get(f"{resource.partition('/')[0]}/")
            system = system or unlisted.get(resource)
            if system:
                yield Violation(
                    "init-container",
                    f"spec.initContainers[{index}].resources.limits[{resource}]",
                    shown(limits[resource]),
                    f"{system} gives cards to ordinary containers only",
                    "the limit in spec.containers, or a dialect that supports init containers",
                    f'{names.GPU_PERCENT}: "50"',
                )


def _scheduler(pod: Json, request: GPURequest | None, policy: AdmissionPolicy) -> Iterator[Violation]:
    scheduler = pod["spec"].get("schedulerName") or ""
    if request is not None and BY_NAME[request.dialect].placed_by_others:
        yield from _own_scheduler(scheduler, request.dialect, policy)
        return
    if request is not None and scheduler_of(request.dialect, scheduler, policy) == scheduler:
        return
    if request is None and (_names_request_of(scheduler, pod) or _is_of_other_devices(pod)):
        return
    mark = mark_of_its_scheduler(pod, policy)
    if mark:
        yield _started_by_another(scheduler, mark, request)
        return
    replaced = replaced_schedulers(request.dialect) if request is not None else ()
    if scheduler not in (*DEFAULT_SCHEDULERS, policy.scheduler_name, *replaced):
        yield Violation(
            "foreign-scheduler",
            "spec.schedulerName",
            shown(scheduler),
            f"only {policy.scheduler_name} assigns cards",
            f"{policy.scheduler_name}, or no schedulerName",
            f"schedulerName: {policy.scheduler_name}",
        )


def _started_by_another(scheduler: str, mark: str, request: GPURequest | None) -> Violation:
    """Of a pod of another system's gang, which Bursar would start by itself."""
    may_stay = request is not None and scheduler in BY_NAME[request.dialect].schedulers
    where = f"where the webhook's flag --other-schedulers names {scheduler}"
    return Violation(
        "own-scheduler",
        "spec.schedulerName",
        shown(scheduler),
        f"{mark} leaves the start of these pods to {scheduler}, and Bursar would start each by itself",
        f"{'the pod as it is' if may_stay else 'whole cards in nvidia.com/gpu'}, {where}; or the pod without"
        f" the mark, and {names.GANG_SIZE}",
        f"--other-schedulers={scheduler}",
    )


def _names_request_of(scheduler: str, pod: Json) -> bool:
    """True if a pod whose request cannot be read has a resource, annotation or label of this scheduler's
    system."""
    words = {*annotations_of(pod), *labels_of(pod)}
    for container in containers(pod):
        words.update(container.limits)
    theirs = (each for each in DIALECTS if scheduler in (*each.schedulers, *replaced_schedulers(each.name)))
    return any(not words.isdisjoint((*each.resources, *each.annotations, *each.labels)) for each in theirs)


def _is_of_other_devices(pod: Json) -> bool:
    """Whether all that it requests are accelerators of no dialect, which have schedulers of their own."""
    amounts = {name for container in containers(pod) for name in container.limits}
    return any(map(accelerator_of, amounts)) and not any(map(GPU_RESOURCE_PATTERN.match, amounts))


def _own_scheduler(scheduler: str, dialect: str, policy: AdmissionPolicy) -> Iterator[Violation]:
    """For a pod that only the scheduler of its own system places."""
    speaks = BY_NAME[dialect]
    wanted = scheduler_of(dialect, scheduler, policy)
    if not speaks.schedulers or (wanted in speaks.schedulers and wanted in policy.other_schedulers):
        return
    places = " or ".join(speaks.schedulers)
    problem = f"only {places} places pods with {speaks.first_name}"
    if wanted in speaks.schedulers:
        problem = f"the webhook's flag --other-schedulers does not name {wanted}, which places these pods"
    yield Violation(
        "own-scheduler",
        "spec.schedulerName",
        shown(scheduler),
        problem,
        f"{places}, where --other-schedulers names it; or {names.GPU_PERCENT}",
        f'{names.GPU_PERCENT}: "50" in resources.limits',
    )


def _priority_class(spec: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    if is_above_budget_class(spec, policy):
        most = policy.in_budget
        yield Violation(
            "priority-class",
            "spec.priorityClassName",
            f"{shown(spec['priorityClassName'])} of value {spec['priority']}",
            "its value is above the class of pods in budget",
            f"{most.name}, a class with a value of at most {most.value}, or none",
            f"priorityClassName: {most.name}",
        )


def _grace_period(spec: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    seconds = spec.get("terminationGracePeriodSeconds")
    if seconds is not None and seconds > policy.max_grace_s:
        yield Violation(
            "grace-period",
            "spec.terminationGracePeriodSeconds",
            shown(str(seconds)),
            "a GPU pod holds its cards during its grace period, and this one is too long",
            f"at most {policy.max_grace_s} seconds",
            "terminationGracePeriodSeconds: 30",
        )


def _legacy_sidecar(spec: Json) -> Iterator[Violation]:
    for index, container in enumerate(sequence_of(spec.get("containers"))):
        if container["name"] == LEGACY_SIDECAR:
            yield Violation(
                "legacy-sidecar",
                f"spec.containers[{index}]",
                shown(LEGACY_SIDECAR),
                "this container of kubernetes-gpusharing reports to a Service that no longer exists",
                "the pod without it: Bursar injects its own sidecar",
                "removing the container",
            )
