"""What a pod that is not governed holds of GPUs, by its spec and by the annotations of its own scheduler.

Nothing under ``bursar.dev/`` in its metadata counts: only admission's word is good there, and admission has
not looked at this pod. Whatever can be read is charged; what cannot is charged by a stated assumption.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of, without_amounts
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_MEMORY_MIB, Container
from timekeeper.core.dialects.nvidia_parts import SHARED
from timekeeper.core.dialects.others.claims import NAME as CLAIMS
from timekeeper.core.dialects.others.device import devices_of
from timekeeper.core.dialects.others.kai import DEVICES as KAI_DEVICES
from timekeeper.core.dialects.others.kai import DIALECT as KAI
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import Mode
from timekeeper.core.quantity import integral
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.devices import candidates
from timekeeper.core.request.request import ParsedRequest, containers, one_container, parse, parse_stored
from timekeeper.core.request.runtime_plugins import FRACTIOND
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk, GPURequest

# KAI's fractions: of one container, whose name stands between one of these prefixes and a suffix
FRACTIONING = (FRACTIOND, "kai.scheduler/container.")
# a quantity; the first that is there counts, as KAI places by it: a container has more than its request
# only while others leave it
_MEMORY = (".gpu-memory.request", ".gpu-memory.limit")
_CARDS = ".gpus.devices"  # UUIDs or indexes, by commas
_MIB = 1 << 20
_ON_A_CARD = frozenset((SHARED, *(name for each in DIALECTS if each.vgpu for name in each.vgpu.amounts)))


@dataclass(frozen=True, slots=True)
class MeteredRequest:
    """What a pod holds. ``doubt``: what of it is an assumption, and why; "": nothing.

    Its devices are those of every resource that might be a device's: `of_devices` keeps those that are."""

    request: GPURequest
    doubt: str = ""


def metered_request(pod: Json, parsed: ParsedRequest) -> MeteredRequest | None:
    """What the pod holds; None: nothing. ``parsed``: its request as admission would read it. Never raises."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    is_marked = not _OURS.isdisjoint(annotations)
    fractions = any(name.startswith(FRACTIONING) for name in annotations)
    devices = _has_devices(spec)
    if parsed.request is None and _GROUP in mapping(metadata.get("labels")) and not parsed.violations:
        return _of_a_kai(pod, metadata, annotations)
    if not (is_marked or fractions or devices or parsed.violations):
        is_nothing = parsed.request is None or parsed.request.dialect == CLAIMS  # admission's word
        return None if is_nothing or parsed.request is None else MeteredRequest(parsed.request)
    found, doubt = containers(pod), ""
    bare = _bare(pod, metadata, annotations)
    own = parse(bare)
    asks = list(own.request.asks) if own.request is not None else []
    if own.violations:
        asks, doubt = list(_assumed(found)), own.violations[0].sentence()
        asks = asks or [_one_card(each) for each in found if not each.init][:1]
    asks = [each for each in asks if not each.ask.device]
    asks += _fractions(found, annotations, asks) if fractions else ()
    asks += _devices(found) if devices else ()
    if not asks:
        return None
    places = {each.name: place for place, each in enumerate(found)}
    asks.sort(key=lambda each: places[each.container])
    dialect = own.request.dialect if own.request is not None else DEVICE
    return MeteredRequest(_shared(GPURequest(dialect=dialect, asks=tuple(asks))), doubt)


def charged_request(pod: Json, mode: Mode, models: Mapping[str, str]) -> GPURequest | None:
    """What the ledger charges a bound pod for in a namespace of this mode; None: nothing. ``models``: of
    devices that the settings name. Never raises."""
    stored = parse_stored(pod)
    if mode == "enforce" or (stored.request is not None and stored.request.dialect == CLAIMS):
        return stored.request
    metered = metered_request(pod, stored)
    return of_devices(metered.request, models) if metered else None


def _of_a_kai(pod: Json, metadata: Json, annotations: Json) -> MeteredRequest | None:
    """Of a pod that the binder of a KAI has labelled, whose scheduler has another name than KAI's own."""
    spec = mapping(pod.get("spec"))
    named = {**pod, "spec": {**spec, "schedulerName": KAI.schedulers[0]}}
    request = parse(_bare(named, metadata, annotations)).request
    if request is None:
        return None
    doubt = f"its scheduler {spec.get('schedulerName')} is not known: its annotations are read as KAI's"
    return MeteredRequest(_shared(request), doubt)


def of_devices(request: GPURequest, models: Mapping[str, str]) -> GPURequest | None:
    """The request with the devices that are accelerators, or that ``models`` (resource -> model) names, each
    by its model. None if nothing is left."""
    if not any(each.ask.device for each in request.asks):
        return request
    asks = []
    for each in request.asks:
        device = each.ask.device
        model = models.get(device) or (device if device and accelerator_of(device) else "")
        if not device:
            asks.append(each)
        elif model:
            asks.append(replace(each, ask=replace(each.ask, device=model)))
    return replace(request, asks=tuple(asks)) if asks else None


@lru_cache(maxsize=10_000)
def _shared(request: GPURequest) -> GPURequest:
    """One value for all pods with equal requests."""
    return request


_GROUP = KAI.placement_labels[0]
_OURS = frozenset(names.USER_ANNOTATIONS)
_FIELDS = ("initContainers", "containers")


def _bare(pod: Json, metadata: Json, annotations: Json) -> Json:
    """The pod without the annotations and labels of Bursar."""
    own = f"{names.DOMAIN}/"
    labels = mapping(metadata.get("labels"))
    bare = {
        **metadata,
        "annotations": {name: text for name, text in annotations.items() if not name.startswith(own)},
        "labels": {name: text for name, text in labels.items() if not name.startswith(own)},
    }
    return {**pod, "metadata": bare}


def _has_devices(spec: Json) -> bool:
    for field in _FIELDS:
        for each in sequence(spec.get(field)):
            resources = each.get("resources") if type(each) is dict else None
            if resources and candidates(mapping(resources)):
                return True
    return False


def _devices(found: Sequence[Container]) -> Iterator[ContainerAsk]:
    for container in found:
        resources = mapping(container.raw.get("resources"))
        amounts = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        for name in without_amounts(candidates(resources)):
            ask = devices_of(name, integral(amounts.get(name)) or 0)
            if ask is not None:
                yield ContainerAsk(container.name, container.init, ask)


def _assumed(found: Sequence[Container]) -> Iterator[ContainerAsk]:
    """Of a pod whose request admission would refuse: each container by itself, as its dialect reads it. One
    that cannot be read holds whole cards: as many as NVIDIA's plugin would count, else one."""
    for container in found:
        dialects, ask, broken = one_container(container)
        if ask is not None:
            yield ask
        elif dialects or broken:
            yield _one_card(container, _counted(container))


def _one_card(container: Container, cards: int = 1) -> ContainerAsk:
    return ContainerAsk(container.name, container.init, Ask(cards, WHOLE_MILLI, 0))


def _counted(container: Container) -> int:
    """NVIDIA's device plugin counts devices, by whatever name it was configured with; amounts on a card, and
    its replicas, are no devices."""
    resources = mapping(container.raw.get("resources"))
    amounts = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    named = (name for name in amounts if name.startswith("nvidia.com/") and name not in _ON_A_CARD)
    counts = (integral(amounts[name]) or 0 for name in named)
    return max(1, min(MAX_CARDS, max(counts, default=1)))


def _fractions(
    found: Sequence[Container], annotations: Json, asks: Sequence[ContainerAsk]
) -> Iterator[ContainerAsk]:
    """Memory of one card or several for containers that request no cards otherwise."""
    served = {each.container for each in asks}
    for container in found:
        prefixes = [f"{each}{container.name}" for each in FRACTIONING]
        texts = (annotations[one + each] for one in prefixes for each in _MEMORY if one + each in annotations)
        memory = integral(next(texts, None)) or 0
        if memory > 0 and container.name not in served:
            count = _cards(prefixes, annotations)
            each_mib = min(MAX_MEMORY_MIB, -(-memory // _MIB))
            yield ContainerAsk(container.name, container.init, Ask(count, 0, each_mib))


def _cards(prefixes: Sequence[str], annotations: Json) -> int:
    """As many as KAI's binder named, else as the pod asks for."""
    given = next((annotations[one + _CARDS] for one in prefixes if one + _CARDS in annotations), "")
    named = sum(bool(each.strip()) for each in str(given).split(","))
    return min(MAX_CARDS, max(1, named or integral(annotations.get(KAI_DEVICES)) or 0))
