"""Accelerators that no dialect reads: which a pod requests, what it requests where they are metered, and why
it is refused where they are not.

Where they are metered admission governs the pod, and this label, which only admission writes, is what makes
ledger and extender count its devices. So a pod stays what it was when it was admitted, whatever `_settings`
says later.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.accelerators import (
    DOMAINS,
    accelerator_of,
    accelerators_in,
    is_amount,
    is_extended,
    without_amounts,
)
from timekeeper.core.dialects import GPU_RESOURCE_PATTERN, may_be_device
from timekeeper.core.dialects.amounts import Container, ContainerLimits
from timekeeper.core.dialects.others import device
from timekeeper.core.dialects.others.device import read_devices
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import same_amount
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation, shown

DIALECT = device.DIALECT.name
_SHORT = 512  # longer resource lists are not cached, to limit the cache's memory


@dataclass(frozen=True, slots=True)
class DeviceContainer:
    """A container that requests accelerators of no dialect, by these resources."""

    container: Container
    resources: tuple[str, ...]


def device_containers(found: Iterable[Container], named: Collection[str] = ()) -> tuple[DeviceContainer, ...]:
    """Those of the containers that request accelerators of no dialect; nearly always none. ``named``: further
    resources that count as accelerators, by the settings."""
    asking = ((container, candidates(mapping(container.raw.get("resources")))) for container in found)
    pairs = (
        (container, without_amounts(accelerators_in(resources, named))) for container, resources in asking
    )
    return tuple(DeviceContainer(container, resources) for container, resources in pairs if resources)


def candidates(resources: Json) -> tuple[str, ...]:
    """The resources of a container that may be devices: extended ones that no dialect reads, nor amounts."""
    asked = (*mapping(resources.get("limits")), *mapping(resources.get("requests")))
    if not asked:
        return ()
    return (_candidates if sum(map(len, asked)) <= _SHORT else _candidates.__wrapped__)(asked)


@lru_cache(maxsize=1024)
def _candidates(resources: tuple[str, ...]) -> tuple[str, ...]:
    """Cached: nearly all containers have the same few resources."""
    return tuple(filter(may_be_device, dict.fromkeys(resources)))


def unclassified(resources: Iterable[str], named: Collection[str] = ()) -> tuple[str, ...]:
    """Those of the resources of which nothing says whether they are accelerators: no dialect, no table, no
    setting (``named``). Amounts beside a known vendor's devices are not asked about."""
    return tuple(
        name
        for name in resources
        if is_extended(name)
        and name not in named
        and not GPU_RESOURCE_PATTERN.match(name)
        and accelerator_of(name) is None
        and not (is_amount(name) and name.partition("/")[0] in DOMAINS)
    )


def is_governed(labels: Json) -> bool:
    """Whether admission has governed the pod with these labels."""
    return labels.get(names.GOVERNED) == "true"


def metered(asking: Iterable[DeviceContainer]) -> GPURequest | tuple[Violation, ...]:
    """The request of a pod whose devices are metered: each is a whole card of a model, the resource's
    name."""
    asks: list[ContainerAsk] = []
    broken: list[Violation] = []
    for each in asking:
        answer = _read(each)
        if isinstance(answer, Ask):
            asks.append(ContainerAsk(each.container.name, each.container.init, answer))
        else:
            broken += answer
    return tuple(broken) or GPURequest(dialect=DIALECT, asks=tuple(asks))


def _read(asking: DeviceContainer) -> Ask | tuple[Violation, ...]:
    given = mapping(asking.container.raw.get("resources"))
    requests, limits = mapping(given.get("requests")), asking.container.limits
    first, *others = asking.resources
    broken = (*_differing(asking, requests, limits), *(_second(asking, first, each) for each in others))
    if broken:
        return broken
    path = f"{asking.container.path}.resources.limits"
    answer = read_devices(ContainerLimits(path, asking.container.name, limits), first)
    return answer if isinstance(answer, Ask) else (answer,)


def _differing(
    asking: DeviceContainer, requests: Mapping[str, object], limits: Mapping[str, object]
) -> Iterator[Violation]:
    for name in asking.resources:
        if name in requests and (name not in limits or not same_amount(requests[name], limits[name])):
            yield Violation(
                "request-differs-from-limit",
                f"{asking.container.path}.resources.requests[{name}]",
                f"request {shown(requests[name])} and "
                + (f"limit {shown(limits[name])}" if name in limits else "no limit"),
                "a request of devices must equal its limit",
                "the limit alone, or a request of the same amount",
                f'limits: {{{name}: "1"}}',
            )


def _second(asking: DeviceContainer, first: str, name: str) -> Violation:
    return Violation(
        "combination",
        f"{asking.container.path}.resources.limits[{name}]",
        shown(asking.container.limits.get(name, "")),
        f"the container requests {first} too, and both may count the same devices",
        "one of them in a container",
        f'{first}: "1" alone',
    )


def refused(asking: Iterable[DeviceContainer]) -> tuple[Violation, ...]:
    """A violation for each resource, where `_settings` refuses them."""
    return tuple(
        Violation(
            "dialect-not-spoken",
            f"{each.container.path}.resources.limits[{name}]",
            "",
            f"no dialect reads {described(name)}, so it would be used outside every budget",
            "resources of a dialect; an administrator may set unknownAccelerators: meter, or pass",
            "unknownAccelerators: meter in _settings",
        )
        for each in asking
        for name in each.resources
    )


def beside_another(asking: Iterable[DeviceContainer], dialect: str) -> Violation:
    """The violation of a pod that requests cards of a dialect too, where devices are metered."""
    first = next(iter(asking))
    return Violation(
        "several-dialects",
        f"{first.container.path}.resources.limits[{first.resources[0]}]",
        "",
        f"the pod requests cards of dialect {dialect} too, and no scheduler places both",
        "one kind of devices in a pod",
        "a pod for each",
    )


def described(resource: str) -> str:
    """The resource, and in brackets what it is, for people."""
    row = accelerator_of(resource)
    return resource if row is None else f"{resource} ({row.vendor}: {row.device})"
