"""What a GPU pod may request where Bursar places no pods (`placement: off`): what its own scheduler and the
node plugin give out alone."""

from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.admission.pods import annotations_of, labels_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.dialects import BY_NAME, GPU_RESOURCE_PATTERN, Dialect, replaced_schedulers
from timekeeper.core.json_values import Json
from timekeeper.core.request.request import containers
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown

_SWITCH = "or an administrator sets placement: on, in the namespace's budget entry or in _settings"


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
