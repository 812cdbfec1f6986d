"""What pods request of resources that are neither CPU nor GPUs (memory, ephemeral storage, huge pages, other
devices, and the place of a pod), and what a node has of them in all. A node that has less than a pod requests
never runs it.
"""

from collections import Counter
from functools import lru_cache

from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import LARGEST, thousandths
from timekeeper.core.request.host import is_resize_infeasible

Others = tuple[tuple[str, int], ...]  # by resource, in thousandths of its unit

PODS = "pods"  # how many pods a node takes


def others(amounts: Json) -> dict[str, int]:
    """The other resources of a resource list, in thousandths; those that cannot be read are left out."""
    found = {
        name: thousandths(amount) or 0
        for name, amount in amounts.items()
        if name != "cpu" and not GPU_RESOURCE_PATTERN.match(name)
    }
    return {name: amount for name, amount in found.items() if amount > 0}


def requested_others(pod: Json) -> Others:
    """For each other resource the pod's request as kube-scheduler counts it: the greater of all containers
    and sidecars together, and of each init container with the sidecars started before it; or the pod-level
    request. The overhead of the runtime class is added. While a container is resized it counts as in
    `cpu.requested_milli`. Each pod takes one of ``pods``.

    Amounts beyond an int64 overflow in kube-scheduler. They count whole while the pod waits; of a bound pod
    they count as nothing, for it was bound only because of the overflow.

    Source: k8s.io/component-helpers/resource, ``PodRequests``.
    """
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    had = _had(status)
    infeasible = bool(had) and is_resize_infeasible(status)
    together: Counter[str] = Counter()
    total: dict[str, int] = {}
    for field in ("initContainers", "containers"):
        for raw in map(mapping, sequence(spec.get(field))):
            amounts = _requests(raw)
            runs_on = field == "containers" or raw.get("restartPolicy") == "Always"
            held = had.get(str(raw.get("name", ""))) if had and runs_on else None
            if held is not None:
                amounts = held if infeasible else _greater(amounts, held)
            for name, amount in amounts.items():
                total[name] = max(total.get(name, 0), together[name] + amount)
            if runs_on:
                together.update(amounts)
    total |= _requests(spec)
    for name, amount in others(mapping(spec.get("overhead"))).items():
        total[name] = total.get(name, 0) + amount
    if spec.get("nodeName"):
        total = {name: amount for name, amount in total.items() if amount <= 1000 * LARGEST}
    return _kept(tuple(sorted((total | {PODS: 1000}).items())))


@lru_cache(maxsize=4096)
def _kept(found: Others) -> Others:
    """The same object for equal amounts: most pods are made from few templates."""
    return found


def memory_bytes(amounts: Others) -> int:
    """The node's own memory among them, in bytes."""
    return dict(amounts).get("memory", 0) // 1000


def _requests(raw: Json) -> dict[str, int]:
    return others(mapping(mapping(raw.get("resources")).get("requests")))


def _had(status: Json) -> dict[str, dict[str, int]]:
    """By container name the greater of actual and allocated amounts, where the status reports them."""
    found = {}
    for field in ("initContainerStatuses", "containerStatuses"):
        for raw in map(mapping, sequence(status.get(field))):
            if raw.get("resources") is not None:
                allocated = others(mapping(raw.get("allocatedResources")))
                found[str(raw.get("name", ""))] = _greater(_requests(raw), allocated)
    return found


def _greater(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one | other}


def exceed(asked: Others, total: Others) -> bool:
    """True if more is requested of any resource than there is in all. A node that does not say how many pods
    it takes has no limit of them."""
    there = dict(total)
    return any(amount > there.get(name, amount if name == PODS else 0) for name, amount in asked)
