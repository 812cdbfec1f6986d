"""What a pod asks of GPUs, as one immutable value, read from a pod's JSON in whichever dialect it is
written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS, UNSPOKEN, ContainerLimits, Dialect
from timekeeper.core.quantity import same_amount
from timekeeper.core.request.constraints import constraint_violations, listed
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation, first_of, shown

Json = Mapping[str, Any]

POLICIES = ("binpack", "spread", "fragmentation", "random", "load")
_MOST_TOLD = 20  # containers in one message
BUILT_POLICIES = ("binpack", "spread")  # the others act as binpack, and say so


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Either a request, or what keeps it from being one, or neither: a pod that asks for no GPU."""

    request: GPURequest | None
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod's JSON with the path that a message names; ``init`` only where it ends before the
    others start."""

    path: str
    name: str
    init: bool
    raw: Json


def containers(pod: Json) -> tuple[Container, ...]:
    """Init containers first, then the others, as the pod lists them; entries that are no objects are passed
    over."""
    spec = mapping(pod.get("spec"))
    found = []
    for field in ("initContainers", "containers"):
        for index, raw in enumerate(sequence(spec.get(field))):
            if type(raw) is dict or isinstance(raw, Mapping):
                init = field == "initContainers" and raw.get("restartPolicy") != "Always"
                found.append(Container(f"spec.{field}[{index}]", str(raw.get("name", "")), init, raw))
    return tuple(found)


def parse(pod: Json) -> ParsedRequest:
    """The pod's request, with every violation in it. Never raises, whatever JSON it is given.

    A pod whose violations are not empty has no request: what is half malformed is never half granted.
    """
    found = containers(pod)
    read = [_read_container(container) for container in found]
    asks = tuple(ask for _, ask, _ in read if ask is not None)
    spoken = {dialect.name for dialects, _, _ in read for dialect in dialects}
    annotations = annotations_of(pod)
    violations = [violation for _, _, broken in read for violation in broken]
    if len(spoken) > 1:
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
    (dialect,) = spoken
    return ParsedRequest(_request(dialect, asks, annotations if constrained else {}), ())


def annotations_of(pod: Json) -> Json:
    """The pod's annotations, empty where there are none."""
    return mapping(mapping(pod.get("metadata")).get("annotations"))


def canonical(request: GPURequest) -> str:
    """The annotation ``bursar.dev/request``: container -> amounts on each of its distinct cards, sorted,
    without blanks.

    It has no version: it is an echo for people and reports. Every role reads the request from the pod's spec.
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


def mapping(value: object) -> Json:
    """The value where it is a JSON object, else an empty one."""
    if type(value) is dict:  # nearly always; what follows costs ten times as much
        return value
    return value if value is not None and isinstance(value, Mapping) else {}


def sequence(value: object) -> list[Any]:
    """The value where it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


_CONSTRAINTS = frozenset(names.USER_ANNOTATIONS)
_SHORT = 512  # characters of names that are worth remembering: what is remembered stays small


@lru_cache(maxsize=1024)
def _words(resources: tuple[str, ...]) -> tuple[tuple[Dialect, ...], bool]:
    """The dialects that these resources are of, and whether a GPU resource of none is among them. The same
    few resources come with nearly every container."""
    spoken = tuple(dialect for dialect in DIALECTS if not set(dialect.resources).isdisjoint(resources))
    known = {name for dialect in spoken for name in dialect.resources}
    return spoken, any(UNSPOKEN.match(name) for name in resources if name not in known)


def _read_container(
    container: Container,
) -> tuple[tuple[Dialect, ...], ContainerAsk | None, tuple[Violation, ...]]:
    given = mapping(container.raw.get("resources"))
    limits, requests = mapping(given.get("limits")), mapping(given.get("requests"))
    amounts = {**requests, **limits}
    resources = tuple(amounts)
    words = _words if sum(map(len, resources)) <= _SHORT else _words.__wrapped__
    spoken, strange = words(resources)
    if not spoken and not strange:
        return (), None, ()  # most containers of most pods
    violations = _unspoken(container, amounts) if strange else []
    for dialect in spoken:
        violations += _differing(container, dialect, limits, requests)
    if len(spoken) != 1 or violations:
        return spoken, None, tuple(violations)
    dialect = spoken[0]
    answer = dialect.read(ContainerLimits(f"{container.path}.resources.limits", container.name, limits))
    if isinstance(answer, Ask):
        return spoken, ContainerAsk(container.name, container.init, answer), ()
    return spoken, None, answer


def _unspoken(container: Container, amounts: Json) -> list[Violation]:
    return [
        Violation(
            rule="dialect-not-spoken",
            path=f"{container.path}.resources.limits[{name}]",
            got="",
            problem=f"Bursar does not speak the GPU resource {name} yet",
            allowed="bursar.dev/gpu-percent, bursar.dev/gpu-memory, bursar.dev/gpu-count, "
            "tencent.com/vcuda-core with tencent.com/vcuda-memory, or whole nvidia.com/gpu",
            example='bursar.dev/gpu-percent: "50"',
        )
        for name in amounts
        if UNSPOKEN.match(name) and not any(name in dialect.resources for dialect in DIALECTS)
    ]


def _differing(container: Container, dialect: Dialect, limits: Json, requests: Json) -> list[Violation]:
    """Kubernetes lets no extended resource be overcommitted: a request, where given, must equal the limit."""
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
        for name in dialect.resources
        if name in requests and (name not in limits or not same_amount(requests[name], limits[name]))
    ]


def _one_dialect(spoken: tuple[tuple[Container, tuple[Dialect, ...]], ...]) -> list[Violation]:
    named = [f"{each.name} in container {container.name}" for container, them in spoken for each in them]
    return [
        Violation(
            rule="several-dialects",
            path="spec.containers",
            got=first_of(named, _MOST_TOLD),
            problem="a pod's containers must all ask for GPUs in one dialect",
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


def _request(dialect: str, asks: tuple[ContainerAsk, ...], annotations: Json) -> GPURequest:
    return GPURequest(
        dialect=dialect,
        asks=asks,
        models=listed(annotations, names.MODELS),
        exclude_models=listed(annotations, names.EXCLUDE_MODELS),
        uuids=listed(annotations, names.UUIDS),
        policy=str(annotations.get(names.POLICY, "")),
        topology=str(annotations.get(names.TOPOLOGY, "")),
        same_gpu=listed(annotations, names.SAME_GPU),
    )
