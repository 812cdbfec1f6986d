"""What a pod asks for by device claims, before anything is allocated: a number of GPUs at most.

A pod names claims and templates of claims, and kube-scheduler makes a claim for a limit that names a
DeviceClass. Which device is allocated is known only afterwards, so a request counts with the most expensive
of its alternatives, and each GPU as a whole one. Source: k8s.io/api/resource/v1; kubernetes/kubernetes,
`plugin/pkg/scheduler/framework/plugins/dynamicresources`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern

from timekeeper.core.dialects.amounts import Container
from timekeeper.core.dialects.moments import sum_of_peaks
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import integral, thousandths
from timekeeper.core.request.device_classes import (
    CONFIG_MAP,
    DEFAULTS,
    NO_DRIVERS,
    ClassSettings,
    DeviceClass,
    gpu_resources,
    kind_of,
    read_class,
    read_settings,
    why_unknown,
)
from timekeeper.core.violation import Violation, shown

EXPLICIT = "deviceclass.resource.kubernetes.io/"  # a limit: the name of a class follows
CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
MAX_DEVICES = 32  # of a claim: its status holds no more (`AllocationResultsMaxSize`)
MAX_CLAIMS = 256  # of a pod; Kubernetes has no limit
MAX_ALTERNATIVES = 64  # of a claim that is read, of 256 that Kubernetes takes
MAX_NAMES = 4096  # characters of all its classes' names

_CHARGED = "a class whose driver allocates no GPUs, or one of GPUs that Bursar knows"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Devices of one class. ``count``: how many; None: all that a node has; ``gives``: it asks for less than
    nothing of a capacity, which kube-scheduler would add to what others may have of the device."""

    device_class: str
    count: int | None = 1
    admin: bool = False  # access for administrators, which takes the device from no pod
    gives: bool = False


Requests = tuple[tuple[Alternative, ...], ...]  # of a claim; one alternative of each is allocated
# no class can have this name, so that a pod with such a claim waits
TOO_LONG: Requests = ((Alternative("(its claim has too many alternatives)"),),)


def read_requests(spec: Json) -> Requests:
    """The requests of a claim's spec; of one that is long enough to fill a worker's memory, if there are many
    like it, `TOO_LONG`. Never raises; what cannot be read names the class ""."""
    found = []
    for raw in map(mapping, sequence(mapping(spec.get("devices")).get("requests"))):
        several = sequence(raw.get("firstAvailable"))
        # before v1 the fields of `exactly` were those of the request
        found.append(tuple(map(_alternative, several or [raw.get("exactly") or raw])))
    every = [each for request in found for each in request]
    names = {each.device_class for each in every}
    is_long = len(every) > MAX_ALTERNATIVES or sum(map(len, names)) > MAX_NAMES
    return TOO_LONG if is_long else _shared(tuple(found))


def read_template(raw: Json) -> Requests:
    """The requests of the claims that are made from a ResourceClaimTemplate. Never raises."""
    return read_requests(mapping(mapping(raw.get("spec")).get("spec")))


def namespaced(raw: Json) -> "NamespacedName":
    """The namespace and the name of an object."""
    metadata = mapping(raw.get("metadata"))
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


@lru_cache(maxsize=1_000)
def _shared(requests: Requests) -> Requests:
    """One value for all claims with equal requests: most are made from few templates."""
    return requests


def _alternative(raw: object) -> Alternative:
    given = mapping(raw)
    count = given.get("count", 1)
    every = given.get("allocationMode") == "All"
    return Alternative(
        intern(str(given.get("deviceClassName") or "")),
        None if every else count if isinstance(count, int) and not isinstance(count, bool) else 1,
        given.get("adminAccess") is True,
        any((thousandths(each) or 0) < 0 for each in _capacities(given)),
    )


def _capacities(request: Json) -> Iterable[object]:
    return mapping(mapping(request.get("capacity")).get("requests")).values()


@dataclass(frozen=True, slots=True)
class PodClaims:
    """What a pod asks for by claims. ``devices``: the GPUs that it may get at most; ``missing``: claims,
    templates and classes that are not known (yet), so that ``devices`` may be too low; ``violations``: what
    Bursar does not take."""

    devices: int = 0
    missing: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()


NamespacedName = tuple[str, str]


@dataclass(slots=True, eq=False)
class KnownClaims:
    """The objects of the API server by which claims are read; another thread may replace the members.
    ``resources``: those for which kube-scheduler may allocate GPUs; ``is_served``: the API server has
    ``resource.k8s.io/v1``; ``reuses``: as `reuses_devices` has it."""

    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    claims: Mapping[NamespacedName, Requests] = field(default_factory=dict)
    templates: Mapping[NamespacedName, Requests] = field(default_factory=dict)
    settings: ClassSettings = DEFAULTS
    resources: frozenset[str] = frozenset()
    is_served: bool = True
    reuses: bool = True
    drivers: Callable[[], Mapping[str, bool]] = lambda: NO_DRIVERS  # those of `_settings`, as they are now

    def read_version(self, said: Json) -> None:
        """``said``: of the API server, which may be upgraded."""
        self.reuses = reuses_devices(said)

    def beside(self, objects: Iterable[Json], namespace: str) -> "KnownClaims":
        """The same with these claims and templates of the namespace, which do not exist."""
        claims, templates = dict(self.claims), dict(self.templates)
        for each in objects:
            key = namespace, namespaced(each)[1]
            if each.get("kind") == TEMPLATE:
                templates[key] = read_template(each)
            elif each.get("kind") == CLAIM:
                claims[key] = read_requests(mapping(each.get("spec")))
        return replace(self, claims=claims, templates=templates)

    def asked_by(self, pod: Json, namespace: str, found: Sequence[Container]) -> PodClaims | None:
        """What the pod asks for; None: it has no claims and no limits of classes. ``found``: its containers;
        ``namespace``: where it is, or will be."""
        named = sequence(mapping(pod.get("spec")).get("resourceClaims"))
        limits = [(container, *limit) for container in found for limit in _explicit(container)]
        if not named and not limits:
            return None  # nearly always
        if not self.is_served:
            return PodClaims(violations=(_not_served(named),))
        if len(named) > MAX_CLAIMS:
            return PodClaims(violations=(_many_claims(len(named)),))
        of_claims = _joined(self._of_claim(raw, index, namespace) for index, raw in enumerate(named))
        of_limits = [(name, each, self._of_limit(each, name, amount)) for each, name, amount in limits]
        most = sum_of_peaks(
            (name, each.init and self.reuses, asked.devices) for name, each, asked in of_limits
        )
        every = _joined((of_claims, *(asked for *_, asked in of_limits)))
        return PodClaims(of_claims.devices + most, every.missing, every.violations)

    def devices_of(self, requests: Requests) -> int:
        """How many GPUs a claim with these requests may get at most, as far as its classes are known."""
        return sum(self._of_request(alternatives, "").devices for alternatives in requests)

    def _of_claim(self, raw: object, index: int, namespace: str) -> PodClaims:
        entry, path = mapping(raw), f"spec.resourceClaims[{index}]"
        for member, kind, known in (
            ("resourceClaimName", CLAIM, self.claims),
            ("resourceClaimTemplateName", TEMPLATE, self.templates),
        ):
            name = entry.get(member)
            if isinstance(name, str) and name:
                requests = known.get((namespace, name))
                if requests is None:
                    return PodClaims(missing=(f"{kind} {name}",))
                return _joined(self._of_request(each, f"{path}.{member}") for each in requests)
        return PodClaims(missing=(f"{path}: neither a claim nor a template",))

    def _of_limit(self, container: Container, name: str, amount: object) -> PodClaims:
        path = f"{container.path}.resources.limits[{EXPLICIT}{name}]"
        return self._of_request((Alternative(name, integral(amount) or 0),), path)

    def _of_request(self, alternatives: Iterable[Alternative], path: str) -> PodClaims:
        """The most expensive of the alternatives: of several, any may be allocated."""
        every = [self._of_class(each, path) for each in alternatives if not each.admin]
        return PodClaims(
            max((each.devices for each in every), default=0),
            tuple(text for each in every for text in each.missing),
            tuple(violation for each in every for violation in each.violations),
        )

    def _of_class(self, one: Alternative, path: str) -> PodClaims:
        known = self.classes.get(one.device_class)
        if known is None:
            return PodClaims(missing=(f"DeviceClass {one.device_class}",))
        kind = kind_of(known, self.settings, self.drivers())
        if kind == "other" or (kind == "unknown" and self.settings.unknown == "free"):
            return PodClaims()
        if kind == "unknown":
            return PodClaims(violations=(_unknown(known, path),))
        if one.gives:
            return PodClaims(violations=(_negative(known, path),))
        if one.count is None:
            return PodClaims(MAX_DEVICES, violations=(_all(known, path),))
        if one.count > MAX_DEVICES:
            return PodClaims(MAX_DEVICES, violations=(_too_many(one.count, path),))
        return PodClaims(one.count)


NO_OBJECTS = KnownClaims()
_REUSES = (1, 35)


def reuses_devices(version: Json) -> bool:
    """Whether kube-scheduler lets later containers have the devices that it allocates for the limits of an
    init container; before Kubernetes 1.35 it requests them for each container. ``version``: what the API
    server says at ``/version``; False where it does not say it, for a pod that was judged for fewer devices
    than its claim holds is evicted."""
    major, minor = (str(version.get(part, "")).rstrip("+") for part in ("major", "minor"))
    is_known = major.isdecimal() and minor.isdecimal()
    return is_known and (int(major), int(minor)) >= _REUSES


def known_by(
    objects: Iterable[Json], namespace: str, drivers: Mapping[str, bool], supposed: Iterable[DeviceClass] = ()
) -> KnownClaims:
    """What claims, templates, DeviceClasses and the ConfigMap of their settings say. ``namespace``: of those
    that name none; ``drivers``: those of `_settings`; ``supposed``: further classes."""
    of_kind: dict[str, list[Json]] = {}
    for raw in objects:
        of_kind.setdefault(str(raw.get("kind")), []).append(raw)
    classes = {known.name: known for known in (*supposed, *map(read_class, of_kind.get("DeviceClass", ())))}
    maps = (raw for raw in of_kind.get("ConfigMap", ()) if namespaced(raw)[1] == CONFIG_MAP)
    settings = next((read_settings(mapping(raw.get("data"))) for raw in maps), DEFAULTS)
    resources = gpu_resources(classes.values(), settings, drivers)
    known = KnownClaims(classes, settings=settings, resources=resources, drivers=lambda: drivers)
    of_namespace: dict[str, list[Json]] = {}
    for raw in (*of_kind.get(CLAIM, ()), *of_kind.get(TEMPLATE, ())):
        of_namespace.setdefault(namespaced(raw)[0] or namespace, []).append(raw)
    for name, claims in of_namespace.items():
        known = known.beside(claims, name)
    return known


def _joined(parts: Iterable[PodClaims]) -> PodClaims:
    every = tuple(parts)
    if len(every) == 1:
        return every[0]
    return PodClaims(
        sum(each.devices for each in every),
        tuple(dict.fromkeys(text for each in every for text in each.missing)),
        tuple(violation for each in every for violation in each.violations),
    )


def _explicit(container: Container) -> Iterator[tuple[str, object]]:
    """The classes that the container's limits name, with the amounts."""
    for resource, amount in container.limits.items():
        if resource.startswith(EXPLICIT):
            yield resource.removeprefix(EXPLICIT), amount


def _unknown(known: DeviceClass, path: str) -> Violation:
    return Violation(
        "device-claim",
        path,
        shown(known.name),
        f"it is not known whether this device class allocates GPUs: {why_unknown(known)}",
        f"{_CHARGED}; an administrator may name its driver in drivers of _settings, or in gpuDrivers"
        " or noGPUDrivers of the ConfigMap bursar-device-classes",
        "deviceClassName: gpu.nvidia.com",
    )


def _many_claims(number: int) -> Violation:
    return Violation(
        "device-claim",
        "spec.resourceClaims",
        f"{number} claims",
        "while a claim is not known, the pod and all its claims are kept in memory",
        f"at most {MAX_CLAIMS} claims in a pod; one claim may have several requests",
        "resourceClaims: [{name: gpus, resourceClaimTemplateName: gpus}]",
    )


def _negative(known: DeviceClass, path: str) -> Violation:
    return Violation(
        "device-claim",
        path,
        "capacity.requests below 0",
        f"of a device of class {known.name} others would be allocated more than it has",
        "capacities from 0",
        "capacity: {requests: {memory: 10Gi}}",
    )


def _all(known: DeviceClass, path: str) -> Violation:
    return Violation(
        "claim-size",
        path,
        "allocationMode: All",
        f"all GPUs of a node of class {known.name} are a number that is not known before they are allocated",
        f"a count from 1 to {MAX_DEVICES}",
        "count: 8",
    )


def _too_many(count: int, path: str) -> Violation:
    return Violation(
        "claim-size",
        path,
        shown(f"count: {count}"),
        "no claim is allocated so many devices",
        f"a count from 1 to {MAX_DEVICES}",
        "count: 8",
    )


def _not_served(named: Sequence[object]) -> Violation:
    return Violation(
        "device-claim",
        "spec.resourceClaims" if named else "spec.containers",
        "",
        "the API server does not serve resource.k8s.io/v1, so it is not known what the claims allocate",
        "a GPU request in resources.limits",
        'bursar.dev/gpu-percent: "50"',
    )
