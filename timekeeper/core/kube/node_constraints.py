"""Which nodes a waiting pod accepts: node selector, required node affinity, taints and tolerations, read as
kube-scheduler reads them.

kube-scheduler does not send the nodes that it has refused itself, and does not say why. A preemption on such
a node is useful only if nothing but missing resources keeps the pod off. Pod affinity, topology spread,
volumes, host ports and claims, which kube-scheduler checks too, are only recognized here
(`has_unread_constraints`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from weakref import WeakValueDictionary

from timekeeper.core.json_values import Json, is_small, mapping, sequence, shared
from timekeeper.core.kube.pod_rules import REQUIRED
from timekeeper.core.object_names import KEEPS_OFF

Labels = tuple[tuple[str, str], ...]

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
HOSTNAME = "kubernetes.io/hostname"
# the sources of a volume that every node can mount, and the volume's name
_HARMLESS = frozenset(
    ("name", "configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret")
)
_NAME_FIELD = "metadata.name"
_MOST_BYTES = 8 * 1024  # of a pod's selector, affinity and tolerations that are read, as JSON
_WHOLE = re.compile(r"[+-]?0*([0-9]{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint with the effect NoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The part of a Node that constraints match: its labels, and its taints that keep pods off."""

    labels: Labels = ()
    taints: tuple[Taint, ...] = ()


NO_NODE_LABELS = NodeLabels()


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of the pod."""

    key: str  # empty: every key
    value: str
    effect: str  # empty: every effect
    exists: bool  # tolerates every value

    def covers(self, taint: Taint) -> bool:
        """True if the taint does not keep the pod off."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.exists or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Match:
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...]
    field: bool = False  # matches the node's name, not a label


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeConstraints:
    """On which nodes a pod may run, as its spec says. ``is_read`` False: they are too large, so none is known
    to be admitted but those that kube-scheduler passes."""

    selector: Labels = ()  # labels that the node must have
    # one of these must match; None: no required node affinity
    terms: tuple[tuple[Match, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    is_read: bool = True

    def admit(self, name: str, node_labels: NodeLabels) -> bool:
        """True if the constraints and the node's taints allow the pod on the node called ``name``."""
        if not self.is_read:
            return False
        if not (self.selector or node_labels.taints) and self.terms is None:
            return True  # nearly always
        labels = dict(node_labels.labels)
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if any(not any(each.covers(taint) for each in self.tolerations) for taint in node_labels.taints):
            return False
        return self.terms is None or any(_holds(term, name, labels) for term in self.terms)


NO_CONSTRAINTS = NodeConstraints()
NOT_READ = NodeConstraints(is_read=False)
_KNOWN: WeakValueDictionary[int, NodeConstraints] = WeakValueDictionary()


def read_node_labels(raw: Json) -> NodeLabels:
    """From a Node's JSON. Never raises on what an API server can hold."""
    spec = mapping(raw.get("spec"))
    taints = [
        Taint(*(intern(str(each.get(key, ""))) for key in ("key", "value", "effect")))
        for each in map(mapping, sequence(spec.get("taints")))
        if each.get("effect") in KEEPS_OFF
    ]
    unschedulable = Taint(UNSCHEDULABLE, "", "NoSchedule")
    if spec.get("unschedulable") is True and unschedulable not in taints:
        taints.append(unschedulable)
    return NodeLabels(_labels(mapping(raw.get("metadata")).get("labels")), tuple(taints))


def read_node_constraints(raw: Json) -> NodeConstraints:
    """From a Pod's JSON. Never raises on what an API server can hold."""
    spec = mapping(raw.get("spec"))
    required = mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(REQUIRED)
    if not is_small([spec.get("nodeSelector"), spec.get("tolerations"), required], _MOST_BYTES):
        return NOT_READ
    tolerations = tuple(_toleration(mapping(toleration)) for toleration in sequence(spec.get("tolerations")))
    terms = None
    if isinstance(required, Mapping):
        terms = tuple(_term(mapping(each)) for each in sequence(required.get("nodeSelectorTerms")))
    return shared(_KNOWN, NodeConstraints(_labels(spec.get("nodeSelector")), terms, tolerations))


def has_unread_constraints(raw: Json) -> bool:
    """True if the pod has a constraint that kube-scheduler checks and `NodeConstraints` does not describe:
    required pod affinity or anti-affinity, topology spread, host ports, claims of volumes or resources."""
    return bool(sequence(mapping(raw.get("spec")).get("resourceClaims"))) or has_unread_but_claims(raw)


def has_unread_but_claims(raw: Json) -> bool:
    """The same, claims of resources apart."""
    spec = mapping(raw.get("spec"))
    affinity = mapping(spec.get("affinity"))
    required = (mapping(affinity.get(kind)).get(REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))
    spread = map(mapping, sequence(spec.get("topologySpreadConstraints")))
    return (
        any(map(bool, required))
        or any(each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for each in spread)
        or any(not _HARMLESS.issuperset(mapping(each)) for each in sequence(spec.get("volumes")))
        or _has_host_port(spec)
    )


def _has_host_port(spec: Json) -> bool:
    containers = (*sequence(spec.get("initContainers")), *sequence(spec.get("containers")))
    ports = (port for each in containers for port in sequence(mapping(each).get("ports")))
    return any(mapping(port).get("hostPort") for port in ports)


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
    """Like Go's ``strconv.ParseInt(text, 10, 64)``, which kube-scheduler uses: ``1_0`` is no number."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    number = -int(match[1]) if text.startswith("-") else int(match[1])
    return number if -(2**63) <= number < 2**63 else None
