"""What pods request of resources that are neither CPU nor GPUs (memory, ephemeral storage, huge pages, other
devices, and the place of a pod), and what a node has of them in all. A node that has less than a pod requests
never runs it.
"""

from functools import lru_cache

from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import LARGEST, thousandths
from timekeeper.core.request.host import requested_milli

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
    """For each other resource the pod's request (`host.requested_milli`). Each pod takes one of ``pods``.

    Amounts beyond an int64 overflow in kube-scheduler. They count whole while the pod waits; of a bound pod
    they count as nothing, for it was bound only because of the overflow.
    """
    spec = mapping(pod.get("spec"))
    most = 1000 * LARGEST if spec.get("nodeName") else None
    found = {PODS: 1000}
    for name in _named(spec):
        amount = requested_milli(pod, name)
        if most is None or amount <= most:
            found[name] = amount
    return _kept(tuple(sorted(found.items())))


def _named(spec: Json) -> set[str]:
    """The other resources that the pod requests something of."""
    named = set(others(mapping(spec.get("overhead"))))
    for each in (spec, *sequence(spec.get("initContainers")), *sequence(spec.get("containers"))):
        named.update(others(mapping(mapping(mapping(each).get("resources")).get("requests"))))
    return named


@lru_cache(maxsize=4096)
def _kept(found: Others) -> Others:
    """The same object for equal amounts: most pods are made from few templates."""
    return found


def exceed(asked: Others, total: Others) -> bool:
    """True if more is requested of any resource than there is in all. A node that does not say how many pods
    it takes has no limit of them."""
    there = dict(total)
    return any(amount > there.get(name, amount if name == PODS else 0) for name, amount in asked)
