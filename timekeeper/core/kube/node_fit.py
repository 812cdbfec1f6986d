"""Whether a node takes a pod once others have left it: by its constraints, the node's taints, and the sums of
what its pods request, as kube-scheduler counts them (k8s.io/kubernetes, ``NodeResourcesFit``)."""

from collections.abc import Collection, Iterable

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.kube.node_constraints import read_node_constraints, read_node_labels
from timekeeper.core.object_names import TERMINAL
from timekeeper.core.quantity import thousandths
from timekeeper.core.request.host import requested_milli

_PODS = "pods"


def why_not_on(
    node: Json,
    pod: Json,
    pods: Iterable[Json],
    leaving: Collection[str],
    served: Collection[str] = (),
) -> str:
    """Why the node does not take the pod once those ``leaving``, by their UIDs, are gone; "" if it does.
    ``pods``: those on the node; ``served``: resources for which kube-scheduler makes a claim where the node
    has none. Constraints that `node_constraints` does not describe are not considered."""
    name = str(mapping(node.get("metadata")).get("name", ""))
    if not read_node_constraints(pod).admit(name, read_node_labels(node)):
        return "its constraints or the node's taints keep it off"
    staying = [each for each in pods if not _is_gone(each, leaving)]
    there = mapping(mapping(node.get("status")).get("allocatable"))
    if len(staying) + 1 > (thousandths(there.get(_PODS)) or 0) // 1000:
        return "the node takes no further pod"
    for resource in sorted(_named(pod)):
        taken = sum(requested_milli(each, resource) for each in (*staying, pod))
        most = thousandths(there.get(resource)) or 0
        if taken > most and (most or resource not in served):
            return f"the node has too little {resource}"
    return ""


def _is_gone(pod: Json, leaving: Collection[str]) -> bool:
    if mapping(pod.get("status")).get("phase") in TERMINAL:
        return True
    return mapping(pod.get("metadata")).get("uid") in leaving


def _named(pod: Json) -> set[str]:
    """The resources that the pod requests."""
    spec = mapping(pod.get("spec"))
    named = set(mapping(spec.get("overhead")))
    for each in map(
        mapping, (spec, *sequence(spec.get("initContainers")), *sequence(spec.get("containers")))
    ):
        resources = mapping(each.get("resources"))
        named |= {*mapping(resources.get("requests")), *mapping(resources.get("limits"))}
    return named
