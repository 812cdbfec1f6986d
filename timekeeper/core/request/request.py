"""What a pod requests of GPUs, as one immutable value, read from its JSON in any supported dialect."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.dialects import (
    BY_NAME,
    DIALECTS,
    GPU_RESOURCE_PATTERN,
    ContainerLimits,
    Dialect,
    PodFacts,
)
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.name_lists import listed
from timekeeper.core.quantity import integral, same_amount
from timekeeper.core.request.constraints import constraint_violations
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation, first_of, shown

POLICIES = ("binpack", "spread", "fragmentation", "random", "load")
_MOST_LISTED = 20  # containers in one message


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request, or violations, or neither: the pod requests no GPU."""

    request: GPURequest | None
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Container:
    path: str  # as messages name it
    name: str
    init: bool  # it ends before the others start (a native sidecar does not)
    raw: Json


def containers(pod: Json) -> tuple[Container, ...]:
    """Init containers first, then the others, in the pod's order. Entries that are not objects are
    skipped."""
    spec = mapping(pod.get("spec"))
    found = []
    for field in ("initContainers", "containers"):
        for index, raw in enumerate(sequence(spec.get(field))):
            if type(raw) is dict or isinstance(raw, Mapping):
                init = field == "initContainers" and raw.get("restartPolicy") != "Always"
                found.append(Container(f"spec.{field}[{index}]", str(raw.get("name", "")), init, raw))
    return tuple(found)


def parse(pod: Json) -> ParsedRequest:
    """The pod's request, or all its violations. Never raises, whatever the JSON.

    A pod with violations has no request: a malformed request is not granted in part.
    """
    found = containers(pod)
    read = [_read_container(container) for container in found]
    asks = tuple(ask for _, ask, _ in read if ask is not None)
    dialect_names = _not_served({dialect.name for dialects, _, _ in read for dialect in dialects})
    annotations = annotations_of(pod)
    violations = [violation for _, _, broken in read for violation in broken]
    if len(dialect_names) > 1:
        violations += _one_dialect(tuple(zip(found, (dialects for dialects, _, _ in read), strict=True)))
    if not asks and not violations:
        return ParsedRequest(None, ())
    constrained = not _CONSTRAINTS.isdisjoint(annotations)
    if constrained:
        asking = {each.name for each, (dialects, _, _) in zip(found, read, strict=True) if dialects}
        violations += _policy_violations(annotations)
        violations += constraint_violations(annotations, asks, asking)
    if violations:
        return ParsedRequest(None, tuple(violations))
    (dialect,) = dialect_names
    request = _request(dialect, asks, annotations if constrained else {})
    constrain = BY_NAME[dialect].constrain
    if constrain is None:
        return ParsedRequest(request, ())
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    answer = constrain(request, PodFacts(annotations, labels))
    return ParsedRequest(answer, ()) if isinstance(answer, GPURequest) else ParsedRequest(None, answer)


def canonical(request: GPURequest) -> str:
    """The annotation ``bursar.dev/request``: container -> amounts on each of its distinct cards, sorted,
    without blanks.

    It has no version, because it is only for people and reports. Every role reads the request from the pod's
    spec.
    """
    amounts = {
        each.container: {
            "devices": each.ask.devices,
            "memory_mib": each.ask.memory_mib,
            "share_milli": each.ask.share_milli,
        }
        for each in request.asks
    }
    return json.dumps(amounts, sort_keys=True, separators=(",", ":"))


_CONSTRAINTS = frozenset(names.USER_ANNOTATIONS)
_SUPPORTED = ", ".join(name for dialect in DIALECTS for name in dialect.resources)
_SHORT = 512  # longer resource lists are not cached, to limit the cache's memory


@lru_cache(maxsize=1024)
def _dialects_of(resources: tuple[str, ...]) -> tuple[tuple[Dialect, ...], bool]:
    """The dialects of these resources, and whether there is a GPU resource of none of them. Cached: nearly
    all containers have the same few resources."""
    dialects = tuple(dialect for dialect in DIALECTS if not set(dialect.resources).isdisjoint(resources))
    shared = {name for dialect in dialects for name in dialect.shared}
    dialects = tuple(
        dialect
        for dialect in dialects
        if any(name in resources and name not in shared for name in dialect.resources)
    )
    known = {name for dialect in dialects for name in (*dialect.resources, *dialect.shared)}
    return dialects, any(GPU_RESOURCE_PATTERN.match(name) for name in resources if name not in known)


def _read_container(
    container: Container,
) -> tuple[tuple[Dialect, ...], ContainerAsk | None, tuple[Violation, ...]]:
    given = mapping(container.raw.get("resources"))
    limits, requests = mapping(given.get("limits")), mapping(given.get("requests"))
    amounts = {**requests, **limits}
    resources = tuple(amounts)
    cached = sum(map(len, resources)) <= _SHORT
    dialects, unsupported = (_dialects_of if cached else _dialects_of.__wrapped__)(resources)
    if not dialects and not unsupported:
        return (), None, ()  # most containers of most pods
    violations = _unsupported(container, amounts) if unsupported else []
    for dialect in dialects:
        violations += _differing(container, dialect, limits, requests)
    if len(dialects) != 1 or violations:
        return dialects, None, tuple(violations)
    dialect = dialects[0]
    answer = dialect.read(ContainerLimits(f"{container.path}.resources.limits", container.name, limits))
    if isinstance(answer, Ask):
        return dialects, ContainerAsk(container.name, container.init, answer), ()
    return dialects, None, answer


def _not_served(dialects: set[str]) -> set[str]:
    """Without those whose requests another of them reads as its own."""
    if len(dialects) < 2:
        return dialects
    return {name for name in dialects if not any(name in BY_NAME[each].serves for each in dialects)}


def _unsupported(container: Container, amounts: Json) -> list[Violation]:
    return [
        Violation(
            rule="dialect-not-spoken",
            path=f"{container.path}.resources.limits[{name}]",
            got="",
            problem=f"unsupported GPU resource {name}{_suggestion(name)}",
            allowed=_SUPPORTED,
            example='bursar.dev/gpu-percent: "50"',
        )
        for name in amounts
        if GPU_RESOURCE_PATTERN.match(name) and not any(name in dialect.resources for dialect in DIALECTS)
    ]


def _suggestion(resource: str) -> str:
    """The supported resource that shares most of its beginning with a misspelt one, as words for a message;
    "" if there is none."""
    for name in (name for dialect in DIALECTS for name in dialect.resources):
        differences = (
            at for at, (one, other) in enumerate(zip(name, resource, strict=False)) if one != other
        )
        shared = next(differences, min(len(name), len(resource)))
        if 100 * shared >= 85 * max(len(name), len(resource)):
            return f" (did you mean {name}?)"
    return ""


def _differing(container: Container, dialect: Dialect, limits: Json, requests: Json) -> list[Violation]:
    """Kubernetes does not overcommit extended resources: a request, if given, must equal the limit."""
    return [
        Violation(
            rule="request-differs-from-limit",
            path=f"{container.path}.resources.requests[{name}]",
            got=f"request {shown(requests[name])} and "
            + (f"limit {shown(limits[name])}" if name in limits else "no limit"),
            problem="a GPU request must equal its limit",
            allowed="the limit alone, or a request of the same amount",
            example=f'limits: {{{name}: "{dialect.examples[name]}"}}',
        )
        for name in (*dialect.resources, *dialect.shared)
        if name in requests and (name not in limits or not same_amount(requests[name], limits[name]))
    ]


def _one_dialect(dialects: tuple[tuple[Container, tuple[Dialect, ...]], ...]) -> list[Violation]:
    named = [f"{each.name} in container {container.name}" for container, them in dialects for each in them]
    return [
        Violation(
            rule="several-dialects",
            path="spec.containers",
            got=first_of(named, _MOST_LISTED),
            problem="all containers of a pod must use the same GPU dialect",
            allowed="one of " + ", ".join(dialect.name for dialect in DIALECTS),
            example='bursar.dev/gpu-percent: "50" in each container',
        )
    ]


def _policy_violations(annotations: Json) -> list[Violation]:
    policy = annotations.get(names.POLICY)
    if policy is None or policy in POLICIES:
        return []
    return [
        Violation(
            "unknown-policy",
            f"metadata.annotations[{names.POLICY}]",
            shown(policy),
            "no such placement policy",
            ", ".join(POLICIES),
            f"{names.POLICY}: binpack",
        )
    ]


def _on_one_card(dialect: str, asks: tuple[ContainerAsk, ...]) -> tuple[str, ...]:
    """The containers that must share one card because their system knows one card a pod."""
    is_one = len(asks) > 1 and BY_NAME[dialect].one_card
    return tuple(each.container for each in asks) if is_one else ()


def _request(dialect: str, asks: tuple[ContainerAsk, ...], annotations: Json) -> GPURequest:
    return GPURequest(
        dialect=dialect,
        asks=asks,
        models=listed(annotations, names.MODELS),
        exclude_models=listed(annotations, names.EXCLUDE_MODELS),
        uuids=listed(annotations, names.UUIDS),
        policy=str(annotations.get(names.POLICY, "")),
        topology=str(annotations.get(names.TOPOLOGY, "")),
        same_gpu=_on_one_card(dialect, asks) or listed(annotations, names.SAME_GPU),
        min_memory_mib=integral(annotations.get(names.MIN_GPU_MEMORY)) or 0,
    )
