"""Which tiles of its cards each container gets, after the cards are chosen.

The search counts tiles. Their numbers matter afterwards: a plugin shows a container these tiles, and an Xe
link joins two of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from scheduler_ext.fit.problem import Layout, beside
from scheduler_ext.snapshot.allocation import uses_of
from scheduler_ext.snapshot.free import TileLinks
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.request.cards import NO_AMOUNT
from timekeeper.core.values import TILES, Card, ContainerAsk, GPURequest, Placement, Slice


def asks_tiles(request: GPURequest) -> bool:
    """True if a container requests tiles."""
    return any(name == TILES for each in request.asks for name, _ in each.ask.resources)


def with_tiles(
    asks: Sequence[ContainerAsk], placement: Placement, layout: Layout, node: NodeInfo
) -> Placement:
    """The placement with the tiles of each container: those of its Xe links, or else the card's free ones,
    the preferred first. Containers that run together get different tiles."""
    free = free_tiles(node.cards, node)
    linked = layout.tiles or ((),) * len(placement.containers)
    parts: dict[int, tuple[Slice, ...]] = {}
    for at in sorted(range(len(asks)), key=lambda at: asks[at].init):
        together = beside(asks, at) if asks[at].init else parts
        taken = {(part.uuid, tile) for other in together for part in parts[other] for tile in part.tiles}
        parts[at] = tuple(
            _with_tiles(part, [tile for tile in free[part.uuid] if (part.uuid, tile) not in taken], links)
            for part, links in zip_longest(placement.containers[at][1], linked[at])
        )
    return Placement(tuple((name, parts[at]) for at, (name, _) in enumerate(placement.containers)))


def free_tiles(cards: Sequence[Card], node: NodeInfo) -> dict[str, list[int]]:
    """The tiles that may be given out and that no pod has, by UUID of the card, best first."""
    uses = uses_of(node.allocations)
    return {
        card.uuid: [tile for tile in card.tiles if tile not in uses.get(card.uuid, NO_AMOUNT).tiles]
        for card in cards
    }


def free_links(cards: Sequence[Card], node: NodeInfo) -> TileLinks:
    """The Xe links between these cards with both tiles free, in the order of the cards."""
    left = free_tiles(cards, node)
    at = {card.uuid: place for place, card in enumerate(cards)}
    found = {
        (place, tile, at[other], other_tile)
        for place, card in enumerate(cards)
        for tile, other, other_tile in card.tile_links
        if other in at and place < at[other] and tile in left[card.uuid] and other_tile in left[other]
    }
    return tuple(sorted(found))


def _with_tiles(part: Slice, left: Sequence[int], linked: int | None) -> Slice:
    count = dict(part.resources).get(TILES, 0)
    return replace(part, tiles=tuple(left[:count]) if linked is None else (linked,))
