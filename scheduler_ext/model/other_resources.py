"""What pods request of resources that are neither CPU nor GPUs (memory, ephemeral storage, huge pages, other
devices), and what a node has of them in all. A node that has less than a pod requests never runs it.
"""

from collections import Counter

from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import thousandths

MOST_HOST_MIB = 2**40  # more than any node has

Others = tuple[tuple[str, int], ...]  # by resource, in thousandths of its unit


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
    request. The overhead of the runtime class is added. Amounts beyond an int64, which overflow in
    kube-scheduler, count whole.

    Source: k8s.io/component-helpers/resource, ``PodRequests``.
    """
    spec = mapping(pod.get("spec"))
    together: Counter[str] = Counter()
    total: dict[str, int] = {}
    for field in ("initContainers", "containers"):
        for raw in map(mapping, sequence(spec.get(field))):
            amounts = _requests(raw)
            for name, amount in amounts.items():
                total[name] = max(total.get(name, 0), together[name] + amount)
            if field == "containers" or raw.get("restartPolicy") == "Always":
                together.update(amounts)
    total |= _requests(spec)
    for name, amount in others(mapping(spec.get("overhead"))).items():
        total[name] = total.get(name, 0) + amount
    return tuple(sorted(total.items()))


def host_mib(amounts: Others) -> int:
    """The memory among them, in MiB, rounded down; at most `MOST_HOST_MIB`."""
    return min(dict(amounts).get("memory", 0) // (1000 * 2**20), MOST_HOST_MIB)


def requested_host_mib(pod: Json) -> int:
    """What the pod requests of its node's memory, as `requested_others` counts it, in MiB."""
    return host_mib(requested_others(pod))


def _requests(raw: Json) -> dict[str, int]:
    return others(mapping(mapping(raw.get("resources")).get("requests")))


def exceed(asked: Others, total: Others) -> bool:
    """True if more is requested of any resource than there is in all."""
    there = dict(total)
    return any(amount > there.get(name, 0) for name, amount in asked)
