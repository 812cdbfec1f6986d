"""What kube-scheduler's rules about other pods say of a node, from the objects alone: small, slow, and
importing nothing of ours. By Kubernetes' documentation of topology spread, inter-pod affinity and ports.

``there``: pods with a node, of which those that have ended do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def accepts(
    pod: Json, node: Json, there: Sequence[Json], nodes: Sequence[Json], namespaces: Mapping[str, Json]
) -> bool:
    """Whether kube-scheduler may bind the pod there, as far as other pods are concerned. ``namespaces``:
    their labels."""
    by_name = {where["metadata"]["name"]: where for where in nodes}
    living = [
        (other, by_name[other["spec"]["nodeName"]])
        for other in there
        if other["status"].get("phase") not in ("Succeeded", "Failed")
        and other["spec"]["nodeName"] in by_name
    ]
    return (
        _has_its_ports(pod, [other for other, where in living if where is node])
        and _is_apart(pod, node, living, namespaces)
        and all(_is_apart(other, where, [(pod, node)], namespaces) for other, where in living)
        and _is_near(pod, node, living, namespaces)
        and all(_is_spread(pod, node, living, nodes, rule) for rule in _spreads(pod))
    )


def _ports(pod: Json) -> list[tuple[str, str, int]]:
    spec = pod["spec"]
    sidecars = [init for init in spec.get("initContainers", []) if init.get("restartPolicy") == "Always"]
    ports = [port for container in [*spec["containers"], *sidecars] for port in container.get("ports", [])]
    if spec.get("hostNetwork"):  # the API server writes it so
        ports = [{**port, "hostPort": port.get("hostPort", port["containerPort"])} for port in ports]
    return [
        (port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])
        for port in ports
        if port.get("hostPort", 0) > 0
    ]


def _has_its_ports(pod: Json, there: Iterable[Json]) -> bool:
    used = [port for other in there for port in _ports(other)]
    return not any(
        mine[1:] == other[1:] and ("0.0.0.0" in (mine[0], other[0]) or mine[0] == other[0])
        for mine in _ports(pod)
        for other in used
    )


def selects(selector: Json | None, labels: Json) -> bool:
    """No selector matches nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in selector.get("matchLabels", {}).items()
    ]
    for expression in [*wanted, *selector.get("matchExpressions", [])]:
        is_there, value = expression["key"] in labels, labels.get(expression["key"])
        holds = {
            "In": is_there and value in expression.get("values", []),
            "NotIn": not is_there or value not in expression.get("values", []),
            "Exists": is_there,
            "DoesNotExist": not is_there,
        }[expression["operator"]]
        if not holds:
            return False
    return True


def _terms(pod: Json, kind: str) -> list[Json]:
    found: list[Json] = pod["spec"].get("affinity", {}).get(kind, {}).get(REQUIRED, [])
    return found


def _is_of(term: Json, owner: Json, other: Json, namespaces: Mapping[str, Json]) -> bool:
    """Whether the term of ``owner`` selects the other pod."""
    where, of_namespaces = other["metadata"]["namespace"], term.get("namespaceSelector")
    named = term.get("namespaces", [])
    if not named and of_namespaces is None:
        named = [owner["metadata"]["namespace"]]
    is_there = where in named or selects(of_namespaces, namespaces.get(where, {}))
    return is_there and selects(term.get("labelSelector"), other["metadata"].get("labels", {}))


def _value(node: Json, label: str) -> str | None:
    value: str | None = node["metadata"].get("labels", {}).get(label)
    return value


def _is_apart(
    pod: Json, node: Json, others: Iterable[tuple[Json, Json]], namespaces: Mapping[str, Json]
) -> bool:
    return not any(
        _value(node, term["topologyKey"]) is not None
        and _value(node, term["topologyKey"]) == _value(where, term["topologyKey"])
        and _is_of(term, pod, other, namespaces)
        for term in _terms(pod, "podAntiAffinity")
        for other, where in others
    )


def _is_near(
    pod: Json, node: Json, others: Iterable[tuple[Json, Json]], namespaces: Mapping[str, Json]
) -> bool:
    """A pod counts that all terms select. The first of a group that requires itself may go anywhere."""
    terms = _terms(pod, "podAffinity")
    labels = [term["topologyKey"] for term in terms]
    if any(_value(node, label) is None for label in labels):
        return False
    wanted = [where for other, where in others if all(_is_of(term, pod, other, namespaces) for term in terms)]
    if all(any(_value(where, label) == _value(node, label) for where in wanted) for label in labels):
        return True
    is_none_there = not any(_value(where, label) is not None for where in wanted for label in labels)
    return is_none_there and all(_is_of(term, pod, pod, namespaces) for term in terms)


def _spreads(pod: Json) -> list[Json]:
    rules = pod["spec"].get("topologySpreadConstraints", [])
    return [rule for rule in rules if rule.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]


def _is_spread(
    pod: Json, node: Json, others: Iterable[tuple[Json, Json]], nodes: Iterable[Json], rule: Json
) -> bool:
    keys, labels = [of_pod["topologyKey"] for of_pod in _spreads(pod)], pod["metadata"].get("labels", {})
    if _value(node, rule["topologyKey"]) is None:
        return False
    selector = dict(rule.get("labelSelector") or {})
    same = {key: labels[key] for key in rule.get("matchLabelKeys", []) if key in labels}
    selector["matchLabels"] = {**selector.get("matchLabels", {}), **same}
    counted = [
        there
        for there in nodes
        if all(_value(there, key) is not None for key in keys) and _is_included(pod, there, rule)
    ]
    found = {_value(there, rule["topologyKey"]): 0 for there in counted}
    for other, where in others:
        is_counted = any(where is there for there in counted) and not other["metadata"].get(
            "deletionTimestamp"
        )
        is_here = other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        if is_counted and is_here and selects(selector, other["metadata"].get("labels", {})):
            found[_value(where, rule["topologyKey"])] += 1
    fewest = 0 if len(found) < rule.get("minDomains", 1) else min(found.values())
    more = found.get(_value(node, rule["topologyKey"]), 0) + selects(selector, labels) - fewest
    return more <= int(rule["maxSkew"])


def _is_included(pod: Json, node: Json, rule: Json) -> bool:
    """By node selectors and taints of NoSchedule, of which the tests' pods have no others."""
    wanted = pod["spec"].get("nodeSelector", {}).items()
    tolerated = {toleration["key"] for toleration in pod["spec"].get("tolerations", [])}
    taints = {taint["key"] for taint in node.get("spec", {}).get("taints", [])}
    is_selected = all(_value(node, key) == value for key, value in wanted)
    by_affinity = rule.get("nodeAffinityPolicy", "Honor") != "Honor" or is_selected
    return by_affinity and (rule.get("nodeTaintsPolicy") != "Honor" or taints <= tolerated)
