"""A node's cards as Intel's GPU plugin, node feature discovery and Telemetry Aware Scheduling describe them
by labels and extended resources.

All cards of a node are alike: each has an equal part of every resource. A label of more than 63 characters
continues in labels of the same name with 2, 3, ... behind it, whose values begin with ``Z``. Source:
intel/platform-aware-scheduling, gpu-aware-scheduling.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_COUNTED, NodeFacts
from timekeeper.core.dialects.percent import UNKNOWN_MEMORY_MIB
from timekeeper.core.values import MAX_TILES, TILES, Amounts, Card, UndecodableError

PREFIX = "gpu.intel.com/"
I915, XE = f"{PREFIX}i915", f"{PREFIX}xe"
MEMORY = f"{PREFIX}memory.max"  # bytes

NUMBERS, CARDS = f"{PREFIX}gpu-numbers", f"{PREFIX}cards"  # the second by older plugins
PCI_GROUPS, XE_LINKS, NUMA_MAP = f"{PREFIX}pci-groups", f"{PREFIX}xe-links", f"{PREFIX}numa-gpu-map"
PRODUCT, FAMILY = f"{PREFIX}product", f"{PREFIX}family"

STEERING = "telemetry.aware.scheduling."  # begins the labels of policies
PCI_GROUP = "PCI_GROUP"  # as a value: the label means all cards of the group

_CONTINUED = "Z"
_MIB = 1024 * 1024
_NUMBER = r"(0|[1-9][0-9]{0,4})"
_CARD = re.compile(f"card{_NUMBER}", re.ASCII)
_TILE = re.compile(f"card{_NUMBER}_gt{_NUMBER}", re.ASCII)
_LINK = re.compile(rf"{_NUMBER}\.{_NUMBER}-{_NUMBER}\.{_NUMBER}", re.ASCII)

Tiles = dict[int, list[int]]  # by number of the card


def cards(node: NodeFacts) -> tuple[Card, ...]:
    """The cards, in the order of their numbers; none where no label numbers them or two drivers serve the
    node. Raises UndecodableError if the label that numbers them cannot be read."""
    labels = sorted(each for each in node.labels.items() if each[0].startswith((PREFIX, STEERING)))
    return _alike(tuple(labels), tuple(sorted(node.capacity.items())))


@lru_cache(maxsize=1024)  # a cluster has few kinds of nodes
def _alike(labels: tuple[tuple[str, str], ...], capacity: Amounts) -> tuple[Card, ...]:
    by_name = dict(labels)
    numbers = card_numbers(by_name)
    drivers = [name for name, total in capacity if name in (I915, XE) and total > 0]
    if not numbers or len(drivers) != 1:
        return ()
    resources = tuple(
        (name, total // len(numbers))
        for name, total in capacity
        if name.startswith(PREFIX) and total >= len(numbers)
    )
    described = _Labels(by_name, numbers, min(dict(resources).get(TILES, 0), MAX_TILES))
    return tuple(described.card(number, resources) for number in numbers)


def counted_cards(node: NodeFacts) -> tuple[Card, ...]:
    """Those that Intel's plugin counts on a node without labels that number them."""
    named = [name for name in (I915, XE) for _ in range(min(node.capacity.get(name, 0), MAX_COUNTED))]
    model = node.labels.get(PRODUCT) or node.labels.get(FAMILY) or "GPU"
    return tuple(
        Card(f"card{index}", index, model, UNKNOWN_MEMORY_MIB, resources=((name, 1),))
        for index, name in enumerate(named)
    )


class _Labels:
    """The labels of one node, read once for all of its cards."""

    def __init__(self, labels: Mapping[str, str], numbers: Sequence[int], tiles: int) -> None:
        self.model = labels.get(PRODUCT) or labels.get(FAMILY) or "GPU"
        self.numa, self.links = numa_nodes(labels, numbers), xe_links(labels, numbers)
        steering = list(_steering(labels))
        self.vacated = _cards_in(steering, "gas-deschedule-pods-", labels)
        self.disabled = self.vacated | _cards_in(steering, "gas-disable-", labels)
        self.preferred = {value for name, value in steering if name == "gas-prefer-gpu"}
        self.tile_count = tiles
        self.vacated_tiles = _tiles_in(steering, "gas-tile-deschedule-")
        self.disabled_tiles = _tiles_in(steering, "gas-tile-disable-")
        self.preferred_tiles = _preferred_tiles(steering)

    def card(self, number: int, resources: tuple[tuple[str, int], ...]) -> Card:
        """The card of this number."""
        memory_mib = dict(resources).get(MEMORY, 0) // _MIB or UNKNOWN_MEMORY_MIB
        leaving = self.vacated_tiles.get(number, [])
        barred = {*leaving, *self.disabled_tiles.get(number, [])}
        tiles = preferred_first(range(self.tile_count), self.preferred_tiles.get(number, []))
        links = self.links.get(number, ())
        return Card(
            f"card{number}",
            number,
            self.model,
            memory_mib,
            numa=self.numa.get(number),
            links=tuple(dict.fromkeys(other for _, other, _ in links)) if self.links else None,
            cordoned=number in self.disabled,
            resources=resources,
            tiles=tuple(tile for tile in tiles if tile not in barred),
            tile_links=links,
            preferred=f"card{number}" in self.preferred,
            vacated=number in self.vacated,
            vacated_tiles=tuple(tile for tile in leaving if tile < self.tile_count),
        )


def joined(labels: Mapping[str, str], name: str) -> str:
    """A label's value with its continuations; "" if it is absent. Raises UndecodableError if a continuation
    does not begin with ``Z``."""
    value, place = labels.get(name, ""), 2
    while (more := labels.get(f"{name}{place}")) is not None:
        if not more.startswith(_CONTINUED):
            raise UndecodableError(f"{name}{place}: a continuation begins with {_CONTINUED}")
        value, place = value + more.removeprefix(_CONTINUED), place + 1
    return value


def card_numbers(labels: Mapping[str, str]) -> tuple[int, ...]:
    """The numbers of the cards, in their order, which is that of their Level Zero device IDs. Raises
    UndecodableError."""
    text = joined(labels, NUMBERS)
    words = text.split(".") if text else labels.get(CARDS, "").replace("card", "").split(".")
    if words == [""]:
        return ()
    if len(set(words)) < len(words) or not all(re.fullmatch(_NUMBER, each, re.ASCII) for each in words):
        raise UndecodableError(f"{NUMBERS}: not different numbers with points between them")
    if len(words) > MAX_CARDS:
        raise UndecodableError(f"{NUMBERS}: more than {MAX_CARDS} cards")
    return tuple(sorted(map(int, words)))


def pci_group(labels: Mapping[str, str], number: int) -> frozenset[int]:
    """The cards of the PCI group of this card; the card itself where no group is known."""
    for group in _parts(labels, PCI_GROUPS):
        members = {int(each) for each in group.split(".") if re.fullmatch(_NUMBER, each, re.ASCII)}
        if number in members:
            return frozenset(members)
    return frozenset({number})


def numa_nodes(labels: Mapping[str, str], numbers: Sequence[int]) -> dict[int, int]:
    """The NUMA node of each card. Without the label all cards are on one node, as for GAS. If the label
    cannot be read, no card's node is known."""
    parts = _parts(labels, NUMA_MAP)
    if not parts:
        return {} if joined(labels, NUMA_MAP) else dict.fromkeys(numbers, 0)
    found = {}
    for part in parts:
        if not re.fullmatch(rf"{_NUMBER}-{_NUMBER}(\.{_NUMBER})*", part, re.ASCII):
            return {}
        numa, _, members = part.partition("-")
        found.update({int(each): int(numa) for each in members.split(".")})
    return found


def xe_links(
    labels: Mapping[str, str], numbers: Sequence[int]
) -> dict[int, tuple[tuple[int, str, int], ...]]:
    """For each card its links: tile, name and tile of the other card. The label counts the cards by their
    Level Zero device IDs: the places in the order of their numbers."""
    found: dict[int, list[tuple[int, str, int]]] = {}
    for part in _parts(labels, XE_LINKS):
        link = _LINK.fullmatch(part)
        if link is None:
            return {}
        one, tile, other, other_tile = map(int, link.groups())
        if max(one, other) < len(numbers) and one != other:
            here, there = numbers[one], numbers[other]
            found.setdefault(here, []).append((tile, f"card{there}", other_tile))
            found.setdefault(there, []).append((other_tile, f"card{here}", tile))
    return {number: tuple(links) for number, links in found.items()}


def preferred_first(tiles: Sequence[int], preferred: Sequence[int]) -> tuple[int, ...]:
    """The tiles, those that are preferred first and in that order."""
    return tuple(dict.fromkeys([*(tile for tile in preferred if tile in tiles), *tiles]))


def _parts(labels: Mapping[str, str], name: str) -> list[str]:
    """The parts of a list with _ between them; none where a continuation cannot be read."""
    try:
        text = joined(labels, name)
    except UndecodableError:
        return []
    return text.split("_") if text else []


def _steering(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and value of each label of a policy, without the policy, in the order of the labels' names."""
    for label, value in sorted(labels.items()):
        domain, _, name = label.partition("/")
        if domain.startswith(STEERING) and name:
            yield name, value


def _cards_in(steering: Sequence[tuple[str, str]], stem: str, labels: Mapping[str, str]) -> frozenset[int]:
    """The cards that labels with this stem name, with their PCI groups where the value says so."""
    found: set[int] = set()
    for name, value in steering:
        card = _CARD.fullmatch(name.removeprefix(stem)) if name.startswith(stem) else None
        if card:
            number = int(card[1])
            found |= pci_group(labels, number) if value == PCI_GROUP else {number}
    return frozenset(found)


def _tiles_in(steering: Sequence[tuple[str, str]], stem: str) -> Tiles:
    found: Tiles = {}
    for name, _ in steering:
        tile = _TILE.fullmatch(name.removeprefix(stem)) if name.startswith(stem) else None
        if tile:
            found.setdefault(int(tile[1]), []).append(int(tile[2]))
    return found


def _preferred_tiles(steering: Sequence[tuple[str, str]]) -> Tiles:
    """Of labels ``gas-tile-preferred-cardN=gtM``."""
    return _tiles_in([(f"{name}_{value}", "") for name, value in steering], "gas-tile-preferred-")
