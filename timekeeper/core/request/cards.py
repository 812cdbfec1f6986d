"""Cards and what is placed on them: the meaning of a placement, for extender and ledger."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from timekeeper.core.json_values import decoded
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.values import (
    MAX_AMOUNT,
    MAX_TILES,
    TILES,
    WHOLE_MILLI,
    Amounts,
    Ask,
    Card,
    GPURequest,
    Placement,
    Slice,
    UndecodableError,
)

_MAX_PATHS = 64  # to cards of one node


def decode_inventory(text: str) -> tuple[Card, ...]:
    """A node's cards from its annotation ``bursar.dev/inventory``, in the order of their indexes.

    Raises UndecodableError if it is not the JSON of `wire.Inventory`, or repeats a UUID or an index.
    """
    cards = tuple(
        sorted((_card(raw) for raw in _versioned(text, "cards", list)), key=lambda card: card.index)
    )
    if len({card.uuid for card in cards}) < len(cards) or len({card.index for card in cards}) < len(cards):
        raise UndecodableError("inventory: a card is named twice")
    return cards


def nri_plugins(inventory: str) -> tuple[str, ...]:
    """The NRI plugins of the node that containers with cards need, by the same annotation; none where it does
    not say, or cannot be decoded."""
    if '"nri"' not in inventory:
        return ()  # often, and it saves reading the cards once more
    try:
        plugins = _versioned(inventory, "nri", dict).get("plugins")
    except UndecodableError:
        return ()
    return tuple(each for each in plugins if isinstance(each, str)) if isinstance(plugins, list) else ()


def decode_placement(text: str) -> Placement:
    """A pod's placement from its annotation ``bursar.dev/devices``. Raises UndecodableError."""
    containers = _versioned(text, "containers", dict)
    placed = []
    for name, slices in containers.items():
        if not isinstance(slices, list) or not slices:
            raise UndecodableError(f"devices: container {name} names no card")
        placed.append((str(name), tuple(_slice(raw) for raw in slices)))
    return Placement(tuple(placed))


def encode_placement(placement: Placement) -> str:
    """The annotation ``bursar.dev/devices`` in canonical form: keys sorted, no blanks."""
    containers = {name: [_raw_slice(each) for each in slices] for name, slices in placement.containers}
    return json.dumps({"containers": containers, "version": 1}, sort_keys=True, separators=(",", ":"))


def need(ask: Ask, card: Card) -> CardAmount:
    """What a request takes of this card. A share without memory takes the same share of the memory, rounded
    down, so shares that add up to a card fit on it."""
    memory = ask.memory_mib or card.memory_mib * (ask.memory_milli or ask.share_milli) // WHOLE_MILLI
    if ask.resources:
        return NamedAmount(ask.share_milli, memory, ask.resources)
    return CardAmount(ask.share_milli, memory)


def has_named(ask: Ask, card: Card) -> bool:
    """True if the card has each resource that the ask names; False if only one of them has named
    resources."""
    if not (ask.resources and card.resources):
        return not (ask.resources or card.resources)
    return {name for name, _ in ask.resources} <= {name for name, _ in card.resources}


def allowed(request: GPURequest, card: Card) -> bool:
    """True if the request's constraints on models, UUIDs and whole memory allow the card."""
    if request.uuids and card.uuid not in request.uuids:
        return False
    if request.exclude_uuids and card.uuid in request.exclude_uuids:
        return False
    if card.memory_mib < request.min_memory_mib:
        return False
    if request.model_pattern and not any(is_like(request.model_pattern, each) for each in _names(card)):
        return False
    if not request.models and not request.exclude_models:
        return True  # nearly always
    return _is_model_allowed(request.models, request.exclude_models, _names(card))


@lru_cache(maxsize=256)  # a key has at most 128 names of 128 characters
def _is_model_allowed(models: tuple[str, ...], excluded: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Cached: a cluster has few models, and a pod is compared with each of its cards."""
    if models and not any(is_model(word, name) for word in models for name in names):
        return False
    return not any(is_model(word, name) for word in excluded for name in names)


def _names(card: Card) -> tuple[str, ...]:
    return (card.model, *card.names)


def is_model(word: str, model: str) -> bool:
    """True if the words of ``word`` occur side by side in the model's name: ``H100`` matches ``NVIDIA H100
    80GB HBM3``."""
    wanted, present = _words(word), _words(model)
    return bool(wanted) and any(present[i : i + len(wanted)] == wanted for i in range(len(present)))


@lru_cache(maxsize=256)
def is_like(pattern: str, model: str) -> bool:
    """True if the pattern, in lower case, occurs in the model's name; a dot is any one character. It takes no
    other operators, so a match takes no more steps than name and pattern together have pairs of characters.
    """
    return bool(re.search(".".join(map(re.escape, pattern.split("."))), model.lower()))


def amounts_by_card(request: GPURequest, placement: Placement) -> dict[str, CardAmount]:
    """The most that the pod takes of each card at one time, by UUID.

    Containers that run together add up. An ordinary init container runs before them, together with the native
    sidecars before it only, and so reuses the pod's own amount (KEP-753's rule for resources).
    """
    placed = dict(placement.containers)
    together: dict[str, CardAmount] = {}
    most: dict[str, CardAmount] = {}
    for each in request.asks:
        for part in placed.get(each.container, ()):
            beside, before = together.get(part.uuid), most.get(part.uuid)
            sum_now = _amount_of(part) if beside is None else beside + _amount_of(part)
            if not each.init:
                together[part.uuid] = sum_now
            most[part.uuid] = sum_now if before is None else before.most(sum_now)
    return most


def mismatch(request: GPURequest, placement: Placement, cards: Iterable[Card]) -> str | None:
    """Why the placement is not one that the request could have been given on these cards; None if it is.

    Detects forged and stale annotations: a placement counts only if the spec's own request matches it.
    """
    by_uuid = {card.uuid: card for card in cards}
    placed = dict(placement.containers)
    if set(placed) != {each.container for each in request.asks}:
        return "the placement's containers differ from those that request GPUs"
    for each in request.asks:
        slices = placed[each.container]
        if len(slices) != each.ask.devices or len({s.uuid for s in slices}) != len(slices):
            return f"container {each.container} does not hold {each.ask.devices} distinct cards"
        for given in slices:
            card = by_uuid.get(given.uuid)
            if card is None:
                return f"card {given.uuid} is not in the node's inventory"
            if not has_named(each.ask, card):
                return f"card {given.uuid} does not have what container {each.container} requested"
            if _amount_of(replace(given, tiles=()) if given.tiles else given) != need(each.ask, card):
                return f"container {each.container} has other amounts than it requested"
            if given.resources and len(given.tiles) != dict(given.resources).get(TILES, 0):
                return f"container {each.container} has another number of tiles than it requested"
    return _tile_mismatch(request, placed, by_uuid) if request.asks[0].ask.resources else None


def _tile_mismatch(
    request: GPURequest, placed: Mapping[str, tuple[Slice, ...]], cards: Mapping[str, Card]
) -> str | None:
    """Why the tiles are not ones that exist, each held once by containers that run together; None if they
    are."""
    together: set[tuple[str, int]] = set()  # of the containers so far that are no ordinary init containers
    for each in request.asks:
        tiles = {(part.uuid, tile) for part in placed[each.container] for tile in part.tiles}
        if tiles & together:
            return "a tile is held twice"
        if any(tile >= dict(cards[uuid].resources).get(TILES, 0) for uuid, tile in tiles):
            return "a tile is not in the node's inventory"
        together |= set() if each.init else tiles
    return None


def _amount_of(part: Slice) -> CardAmount:
    if part.resources:
        return NamedAmount(part.share_milli, part.memory_mib, part.resources, frozenset(part.tiles))
    return CardAmount(part.share_milli, part.memory_mib)


@lru_cache(maxsize=1024)
def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


def _versioned(text: str, key: str, kind: type) -> Any:
    try:
        whole = decoded(text)
    except ValueError as error:
        raise UndecodableError(f"not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("version") != 1 or not isinstance(whole.get(key), kind):
        raise UndecodableError(f"not version 1 with {key}")
    return whole[key]


def _card(raw: object) -> Card:
    if not isinstance(raw, dict):
        raise UndecodableError("inventory: a card is not an object")
    uuid, model = raw.get("uuid"), raw.get("model")
    if not isinstance(uuid, str) or not uuid or not isinstance(model, str):
        raise UndecodableError("inventory: a card without uuid or model")
    memory = _natural(raw, "memory_mib")
    if memory == 0:
        raise UndecodableError(f"inventory: card {uuid} has no memory")
    return Card(
        uuid=uuid,
        index=_natural(raw, "index"),
        model=model,
        memory_mib=memory,
        healthy=raw.get("healthy") is not False,
        numa=None if raw.get("numa") is None else _natural(raw, "numa"),
        links=_links(raw.get("links"), uuid),
        paths=_paths(raw["paths"], uuid) if "paths" in raw else "",
    )


def _links(value: object, uuid: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UndecodableError(f"inventory: the links of card {uuid} are not UUIDs")
    return tuple(value)


def _paths(value: object, uuid: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_PATHS or value.strip("012345-"):
        raise UndecodableError(f"inventory: the paths of card {uuid} are not digits from 0 to 5")
    return value


def _slice(raw: object) -> Slice:
    if not isinstance(raw, dict) or not isinstance(raw.get("uuid"), str):
        raise UndecodableError("devices: a card without uuid")
    share = _natural(raw, "share_milli")
    if share > WHOLE_MILLI:
        raise UndecodableError("devices: more than a whole card")
    resources = decode_amounts(raw["resources"]) if "resources" in raw else ()
    tiles = _tiles(raw["tiles"]) if "tiles" in raw else ()
    return Slice(raw["uuid"], _natural(raw, "index"), share, _natural(raw, "memory_mib"), resources, tiles)


def _raw_slice(part: Slice) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "index": part.index,
        "memory_mib": part.memory_mib,
        "share_milli": part.share_milli,
        "uuid": part.uuid,
    }
    if part.resources:
        raw["resources"] = dict(part.resources)
    if part.tiles:
        raw["tiles"] = list(part.tiles)
    return raw


def _tiles(raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(each) is int and 0 <= each < MAX_TILES for each in raw):
        raise UndecodableError(f"tiles: not a list of numbers below {MAX_TILES}")
    return tuple(raw)


def decode_amounts(raw: object) -> Amounts:
    """Amounts of named resources from a JSON object. Raises UndecodableError."""
    if not isinstance(raw, dict):
        raise UndecodableError("resources: not an object")
    return tuple(sorted((str(name), _natural(raw, name, MAX_AMOUNT)) for name in raw))


def _natural(raw: Mapping[str, Any], key: str, most: int = 2**31 - 1) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UndecodableError(f"{key} is not a whole number from 0 on")
    return value
