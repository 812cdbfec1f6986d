"""What pods request of resources that are neither CPU nor GPUs (memory, ephemeral storage, huge pages, other
devices), and what a node has of them in all. A node that has less than a pod requests never runs it.
"""

from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import thousandths

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
    """For each other resource the pod-level request, or else the greater of all ordinary containers together
    and of each init container alone. That is never more than kube-scheduler counts."""
    spec = mapping(pod.get("spec"))
    whole = _requests(spec)
    together: dict[str, int] = {}
    for raw in sequence(spec.get("containers")):
        for name, amount in _requests(mapping(raw)).items():
            together[name] = together.get(name, 0) + amount
    each_alone = [_requests(mapping(raw)) for raw in sequence(spec.get("initContainers"))]
    peak: dict[str, int] = {}
    for amounts in (together, *each_alone):
        for name, amount in amounts.items():
            peak[name] = max(peak.get(name, 0), amount)
    return tuple(sorted((peak | whole).items()))


def _requests(raw: Json) -> dict[str, int]:
    return others(mapping(mapping(raw.get("resources")).get("requests")))


def exceed(asked: Others, total: Others) -> bool:
    """True if more is requested of any resource than there is in all."""
    there = dict(total)
    return any(amount > there.get(name, 0) for name, amount in asked)
