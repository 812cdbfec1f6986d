"""Intel GPU Aware Scheduling (GAS): ``gpu.intel.com/i915`` or ``xe`` cards, and an equal part of every other
resource under ``gpu.intel.com/`` from each of them.

Its GPU plugin, in resource-manager mode, reads from annotations which cards and tiles each ordinary container
has, and begins with the pod of the earliest ``gas-ts``. Source: intel/platform-aware-scheduling,
gpu-aware-scheduling (`docs/dialects.md`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from timekeeper.core import names
from timekeeper.core.dialects.amounts import MAX_CARDS, ContainerLimits, Most, PodFacts, amount, units
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest, TilesOf, nothing_at_admission
from timekeeper.core.dialects.gas_nodes import I915 as I915
from timekeeper.core.dialects.gas_nodes import PREFIX, cards, counted_cards
from timekeeper.core.dialects.gas_nodes import XE as XE
from timekeeper.core.name_lists import listed, names_in, too_long
from timekeeper.core.values import MAX_TILES, TILES, Ask, ContainerAsk, GPURequest, Slice
from timekeeper.core.violation import Violation, first_of, shown

MONITORING = "_monitoring"  # ends the names of resources that show a container all cards

ALLOW, DENY, SAME_GPU = "gas-allow", "gas-deny", "gas-same-gpu"
XE_LINKED, SINGLE_NUMA = "gas-allocate-xelink", "gas-allocate-single-numa"
CARDS, TILES_OF = "gas-container-cards", "gas-container-tiles"
USER_ANNOTATIONS = frozenset({ALLOW, DENY, SAME_GPU, XE_LINKED, SINGLE_NUMA})

_CARD = re.compile(r"card(0|[1-9][0-9]{0,4})", re.ASCII)
_GT = re.compile("gt([0-9]{1,5})", re.ASCII)
_MAX_RESOURCES = 64
_MAX_LISTED = 20
_MOST_CARDS = tuple(
    Most(name, MAX_CARDS, "cards", "amount", "more cards than any node has") for name in (I915, XE)
)
# of each card; other resources may count bytes
_MOST = (
    Most(f"{PREFIX}millicores", 1000, "thousandths of a card", "amount"),
    Most(TILES, MAX_TILES, "tiles", "amount"),
)


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    given = [name for name in limits.amounts if name.startswith(PREFIX)]
    if given and all(name.endswith(MONITORING) for name in given):
        return ()  # it requests no card, and sees all
    plugins = [name for name in (I915, XE) if name in limits.amounts]
    if len(plugins) != 1 or len(given) > _MAX_RESOURCES:
        return (_unclear(limits, given, plugins),)
    devices = next(units(limits, each, "1") for each in _MOST_CARDS if each.resource in plugins)
    if not isinstance(devices, int):
        return (devices,) if devices else ()
    read = {name: amount(limits, name, 1, "a whole number of at least 1", "1") for name in given}
    read |= {each.resource: units(limits, each, "1", devices) for each in _MOST}
    broken = tuple(each for each in read.values() if isinstance(each, Violation))
    amounts = {name: each for name, each in read.items() if isinstance(each, int)}
    if broken:
        return broken
    uneven = [name for name, each in amounts.items() if each % devices]
    if uneven:
        return tuple(_uneven(limits, name, amounts[name], devices) for name in uneven)
    return Ask(devices, 0, 0, tuple(sorted((name, each // devices) for name, each in amounts.items())))


def _unclear(limits: ContainerLimits, given: Sequence[str], plugins: Sequence[str]) -> Violation:
    if len(given) > _MAX_RESOURCES:
        problem, allowed = "too many resources", f"{_MAX_RESOURCES} resources under {PREFIX} at most"
        return _violation(limits, given[0], "amount", problem, allowed, "1")
    if plugins:
        problem, allowed = f"{I915} and {XE} in one container", f"one of {I915} and {XE}"
        return _violation(limits, XE, "amount", problem, allowed, "1")
    first = min(given, default=I915)
    example = f'{I915}: "1"'
    allowed = f"{I915} or {XE} beside every other resource under {PREFIX}"
    return Violation("amount", limits.at(first), "", "no card is requested", allowed, example)


def _uneven(limits: ContainerLimits, name: str, given: int, devices: int) -> Violation:
    problem, allowed = f"does not divide evenly over {devices} cards", f"a multiple of {devices}"
    return _violation(limits, name, "count-divides", problem, allowed, str(given - given % devices + devices))


def _violation(
    limits: ContainerLimits, name: str, rule: str, problem: str, allowed: str, example: str
) -> Violation:
    got = shown(limits.amounts[name])
    return Violation(rule, limits.at(name), got, problem, allowed, f'{name}: "{example}"')


def _constrain(request: GPURequest, pod: PodFacts) -> GPURequest | tuple[Violation, ...]:
    plugins = {plugin for each in request.asks for plugin in _plugins(each)}
    if len(plugins) > 1:
        problem = "all containers of a pod must use the same driver"
        return (_annotated("several-dialects", "spec.containers", "", problem, f"one of {I915} and {XE}"),)
    if USER_ANNOTATIONS.isdisjoint(pod.annotations):
        return request
    broken = tuple(_broken(request, pod.annotations))
    if broken:
        return broken
    return replace(
        request,
        uuids=listed(pod.annotations, ALLOW) or request.uuids,
        exclude_uuids=(*request.exclude_uuids, *listed(pod.annotations, DENY)),
        same_gpu=listed(pod.annotations, SAME_GPU) or request.same_gpu,
        topology="numa" if SINGLE_NUMA in pod.annotations else request.topology,
        xe_linked=XE_LINKED in pod.annotations,
    )


def _plugins(each: ContainerAsk) -> set[str]:
    return {name for name, _ in each.ask.resources if name in (I915, XE)}


def _broken(request: GPURequest, annotations: Mapping[str, Any]) -> Iterator[Violation]:
    for name in (ALLOW, DENY):
        if name in annotations:
            yield from _wrong_cards(annotations, name)
    for name, own, is_set in (
        (ALLOW, names.UUIDS, request.uuids),
        (SAME_GPU, names.SAME_GPU, request.same_gpu),
        (SINGLE_NUMA, names.TOPOLOGY, request.topology),
    ):
        if name in annotations and is_set:
            yield _at(annotations, name, f"{own} says the same in other words", f"one of {name} and {own}")
    if SAME_GPU in annotations:
        yield from _wrong_same_gpu(request, annotations)
    if XE_LINKED in annotations:
        yield from _wrong_links(request, annotations)


def _wrong_cards(annotations: Mapping[str, Any], name: str) -> Iterator[Violation]:
    long = too_long(annotations, name, "card0,card1")
    if long:
        yield long
        return
    named = names_in(annotations, name)
    wrong = next((each for each in named if not _CARD.fullmatch(each)), None)
    if wrong is not None or not named:
        problem = "the list is empty" if wrong is None else f"{shown(wrong)} is no card"
        yield _at(annotations, name, problem, "names of cards such as card0, separated by commas")


def _wrong_same_gpu(request: GPURequest, annotations: Mapping[str, Any]) -> Iterator[Violation]:
    long = too_long(annotations, SAME_GPU, "main,logger")
    if long:
        yield long
        return
    named = names_in(annotations, SAME_GPU)
    asks = {each.container: each for each in request.asks}
    if len(named) < 2 or len(set(named)) < len(named) or any(each not in asks for each in named):
        allowed = f"at least two different containers, out of {first_of(sorted(asks), _MAX_LISTED)}"
        yield _at(annotations, SAME_GPU, "not a list of containers that request a card", allowed)
    elif any(_is_unfit_for_same_gpu(asks[each].ask) for each in named):
        allowed = f"containers with one card, without tiles and without resources that end in {MONITORING}"
        yield _at(annotations, SAME_GPU, "resources conflict", allowed)
    if XE_LINKED in annotations:
        yield _at(annotations, SAME_GPU, "it contradicts " + XE_LINKED, f"one of {SAME_GPU} and {XE_LINKED}")


def _is_unfit_for_same_gpu(ask: Ask) -> bool:
    return ask.devices > 1 or any(name == TILES or name.endswith(MONITORING) for name, _ in ask.resources)


def _wrong_links(request: GPURequest, annotations: Mapping[str, Any]) -> Iterator[Violation]:
    for each in request.asks:
        amounts = dict(each.ask.resources)
        monitors = any(name.endswith(MONITORING) for name in amounts)
        if each.ask.devices % 2 or amounts.get(TILES) != 1 or monitors:
            problem = f"container {each.container} does not request pairs of cards with one tile each"
            allowed = f"in every container an even number of cards, as many tiles, and no {MONITORING}"
            yield _at(annotations, XE_LINKED, problem, allowed)


def _at(annotations: Mapping[str, Any], name: str, problem: str, allowed: str) -> Violation:
    path = f"metadata.annotations[{name}]"
    return _annotated("gas-annotation", path, shown(annotations[name]), problem, allowed)


def _annotated(rule: str, path: str, got: str, problem: str, allowed: str) -> Violation:
    return Violation(rule, path, got, problem, allowed, f"{ALLOW}: card0,card1")


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    given = dict(placed.placement.containers)
    by_container = [given.get(name, ()) for name in placed.containers]
    tiles = "|".join(",".join(_tiles(each) for each in slices if each.tiles) for slices in by_container)
    written = {
        "gas-ts": str(placed.now_ns),
        CARDS: "|".join(",".join(each.uuid for each in slices) for slices in by_container),
    }
    return {**written, TILES_OF: tiles} if tiles else written


def _found(pod: PodFacts, _request: GPURequest) -> Found:
    """As GAS's own extender writes them. A text that is not in its form names no cards."""
    by_container, ordinary = _parts(pod, CARDS), pod.ordinary
    tiles = _parts(pod, TILES_OF) if TILES_OF in pod.annotations else [""] * len(by_container)
    if len(by_container) != len(ordinary) or len(tiles) != len(by_container):
        return {}
    return {
        name: tuple([TilesOf(card, _numbers(card, of_tiles)) for card in cards.split(",")])
        for name, cards, of_tiles in zip(ordinary, by_container, tiles, strict=True)
        if cards
    }


def _parts(pod: PodFacts, annotation: str) -> list[str]:
    text = pod.annotations.get(annotation)
    return text.split("|") if isinstance(text, str) else []


def _numbers(card: str, text: str) -> tuple[int, ...]:
    """The tiles of the card in a text such as ``card0:gt0+gt1,card1:gt0``."""
    given = dict(each.partition(":")[::2] for each in text.split(",")) if text else {}
    tiles = [_GT.fullmatch(each) for each in given[card].split("+")] if card in given else []
    return tuple(int(each[1]) for each in tiles if each)


def _tiles(given: Slice) -> str:
    return f"{given.uuid}:" + "+".join(f"gt{tile}" for tile in given.tiles)


DIALECT = Dialect(
    name="gas",
    resources=(I915, XE),
    prefix=PREFIX,
    counts=(I915, XE),
    by_plugin=(I915, XE),
    examples={I915: "1", XE: "1"},
    read=_read,
    reads=tuple(sorted(USER_ANNOTATIONS)),
    constrain=_constrain,
    at_admission=nothing_at_admission,
    at_binding=_at_binding,
    found=_found,
    owned=("gas-ts", "gas-container-"),
    plugin_shows=True,
    cards=cards,
    counted_cards=counted_cards,
    pairs_by_time=True,
)
