"""Which cards of a node are near each other, for a topology that a pod requests
(`core.request.constraints.TOPOLOGIES`).

``pair``: linked directly, by NVLink or by PCIe switches alone; the closest go first. ``numa``: on one NUMA
node. Either must hold for every two cards of a container, so a container with one card, or with topology
``node``, accepts any. `CLOSEST` accepts any cards too, the closest first: the levels of the PCIe tree.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from timekeeper.core.values import (
    BRIDGE,
    CLOSEST,
    FARTHEST,
    NUMA_NODE,
    NVLINK,
    SWITCH,
    SWITCHES,
    Card,
    GPURequest,
)

Near = tuple[int, ...]  # for each card the bits of the cards near it, itself included
Rungs = tuple[tuple[int, Near], ...]  # closeness, and which cards are so near


class Groups(NamedTuple):
    """Which cards of a node are near each other, for each step of their links, and by NUMA nodes."""

    links: tuple[Near, ...]
    numa: Near
    indexes: tuple[int, ...]


_STEPS = {
    "pair": (NVLINK, SWITCH, SWITCHES),
    CLOSEST: (NVLINK, SWITCH, SWITCHES, BRIDGE, NUMA_NODE, FARTHEST),
}


def farthest(request: GPURequest) -> int:
    """How many cards must be near each other at most; 0 if nearness does not matter to the pod."""
    if request.topology not in ("pair", "numa"):
        return 0
    most = max((each.ask.devices for each in request.asks if not each.ask.grouped), default=0)
    return most if most > 1 else 0


def is_known(topology: str, cards: Iterable[Card]) -> bool:
    """True if the inventory says it of any card."""
    return any((card.links if topology == "pair" else card.numa) is not None for card in cards)


def nearness(topology: str, cards: Sequence[Card]) -> Near:
    """For each card the bits of the cards near it, itself included. A link recorded on either card counts; a
    card without data is near none."""
    if topology == "numa":
        numas = [card.numa for card in cards]
        same = [sum(1 << at for at, numa in enumerate(numas) if numa == each) for each in numas]
        return tuple(
            1 << at if numa is None else bits for at, (numa, bits) in enumerate(zip(numas, same, strict=True))
        )
    return _within(SWITCHES, _distances(cards))


def rungs_of(topology: str, cards: Sequence[Card]) -> Rungs:
    """For each step of the topology which cards are so near, the closest first; empty where all are. A step
    that adds no pair of cards to the one before it is left out."""
    distances = _distances(cards)
    alone = tuple(1 << at for at in range(len(cards)))
    everything = ((1 << len(cards)) - 1,) * len(cards)
    found: list[tuple[int, Near]] = []
    last = alone
    for most in _STEPS[topology]:
        near = _within(most, distances)
        if near != last:
            found.append((FARTHEST - most, near if near != everything else ()))
        last = near
    return tuple(found) or ((0, alone),)


def groups_of(cards: Sequence[Card]) -> Groups | None:
    """None where nothing is known of them."""
    if not any(card.links or card.paths or card.numa is not None for card in cards):
        return None
    places = {card.uuid: place for place, card in enumerate(cards)}
    return _groups(
        tuple(
            (
                card.index,
                card.numa,
                card.paths,
                tuple(places[uuid] for uuid in card.links or () if uuid in places),
            )
            for card in cards
        )
    )


@lru_cache(maxsize=256)  # machines of one make are alike
def _groups(known: tuple[tuple[int, int | None, str, tuple[int, ...]], ...]) -> Groups:
    """By what is known of each card: index, NUMA node, paths, and the places of linked cards."""
    cards = [
        Card(str(place), index, "", 0, numa=numa, links=tuple(map(str, links)), paths=paths)
        for place, (index, numa, paths, links) in enumerate(known)
    ]
    links = tuple(near for _, near in rungs_of("pair", cards) if near)
    one_node = ((1 << len(cards)) - 1,) * len(cards)
    numa = nearness("numa", cards) if is_known("numa", cards) else one_node
    return Groups(links, numa, tuple(card.index for card in cards))


@lru_cache(maxsize=4096)
def keeping_groups(groups: Groups, untouched: int) -> tuple[int, ...]:
    """The places of the cards in the order in which equal ones are given out, so that groups stay whole. By
    links, the closest first, and then by NUMA nodes: first those of a group of which a card is taken; of
    linked cards those with the fewest left. Cards of one group follow each other. ``untouched``: the bits of
    the cards that may be given out and that no pod uses."""
    links, numa, indexes = groups

    def key(at: int) -> tuple[int, ...]:
        left = ((near[at] & ~untouched == 0, (near[at] & untouched).bit_count()) for near in links)
        firsts = (near[at] & -near[at] for near in (numa, *reversed(links)))
        is_whole = numa[at] & ~untouched == 0
        return (*(part for pair in left for part in pair), is_whole, *firsts, indexes[at])

    return tuple(sorted(range(len(indexes)), key=key))


def _within(most: int, distances: Sequence[Sequence[int]]) -> Near:
    return tuple(sum(1 << at for at, each in enumerate(row) if each <= most) for row in distances)


def _distances(cards: Sequence[Card]) -> list[list[int]]:
    return [
        [NVLINK if one is other else min(_path(one, other), _path(other, one)) for other in cards]
        for one in cards
    ]


def _path(one: Card, other: Card) -> int:
    """By the path that this card's inventory gives, else by its links and NUMA node."""
    path = one.paths[other.index : other.index + 1]
    if path.isdigit():
        return int(path)
    if other.uuid in (one.links or ()):
        return SWITCHES
    return NUMA_NODE if one.numa is not None and one.numa == other.numa else FARTHEST
