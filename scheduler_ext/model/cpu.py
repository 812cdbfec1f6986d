"""CPU as kube-scheduler counts it: what a pod takes of a node, in thousandths of a core.

Source: k8s.io/component-helpers/resource, ``PodRequests`` with the options of ``NodeResourcesFit``.
"""

from collections.abc import Iterator

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import thousandths

# A million cores. No node has as many, so whoever asks for more fits nowhere either way. And so little that
# what `fragmentation` makes of it in 64 bits stays far from their end: at most 8,192 pods in a mix, twice
# (stranded GPUs count so) a CPU left of -2 x 10^9, and 1,000 thousandths come to less than 4 x 10^16.
MOST_MILLI = 10**9


def bounded(milli: int) -> int:
    """The CPU, or the most that is told apart from more: there may be a sum of many pods' behind it."""
    return max(-MOST_MILLI, min(milli, MOST_MILLI))


def cpu_milli(amounts: Json) -> int:
    """The CPU among amounts by resource, MOST_MILLI of more; 0 where there is none that can be read."""
    return bounded(max(0, thousandths(amounts.get("cpu")) or 0)) if "cpu" in amounts else 0


def requested_milli(pod: Json) -> int:
    """The greater of the ordinary containers and sidecars together, and each init container with the sidecars
    started before it; or what the pod asks as a whole. With the overhead of its runtime class.

    A container that is being resized counts with the most of what it asks, was allocated and has; one whose
    resize cannot be done with what it was allocated and has. Of more than MOST_MILLI it is that.
    """
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
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
    """Whether it goes on running beside the others, and its CPU, in the order of their start."""
    had = _had(status)
    infeasible = bool(had) and _infeasible(status)
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
    """The greater of what each container has and was allocated, by name, where its status tells."""
    found = {}
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in sequence(status.get(field)):
            raw = mapping(each)
            if raw.get("resources") is not None:
                has = cpu_milli(mapping(mapping(raw.get("resources")).get("requests")))
                found[str(raw.get("name", ""))] = max(has, cpu_milli(mapping(raw.get("allocatedResources"))))
    return found


def _infeasible(status: Json) -> bool:
    pending = (mapping(each) for each in sequence(status.get("conditions")))
    return any(
        each.get("type") == "PodResizePending" and each.get("reason") == "Infeasible" for each in pending
    )
