"""CPU requests as kube-scheduler counts them, in thousandths of a core.

Source: k8s.io/component-helpers/resource, ``PodRequests`` with the options of ``NodeResourcesFit``.
"""

from collections.abc import Iterator

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import thousandths

# A million cores: more than any node has, so a larger request fits on no node either. Small enough that the
# 64-bit sums of `fragmentation` cannot overflow: at most 8,192 typical pods, times a CPU left of
# -2 x 10^9, times 1,000 thousandths, stay below 2 x 10^16.
MOST_MILLI = 10**9


def bounded(milli: int) -> int:
    """The CPU, limited to +-MOST_MILLI. A sum over many pods may exceed that."""
    return max(-MOST_MILLI, min(milli, MOST_MILLI))


def cpu_milli(amounts: Json) -> int:
    """The CPU in a resource list, limited to MOST_MILLI; 0 if it is absent or unreadable."""
    return bounded(max(0, thousandths(amounts.get("cpu")) or 0)) if "cpu" in amounts else 0


def requested_milli(pod: Json) -> int:
    """The pod's CPU request: the greater of all containers and sidecars together, and of each init container
    with the sidecars started before it; or the pod-level request. The overhead of the runtime class is
    added.

    While a container is resized, the greatest of requested, allocated and actual resources counts; if the
    resize is infeasible, the greater of allocated and actual. Limited to MOST_MILLI.

    A bound pod that requests MOST_MILLI counts as 0: kube-scheduler binds it only because its own 64-bit sum
    has overflowed, and takes nothing from the node for it.
    """
    milli = _sum(mapping(pod.get("spec")), mapping(pod.get("status")))
    return 0 if milli == MOST_MILLI and mapping(pod.get("spec")).get("nodeName") else milli


def _sum(spec: Json, status: Json) -> int:
    overhead = cpu_milli(mapping(spec.get("overhead")))
    whole = mapping(mapping(spec.get("resources")).get("requests"))
    if "cpu" in whole:
        return bounded(cpu_milli(whole) + overhead)
    together = peak = 0
    for restarts, milli in _containers(spec, status):
        if restarts:
            together += milli
        else:
            peak = max(peak, together + milli)
    return bounded(max(together, peak) + overhead)


def _containers(spec: Json, status: Json) -> Iterator[tuple[bool, int]]:
    """(keeps running beside the others, CPU) of each container, in the order of their start."""
    had = _had(status)
    infeasible = bool(had) and is_resize_infeasible(status)
    for field in ("initContainers", "containers"):
        for each in sequence(spec.get(field)):
            raw = mapping(each)
            runs_on = field == "containers" or raw.get("restartPolicy") == "Always"
            asked = cpu_milli(mapping(mapping(raw.get("resources")).get("requests")))
            held = had.get(str(raw.get("name", ""))) if had and runs_on else None
            if held is not None:
                asked = held if infeasible else max(asked, held)
            yield runs_on, asked


def _had(status: Json) -> dict[str, int]:
    """By container name the greater of actual and allocated CPU, where the status reports it."""
    found = {}
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in sequence(status.get(field)):
            raw = mapping(each)
            if raw.get("resources") is not None:
                has = cpu_milli(mapping(mapping(raw.get("resources")).get("requests")))
                found[str(raw.get("name", ""))] = max(has, cpu_milli(mapping(raw.get("allocatedResources"))))
    return found


def is_resize_infeasible(status: Json) -> bool:
    """True if the kubelet has refused the resize of the pod for good."""
    pending = (mapping(each) for each in sequence(status.get("conditions")))
    return any(
        each.get("type") == "PodResizePending" and each.get("reason") == "Infeasible" for each in pending
    )
