"""CPU and memory: what a pod requests of its node, and what a node has for each of its cards."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from timekeeper.core.dialects.moments import peak
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import thousandths
from timekeeper.core.values import MAX_AMOUNT

CPU, MEMORY = "cpu", "memory"


@dataclass(frozen=True, slots=True)
class HostAmount:
    """CPU in thousandths of a core, and memory in bytes."""

    cpu_milli: int = 0
    memory_bytes: int = 0


NO_HOST = HostAmount()

_INFEASIBLE = "Infeasible"
_PENDING_TYPE = "PodResizePending"
_STATUSES = ("initContainerStatuses", "containerStatuses")
_OF_STATUS = ("resources", "allocatedResources")  # what is read of a status of a container or a pod


def requested(pod: Json) -> HostAmount:
    """The pod's request as kube-scheduler counts it (`requested_milli`)."""
    return _amount(requested_milli(pod, CPU), -(-requested_milli(pod, MEMORY) // 1000))


def allocatable(node: Json) -> HostAmount:
    """What all pods of a Node object together may request; 0 where it does not say so."""
    there = mapping(mapping(node.get("status")).get("allocatable"))
    return HostAmount(_milli(there, CPU), _milli(there, MEMORY) // 1000)


@lru_cache(maxsize=4096)
def _amount(cpu_milli: int, memory_bytes: int) -> HostAmount:
    """One value for all pods with equal requests, of which there are a few kinds."""
    return HostAmount(min(cpu_milli, MAX_AMOUNT), min(memory_bytes, MAX_AMOUNT))


def requested_milli(pod: Json, resource: str) -> int:
    """The pod's request of a resource in thousandths: the greater of all containers and sidecars together,
    and of each init container with the sidecars started before it; or the pod-level request. The overhead of
    the runtime class is added.

    While a container or the pod is resized, the greatest of requested, allocated and actual resources counts;
    if its node can never grant the resize, the greater of allocated and actual. An absent request is the
    limit, as the API server writes it into pods.

    Source: k8s.io/component-helpers/resource, ``PodRequests`` with the options of ``NodeResourcesFit``.
    """
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    overhead = _milli(mapping(spec.get("overhead")), resource)
    whole, most = (mapping(mapping(spec.get("resources")).get(part)) for part in ("requests", "limits"))
    is_unmet = _waits_for(status) == _INFEASIBLE
    if resource in whole:
        had = max(0, (_had_of(status, resource) or 0) - overhead)  # the kubelet adds the overhead here
        return (had if had and is_unmet else max(_milli(whole, resource), had)) + overhead
    return (peak(_containers(spec, status, resource, is_unmet)) or _milli(most, resource)) + overhead


def host_part(pod: Json) -> Json:
    """The part of a pod that `requested_milli` reads beside its containers. Two pods with equal parts and
    containers request the same."""
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    pending = _waits_for(status)
    said: dict[str, Any] = {key: status[key] for key in _OF_STATUS if key in status}
    for field in _STATUSES:
        given = [each for each in sequence(status.get(field)) if mapping(each).get("resources") is not None]
        if given:
            said[field] = [{key: each[key] for key in ("name", *_OF_STATUS) if key in each} for each in given]
    if pending is not None:
        said["conditions"] = [{"type": _PENDING_TYPE, "reason": pending}]
    return {"spec": {key: spec[key] for key in ("overhead", "resources") if key in spec}, "status": said}


def _containers(spec: Json, status: Json, resource: str, is_unmet: bool) -> Iterator[tuple[bool, int]]:
    """(ends before the others start, request) of each container, in the order of their start."""
    had = _had(status, resource)
    for field in ("initContainers", "containers"):
        for each in sequence(spec.get(field)):
            raw = mapping(each)
            runs_on = field == "containers" or raw.get("restartPolicy") == "Always"
            asked = container_milli(raw, resource)
            has = had.get(str(raw.get("name", ""))) if had and runs_on else None
            if has is not None:
                asked = has if is_unmet else max(asked, has)
            yield not runs_on, asked


def container_milli(container: Json, resource: str) -> int:
    """One container's request in thousandths."""
    resources = mapping(container.get("resources"))
    asked = mapping(resources.get("requests"))
    return _milli(asked if resource in asked else mapping(resources.get("limits")), resource)


def _had(status: Json, resource: str) -> dict[str, int]:
    """By container name the greater of actual and allocated amount, where the status reports it."""
    found = {}
    for field in _STATUSES:
        for each in sequence(status.get(field)):
            raw = mapping(each)
            amount = _had_of(raw, resource)
            if amount is not None:
                found[str(raw.get("name", ""))] = amount
    return found


def _had_of(status: Json, resource: str) -> int | None:
    """The greater of actual and allocated amount in a status of container or pod; None: it has none."""
    if status.get("resources") is None:
        return None
    has = _milli(mapping(mapping(status.get("resources")).get("requests")), resource)
    return max(has, _milli(mapping(status.get("allocatedResources")), resource))


def _waits_for(status: Json) -> object:
    """Why the kubelet has not allocated a resize of the pod; None: there is none."""
    conditions = map(mapping, sequence(status.get("conditions")))
    pending = (each.get("reason") for each in conditions if each.get("type") == _PENDING_TYPE)
    return next(pending, None)


def _milli(amounts: Json, resource: str) -> int:
    """0 if it is absent, unreadable or negative."""
    return max(0, thousandths(amounts.get(resource)) or 0) if resource in amounts else 0


@dataclass(frozen=True, slots=True)
class CardHost:
    """How much CPU and memory there is for each card on the nodes with the least of it, and the memory of the
    cluster's smallest card: `rating.held.card_host`. ``most_card_mib``: of the largest on nodes for
    fractions; 0 while one of these does not advertise `names.CARD_MILLIONTHS`."""

    cpu_milli: int
    memory_bytes: int
    least_card_mib: int
    most_card_mib: int = 0
