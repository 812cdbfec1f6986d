"""What a pod asks of the pods beside it: host ports, required affinity and anti-affinity, and spread
(``DoNotSchedule``), read as kube-scheduler reads them. The API server has written ``matchLabelKeys`` and
``mismatchLabelKeys`` of affinity into the selectors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from timekeeper.core.json_values import Json, is_small, mapping, sequence, shared
from timekeeper.core.kube.selectors import Requirement, Selector, read_selector

HostPort = tuple[str, str, int]  # IP address, protocol and number

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - as a pod says it
_MOST_BYTES, _MOST_PORTS = 4 * 1024, 64  # of a pod's affinity and spread that are read, as JSON; host ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Pods on nodes with one value of ``label``: those that ``selector`` matches, None: none, in
    ``namespaces`` and in those whose labels ``of_namespaces`` matches."""

    label: str
    selector: Selector | None
    namespaces: frozenset[str]
    of_namespaces: Selector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """By how many pods of the term the nodes with one value of its label may exceed those with another, which
    have none where there are fewer values than ``least_values``. ``by_affinity``, ``by_taints``: whether
    nodes that the pod may not use for its node affinity, or their taints, do not count."""

    term: Term
    skew: int
    least_values: int = 0
    by_affinity: bool = True
    by_taints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class PodRules:
    """``apart``: a pod of none of these may be near; ``near``: one of all of these must be; ``near`` and
    ``spread`` concern a pod until it has its node. What is too large is not read."""

    ports: tuple[HostPort, ...] = ()
    apart: tuple[Term, ...] = ()
    near: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()

    @property
    def keep_off(self) -> bool:
        """Whether they keep other pods off nodes."""
        return bool(self.ports or self.apart)


NO_RULES = PodRules()
_KNOWN: WeakValueDictionary[int, PodRules] = WeakValueDictionary()


def rules_of(raw: Json, is_placed_here: bool) -> PodRules:
    """Of a Pod's JSON. ``is_placed_here``: whether to read what it asks until it has a node, too. Never
    raises on what an API server can hold."""
    spec, metadata = mapping(raw.get("spec")), mapping(raw.get("metadata"))
    ports, affinity = _host_ports(spec), mapping(spec.get("affinity"))
    if not (ports or affinity or is_placed_here):
        return NO_RULES  # nearly always
    if len(ports) > _MOST_PORTS or not is_small(
        [affinity.get("podAntiAffinity"), affinity.get("podAffinity"), spec.get("topologySpreadConstraints")],
        _MOST_BYTES,
    ):
        return NO_RULES
    namespace = str(metadata.get("namespace", ""))
    apart = _terms(affinity.get("podAntiAffinity"), namespace) if affinity else ()
    near = _terms(affinity.get("podAffinity"), namespace) if affinity and is_placed_here else ()
    listed = sequence(spec.get("topologySpreadConstraints")) if is_placed_here else ()
    spread = tuple(_spreads(map(mapping, listed), namespace, mapping(metadata.get("labels"))))
    if not (ports or apart or near or spread):
        return NO_RULES
    return shared(_KNOWN, PodRules(ports=ports, apart=apart, near=near, spread=spread))


def conflict(one: HostPort, other: HostPort) -> bool:
    """Whether no two pods with these may be on one node."""
    is_one_address = one[0] == other[0] or _ANY_ADDRESS in (one[0], other[0])
    return one[1:] == other[1:] and is_one_address


def _host_ports(spec: Json) -> tuple[HostPort, ...]:
    """Of the containers that run as long as the pod. In a pod on the node's network each port is one."""
    init = (
        raw
        for raw in map(mapping, sequence(spec.get("initContainers")))
        if raw.get("restartPolicy") == "Always"
    )
    listed = [each for each in (*init, *map(mapping, sequence(spec.get("containers")))) if "ports" in each]
    is_on_host = spec.get("hostNetwork") is True
    found = set()
    for container in listed:
        for port in map(mapping, sequence(container.get("ports"))):
            number = port.get("hostPort") or (port.get("containerPort") if is_on_host else None)
            if type(number) is int and number > 0:
                address = str(port.get("hostIP") or _ANY_ADDRESS)
                found.add((address, str(port.get("protocol") or "TCP"), number))
    return tuple(sorted(found))


def _terms(raw: object, namespace: str) -> tuple[Term, ...]:
    return tuple(
        Term(
            label=str(term.get("topologyKey", "")),
            selector=read_selector(term.get("labelSelector")),
            namespaces=_namespaces(term, namespace),
            of_namespaces=read_selector(term.get("namespaceSelector")),
        )
        for term in map(mapping, sequence(mapping(raw).get(REQUIRED)))
    )


def _namespaces(term: Json, namespace: str) -> frozenset[str]:
    """The pod's own where the term names none."""
    named = frozenset(map(str, sequence(term.get("namespaces"))))
    return named if named or term.get("namespaceSelector") is not None else frozenset({namespace})


def _spreads(constraints: Iterable[Json], namespace: str, labels: Json) -> Iterator[Spread]:
    """The values of ``matchLabelKeys`` are those of the pod's labels now. A selector without requirements
    counts no pod."""
    for constraint in constraints:
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") != "DoNotSchedule":
            continue
        selector = read_selector(constraint.get("labelSelector"))
        keys = [str(key) for key in sequence(constraint.get("matchLabelKeys")) if key in labels]
        if selector is not None and keys:
            same = (Requirement(key, "In", frozenset({str(labels[key])})) for key in keys)
            selector = Selector((*selector.requirements, *same))
        if selector is not None and not selector.requirements:
            selector = None
        skew, least = constraint.get("maxSkew"), constraint.get("minDomains")
        label = str(constraint.get("topologyKey", ""))
        yield Spread(
            term=Term(label=label, selector=selector, namespaces=frozenset({namespace})),
            skew=skew if type(skew) is int and skew > 0 else 1,
            least_values=least if type(least) is int else 0,
            by_affinity=constraint.get("nodeAffinityPolicy", "Honor") == "Honor",
            by_taints=constraint.get("nodeTaintsPolicy") == "Honor",
        )
