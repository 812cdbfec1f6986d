"""What a pod requests of GPUs, as one immutable value, read from its JSON in any supported dialect."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

from timekeeper.core import names
from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.dialects import (
    BY_ANNOTATION,
    BY_LABEL,
    BY_NAME,
    DIALECTS,
    GPU_RESOURCE_PATTERN,
    Container,
    ContainerLimits,
    Dialect,
    PodFacts,
)
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.dialects.others.device import recorded
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.name_lists import listed
from timekeeper.core.quantity import integral, same_amount
from timekeeper.core.request.claims import KnownClaims, PodClaims
from timekeeper.core.request.constraints import constraint_violations
from timekeeper.core.request.device_classes import is_reviewed
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.devices import (
    beside_another,
    device_containers,
    is_governed,
    metered,
    refused,
)
from timekeeper.core.request.zeros import without_zeros
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation, first_of, shown

POLICIES = ("binpack", "spread", "fragmentation", "random", "load")
_MAX_LISTED = 20  # containers in one message


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request, or violations, or neither: the pod requests no GPU."""

    request: GPURequest | None
    violations: tuple[Violation, ...]


NO_REQUEST = ParsedRequest(None, ())


def containers(pod: Json) -> tuple[Container, ...]:
    """Init containers first, then the others, in the pod's order, without amounts that ask for nothing.
    Entries that are not objects are skipped."""
    spec = mapping(pod.get("spec"))
    found = []
    for field in _CONTAINERS:
        for index, raw in enumerate(sequence(spec.get(field))):
            if type(raw) is dict or isinstance(raw, Mapping):
                init = field == "initContainers" and raw.get("restartPolicy") != "Always"
                asking = _asking(raw)
                found.append(Container(f"spec.{field}[{index}]", str(raw.get("name", "")), init, asking))
    return tuple(found)


def _asking(raw: Json) -> Json:
    given = mapping(raw.get("resources"))
    resources = without_zeros(given)
    return raw if resources is given else {**raw, "resources": resources}


def request_part(pod: Json) -> Json:
    """The part of a pod that `parse` reads. Two pods with equal parts have equal requests; the pods of one
    template have equal parts."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    fields = {field: [_read_part(each) for each in sequence(spec.get(field))] for field in _CONTAINERS}
    labels = mapping(metadata.get("labels"))
    governed = {names.GOVERNED: "true"} if is_governed(labels) else {}
    return {
        "metadata": {
            "annotations": _read_names(metadata.get("annotations")),
            "labels": {**_read_names(labels), **governed},
        },
        "spec": {"schedulerName": spec.get("schedulerName"), **fields},
    }


def claims_part(pod: Json) -> Json:
    """The part of a pod by which its claims are read."""
    spec = mapping(pod.get("spec"))
    fields = {field: [_read_part(each) for each in sequence(spec.get(field))] for field in _CONTAINERS}
    return {"spec": {"resourceClaims": sequence(spec.get("resourceClaims")), **fields}}


def _read_part(container: object) -> Json | None:
    """None, which keeps the place, for what is no container: paths have indexes."""
    if type(container) is not dict and not isinstance(container, Mapping):
        return None
    return {key: container[key] for key in _OF_CONTAINERS if key in container}


def _read_names(given: object) -> Json:
    """The annotations or labels that are read: nearly always none."""
    entries = mapping(given)
    if _REQUEST_NAMES.isdisjoint(entries):
        return {}
    return {name: entries[name] for name in entries if name in _REQUEST_NAMES}


def parse(pod: Json) -> ParsedRequest:
    """The pod's request, or all its violations. Never raises, whatever the JSON.

    A pod with violations has no request: a malformed request is not granted in part. Claims, and accelerators
    that no dialect reads, count where admission has governed the pod for them.
    """
    return _parse(pod, containers(pod))


def _parse(pod: Json, found: tuple[Container, ...]) -> ParsedRequest:
    metadata = mapping(pod.get("metadata"))
    annotations, labels = _read_names(metadata.get("annotations")), _read_names(metadata.get("labels"))
    facts = PodFacts(annotations, labels, found, str(mapping(pod.get("spec")).get("schedulerName")))
    marked = _marked(facts)
    read = [_read_container(container, bool(marked)) for container in found]
    if not marked and all(each is _NO_GPU for each in read):
        return _recorded(found, annotations) if is_governed(mapping(metadata.get("labels"))) else NO_REQUEST
    asks = tuple(ask for _, ask, _ in read if ask is not None)
    dialects = _not_served({each.name for them, _, _ in read for each in them}.union(marked))
    violations = [violation for _, _, broken in read for violation in broken]
    if len(dialects) > 1:
        violations.append(_one_dialect(found, read, marked))
    elif marked and not violations:
        asks, violations = _marked_asks(dialects, facts)
    if not asks and not violations:
        return NO_REQUEST
    constrained = not _CONSTRAINTS.isdisjoint(facts.annotations)
    if constrained:
        asking = {each.name for each, (them, _, _) in zip(found, read, strict=True) if them}
        violations += _policy_violations(facts.annotations)
        violations += constraint_violations(
            facts.annotations, asks, asking.union(each.container for each in asks)
        )
    for dialect in sorted(dialects):
        request = _request(dialect, asks, facts.annotations if constrained else {})
        constrain = BY_NAME[dialect].constrain
        answer = request if constrain is None else constrain(request, facts)
        if isinstance(answer, GPURequest):
            request = answer
        else:
            violations += answer
    if violations:
        return ParsedRequest(None, tuple(violations))
    if names.CLAIMS in annotations and is_governed(mapping(metadata.get("labels"))):
        request = _beside_recorded(request, annotations)
    return ParsedRequest(request, ())


def _beside_recorded(request: GPURequest, annotations: Json) -> GPURequest:
    """The request of a plugin's cards, beside claims that admission did not know."""
    is_unknown = annotations[names.CLAIMS] == of_claims.UNKNOWN and _are_plugins(request)
    return replace(request, are_claims_known=False) if is_unknown else request


def parse_new(
    pod: Json,
    unknown: UnknownAccelerators,
    known: KnownClaims | None = None,
    namespace: str = "",
    named: Collection[str] = (),
) -> ParsedRequest:
    """As `parse`, of a pod that is about to be admitted to ``namespace``. ``unknown``: what `_settings` says
    of accelerators that no dialect reads; ``known``: by what its claims are read, None: they are not;
    ``named``: the accelerators that `_settings` name."""
    found = containers(pod)
    by_limits = _parse_limits(pod, unknown, found, named)
    asked = None if known is None else known.asked_by(pod, namespace, found)
    return by_limits if asked is None else _with_claims(by_limits, asked, pod)


def _with_claims(by_limits: ParsedRequest, asked: PodClaims, pod: Json) -> ParsedRequest:
    """The request of a pod that has claims too."""
    fixed = tuple(each for each in asked.violations if each.rule != "claim-size")
    if by_limits.violations or fixed:
        return ParsedRequest(None, (*by_limits.violations, *asked.violations))
    if not asked.devices and not asked.missing:
        return by_limits
    if by_limits.request is not None:
        if not asked.devices and not asked.violations and _are_plugins(by_limits.request):
            return ParsedRequest(replace(by_limits.request, are_claims_known=False), ())
        return ParsedRequest(None, (*asked.violations, _beside_claims(by_limits.request, asked, pod)))
    devices = None if asked.missing else asked.devices
    return ParsedRequest(of_claims.request_of(devices), asked.violations)


def _are_plugins(request: GPURequest) -> bool:
    """Whether it is of whole cards or devices, which their node's plugin gives out by itself."""
    return BY_NAME[request.dialect].plugin_chooses or request.dialect == DEVICE


def _beside_claims(request: GPURequest, asked: PodClaims, pod: Json) -> Violation:
    has_claims = bool(mapping(pod.get("spec")).get("resourceClaims"))
    problem = f"the pod requests cards of dialect {request.dialect} too, and no scheduler places both"
    if asked.missing:
        problem = f"{problem}; whether its claims are of GPUs is not known: {first_of(asked.missing, 3)}"
    return Violation(
        "several-dialects",
        "spec.resourceClaims" if has_claims else "spec.containers",
        "",
        problem,
        "one kind of devices in a pod",
        "a pod for each",
    )


def _parse_limits(
    pod: Json, unknown: UnknownAccelerators, found: tuple[Container, ...], named: Collection[str]
) -> ParsedRequest:
    parsed = _parse(pod, found)
    if parsed.request is not None and parsed.request.dialect == of_claims.NAME:
        parsed = _devices(found, named)  # what is recorded counts only once the pod is admitted
    elif parsed.request is not None and not parsed.request.are_claims_known:
        parsed = ParsedRequest(replace(parsed.request, are_claims_known=True), ())
    asking = () if unknown == "pass" else device_containers(found, named)
    if not asking:
        return parsed
    of_cards = parsed if parsed.request is None or parsed.request.dialect != DEVICE else NO_REQUEST
    if unknown == "refuse":
        return ParsedRequest(None, (*of_cards.violations, *refused(asking)))
    if of_cards.request is not None:
        return ParsedRequest(None, (beside_another(asking, of_cards.request.dialect),))
    return of_cards if of_cards.violations else _devices(found, named)


def one_container(
    container: Container,
) -> tuple[tuple[Dialect, ...], ContainerAsk | None, tuple[Violation, ...]]:
    """The dialects of one container's limits, what it requests, and its mistakes; as if it were alone."""
    return _read_container(container, False)


def _recorded(found: Sequence[Container], annotations: Json) -> ParsedRequest:
    """What admission has governed a pod for that requests no cards in a dialect."""
    request, named = of_claims.recorded(annotations), recorded(annotations)
    if request is None or (request == of_claims.request_of(0) and device_containers(found, named)):
        return _devices(found, named)  # claims of no GPUs are beside its devices
    if request == of_claims.request_of(None) and (devices := _devices(found, named).request) is not None:
        return ParsedRequest(replace(devices, are_claims_known=False), ())
    return ParsedRequest(request, ())


def _devices(found: Sequence[Container], named: Collection[str]) -> ParsedRequest:
    """The request of a pod whose devices are metered; no request where it has none."""
    asking = device_containers(found, named)
    if not asking:
        return NO_REQUEST
    answer = metered(asking)
    return ParsedRequest(answer, ()) if isinstance(answer, GPURequest) else ParsedRequest(None, answer)


def parse_stored(pod: Json) -> ParsedRequest:
    """As `parse`, of a pod that was admitted: annotations that a user changes later cannot make a running pod
    unreadable."""
    parsed = parse(pod)
    if not parsed.violations:
        return parsed
    bare = {**mapping(pod.get("metadata")), "annotations": {}}
    of_limits = parse({**pod, "metadata": bare})
    return of_limits if of_limits.request is not None else parsed


def canonical(request: GPURequest) -> str:
    """The annotation ``bursar.dev/request``: container -> amounts on each of its distinct cards, sorted,
    without blanks.

    It has no version, because it is only for people and reports. Every role reads the request from the pod's
    spec.
    """
    amounts = {each.container: _canonical(each.ask) for each in request.asks}
    return json.dumps(amounts, sort_keys=True, separators=(",", ":"))


def _canonical(ask: Ask) -> Json:
    amounts: dict[str, object] = {
        "devices": ask.devices,
        "memory_mib": ask.memory_mib,
        "share_milli": ask.share_milli,
    }
    if ask.memory_milli:
        amounts["memory_milli"] = ask.memory_milli
    if ask.resources:
        amounts["resources"] = dict(ask.resources)
    if ask.device:
        amounts["device"] = ask.device
    return amounts


_CONTAINERS = ("initContainers", "containers")
_OF_CONTAINERS = ("name", "restartPolicy", "resources")  # what is read of a container
_CONSTRAINTS = frozenset(names.USER_ANNOTATIONS)
# the annotations and labels that can say something of a request
_REQUEST_NAMES = _CONSTRAINTS.union(
    BY_ANNOTATION,
    BY_LABEL,
    *(dialect.reads or () for dialect in DIALECTS),
    (names.CLAIMS, names.ACCELERATORS),
)
_SUPPORTED = tuple(name for dialect in DIALECTS for name in dialect.resources)
_NEAR = 0.85  # of `difflib`; less near, a guess is more often wrong than right
_SHORT = 512  # longer resource lists are not cached, to limit the cache's memory


@lru_cache(maxsize=1024)
def _dialects_of(resources: tuple[str, ...]) -> tuple[tuple[Dialect, ...], bool]:
    """The dialects of these resources, and whether there is a GPU resource of none of them. Cached: nearly
    all containers have the same few resources."""
    dialects = tuple(dialect for dialect in DIALECTS if _has_any(dialect, resources))
    shared = {name for dialect in dialects for name in dialect.shared}
    dialects = tuple(
        dialect
        for dialect in dialects
        if dialect.prefix or any(name in resources and name not in shared for name in dialect.resources)
    )
    known = {name for dialect in dialects for name in (*dialect.resources, *dialect.shared)}
    if any(dialect.needs_placement for dialect in dialects):
        known.add(names.GPU_PLACEMENT)
    if dialects:
        known.add(names.CARD_MILLIONTHS)  # which governing writes, or removes
    prefixes = tuple(dialect.prefix for dialect in dialects if dialect.prefix)
    return dialects, any(
        GPU_RESOURCE_PATTERN.match(name)
        for name in resources
        if name not in known and not name.startswith(prefixes)
    )


def _has_any(dialect: Dialect, resources: tuple[str, ...]) -> bool:
    if not set(dialect.resources).isdisjoint(resources):
        return True
    return bool(dialect.prefix) and any(name.startswith(dialect.prefix) for name in resources)


class _Place(NamedTuple):
    """Where a container is in its pod."""

    path: str
    name: str
    init: bool


_Read = tuple[tuple[Dialect, ...], ContainerAsk | None, tuple[Violation, ...]]
_NO_GPU: _Read = ((), None, ())


def _marked(facts: PodFacts) -> Mapping[str, str]:
    """The dialects in which the pod's annotations or labels ask for something, each with that field: nearly
    always none. Those of another scheduler count only where the pod is left to that scheduler."""
    if BY_ANNOTATION.keys().isdisjoint(facts.annotations) and BY_LABEL.keys().isdisjoint(facts.labels):
        return {}
    annotations = {
        BY_ANNOTATION[name].name: f"metadata.annotations[{name}]"
        for name in facts.annotations
        if name in BY_ANNOTATION
    }
    labels = {BY_LABEL[name].name: f"metadata.labels[{name}]" for name in facts.labels if name in BY_LABEL}
    return {
        name: field
        for name, field in {**annotations, **labels}.items()
        if not BY_NAME[name].placed_by_others or facts.scheduler in BY_NAME[name].schedulers
        if _marked_asks([name], facts) != ((), [])
    }


def _marked_asks(
    dialects: Collection[str], facts: PodFacts
) -> tuple[tuple[ContainerAsk, ...], list[Violation]]:
    """What a pod requests whose request is in annotations or labels, or its mistakes."""
    (dialect,) = dialects
    read_pod = BY_NAME[dialect].read_pod
    if read_pod is None:
        raise AssertionError(f"dialect {dialect} has annotations or labels, but does not read pods")
    found = read_pod(facts)
    asks = tuple(each for each in found if isinstance(each, ContainerAsk))
    return asks, [each for each in found if isinstance(each, Violation)]


def _read_container(container: Container, marked: bool) -> _Read:
    """``marked``: the pod's annotations or labels name a dialect."""
    given = mapping(container.raw.get("resources"))
    limits, requests = mapping(given.get("limits")), mapping(given.get("requests"))
    if not limits and not requests:
        return _NO_GPU
    place = _Place(container.path, container.name, container.init)
    texts = (*place[:2], *limits, *requests, *limits.values(), *requests.values())
    if set(map(type, texts)) == {str} and sum(map(len, texts)) <= _SHORT:
        return _read_texts(place, marked, tuple(limits.items()), tuple(requests.items()))
    return _read_amounts(place, marked, limits, requests)


@lru_cache(maxsize=1024)
def _read_texts(
    place: _Place, marked: bool, limits: tuple[tuple[str, str], ...], requests: tuple[tuple[str, str], ...]
) -> _Read:
    """Cached: most pods are made from few templates."""
    return _read_amounts(place, marked, dict(limits), dict(requests))


def _read_amounts(place: _Place, marked: bool, limits: Json, requests: Json) -> _Read:
    amounts = {**requests, **limits}
    resources = tuple(amounts)
    cached = sum(map(len, resources)) <= _SHORT
    dialects, unsupported = (_dialects_of if cached else _dialects_of.__wrapped__)(resources)
    if not dialects and not unsupported:
        return _NO_GPU  # most containers of most pods
    if marked and names.GPU_PLACEMENT in amounts:
        amounts = {name: amount for name, amount in amounts.items() if name != names.GPU_PLACEMENT}
    violations = _unsupported(place, amounts) if unsupported else []
    for dialect in dialects:
        violations += _differing(place, dialect, limits, requests)
    if len(dialects) != 1 or violations:
        return dialects, None, tuple(violations)
    dialect = dialects[0]
    answer = dialect.read(ContainerLimits(f"{place.path}.resources.limits", place.name, limits))
    if isinstance(answer, Ask):
        return dialects, ContainerAsk(place.name, place.init, answer), ()
    return dialects, None, answer


def _not_served(dialects: set[str]) -> set[str]:
    """Without those whose requests another of them reads as its own."""
    if len(dialects) < 2:
        return dialects
    return {name for name in dialects if not any(name in BY_NAME[each].serves for each in dialects)}


def _unsupported(place: _Place, amounts: Json) -> list[Violation]:
    return [
        Violation(
            rule="dialect-not-spoken",
            path=f"{place.path}.resources.limits[{name}]",
            got="",
            problem=f"unsupported GPU resource {name}" + (f" (did you mean {meant}?)" if meant else ""),
            allowed="the resources in docs/requests.md and docs/dialects.md",
            example='bursar.dev/gpu-percent: "50"',
        )
        for name, meant in ((each, _meant(each)) for each in amounts)
        if GPU_RESOURCE_PATTERN.match(name) and not is_reviewed(name)
    ]


@lru_cache(maxsize=256)
def _meant(resource: str) -> str:
    """The supported resource that was probably meant by a misspelt one; "" if none is near."""
    return next(iter(get_close_matches(resource, _SUPPORTED, 1, _NEAR)), "")


def _differing(place: _Place, dialect: Dialect, limits: Json, requests: Json) -> list[Violation]:
    """Kubernetes does not overcommit extended resources: a request, if given, must equal the limit."""
    return [
        Violation(
            rule="request-differs-from-limit",
            path=f"{place.path}.resources.requests[{name}]",
            got=f"request {shown(requests[name])} and "
            + (f"limit {shown(limits[name])}" if name in limits else "no limit"),
            problem="a GPU request must equal its limit",
            allowed="the limit alone, or a request of the same amount",
            example=f'limits: {{{name}: "{dialect.examples.get(name, "1")}"}}',
        )
        for name in (*dialect.resources, *dialect.shared, *_prefixed(dialect, requests))
        if name in requests and (name not in limits or not same_amount(requests[name], limits[name]))
    ]


def _prefixed(dialect: Dialect, requests: Json) -> list[str]:
    """The requests that belong to the dialect by its prefix alone."""
    if not dialect.prefix:
        return []
    return [name for name in requests if name.startswith(dialect.prefix) and name not in dialect.resources]


def _one_dialect(found: Sequence[Container], read: Sequence[_Read], marked: Mapping[str, str]) -> Violation:
    named = [
        f"{each.name} in container {container.name}"
        for container, (dialects, _, _) in zip(found, read, strict=True)
        for each in dialects
    ]
    named += [f"{dialect} in {field}" for dialect, field in marked.items()]
    return Violation(
        rule="several-dialects",
        path="spec.containers",
        got=first_of(named, _MAX_LISTED),
        problem="all containers of a pod must use the same GPU dialect",
        allowed="one of " + ", ".join(dialect.name for dialect in DIALECTS),
        example='bursar.dev/gpu-percent: "50" in each container',
    )


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
    if not annotations:  # nearly always
        return GPURequest(dialect=dialect, asks=asks, same_gpu=_on_one_card(dialect, asks))
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
