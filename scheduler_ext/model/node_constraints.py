"""On which nodes a waiting pod may run by its own word and the node's: node selector, required node affinity,
taints and tolerations, read as kube-scheduler reads them.

kube-scheduler sends us no node that it has refused itself, and does not say why. Where it refuses a node for
want of room, and somebody is to leave there for the pod, it must be known that nothing else keeps the pod
off: nobody is to leave in vain. What else kube-scheduler looks at (other pods, volumes, ports) is not known
here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern

from scheduler_ext.model.labels import Labels
from timekeeper.core.json_values import Json, mapping, sequence

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_NAME_FIELD = "metadata.name"
_WHOLE = re.compile(r"[+-]?0*([0-9]{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of the effect NoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """What a node shows to pods: its labels, and its taints that keep pods off."""

    labels: Labels = ()
    taints: tuple[Taint, ...] = ()


NO_NODE_LABELS = NodeLabels()


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key tolerates every key, an empty effect every effect; ``exists``: every value too."""

    key: str
    value: str
    effect: str
    exists: bool

    def covers(self, taint: Taint) -> bool:
        """True where the taint does not keep the pod off."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.exists or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Match:
    """One expression of a node selector; ``field``: of the node's name, not of a label."""

    key: str
    operator: str
    values: tuple[str, ...]
    field: bool = False


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """``selector``: labels that the node must have. ``terms``: of these one must hold whole, None where the
    pod has no required node affinity."""

    selector: Labels = ()
    terms: tuple[tuple[Match, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def admit(self, name: str, node_labels: NodeLabels) -> bool:
        """True where neither the pod nor the node keeps them apart."""
        labels = dict(node_labels.labels)
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if any(not any(each.covers(taint) for each in self.tolerations) for taint in node_labels.taints):
            return False
        return self.terms is None or any(_holds(term, name, labels) for term in self.terms)


NO_CONSTRAINTS = NodeConstraints()


def read_node_labels(raw: Json) -> NodeLabels:
    """From a Node's JSON. Never raises on what an API server can hold."""
    spec = mapping(raw.get("spec"))
    taints = [
        Taint(*(intern(str(each.get(key, ""))) for key in ("key", "value", "effect")))
        for each in map(mapping, sequence(spec.get("taints")))
        if each.get("effect") in _KEEPS_OFF
    ]
    unschedulable = Taint(UNSCHEDULABLE, "", "NoSchedule")
    if spec.get("unschedulable") is True and unschedulable not in taints:
        taints.append(unschedulable)
    return NodeLabels(_labels(mapping(raw.get("metadata")).get("labels")), tuple(taints))


def read_node_constraints(raw: Json) -> NodeConstraints:
    """From a Pod's JSON. Never raises on what an API server can hold."""
    spec = mapping(raw.get("spec"))
    tolerations = tuple(_toleration(mapping(each)) for each in sequence(spec.get("tolerations")))
    required = mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = None
    if isinstance(required, Mapping):
        terms = tuple(_term(mapping(each)) for each in sequence(required.get("nodeSelectorTerms")))
    return NodeConstraints(_labels(spec.get("nodeSelector")), terms, tolerations)


def _labels(raw: object) -> Labels:
    pairs = mapping(raw).items()
    return tuple(sorted((intern(str(key)), intern(str(value))) for key, value in pairs))


def _toleration(raw: Json) -> Toleration:
    key, value, effect = (str(raw.get(each) or "") for each in ("key", "value", "effect"))
    return Toleration(key, value, effect, raw.get("operator") == "Exists")


def _term(raw: Json) -> tuple[Match, ...]:
    return tuple(
        Match(
            str(each.get("key", "")),
            str(each.get("operator", "")),
            tuple(map(str, sequence(each.get("values")))),
            field,
        )
        for part, field in (("matchExpressions", False), ("matchFields", True))
        for each in map(mapping, sequence(raw.get(part)))
    )


def _holds(term: tuple[Match, ...], name: str, labels: Mapping[str, str]) -> bool:
    """An empty term matches nothing."""
    return bool(term) and all(_is(each, name, labels) for each in term)


def _is(match: Match, name: str, labels: Mapping[str, str]) -> bool:
    known = {_NAME_FIELD: name} if match.field else labels
    value = known.get(match.key)
    if match.operator == "In":
        return value in match.values
    if match.operator == "NotIn":
        return value is None or value not in match.values
    if match.operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (match.operator == "Exists")
    return value is not None and _compares(match, value)


def _compares(match: Match, value: str) -> bool:
    """Gt and Lt, of whole numbers."""
    mine, others = _whole(value), [_whole(each) for each in match.values]
    theirs = others[0] if len(others) == 1 else None
    if mine is None or theirs is None:
        return False
    return mine > theirs if match.operator == "Gt" else match.operator == "Lt" and mine < theirs


def _whole(text: str) -> int | None:
    """As Go's ``strconv.ParseInt(text, 10, 64)``, by which kube-scheduler reads it: ``1_0`` is no number."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    number = -int(match[1]) if text.startswith("-") else int(match[1])
    return number if -(2**63) <= number < 2**63 else None
