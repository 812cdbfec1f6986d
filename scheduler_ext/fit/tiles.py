"""Which tiles of its cards each container gets, after the cards are chosen; and cards in pairs that an Xe
link joins: one tile of each card, and the two tiles are those of the link.

The search counts tiles. Their numbers matter afterwards: a plugin shows a container these tiles, and a link
joins two of them. A container takes as many links as it needs pairs; its cards are distinct, and all of them
are near each other where the pod requests that. Every way is tried, so a container never gets cards that
another one needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from scheduler_ext.fit.card_sets import Chosen, Steps, TooManyStepsError
from scheduler_ext.fit.problem import Layout, beside
from scheduler_ext.fit.search import MAX_SEARCHED
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import uses_of
from scheduler_ext.snapshot.free import Free, FreeShape, TileLinks, takes
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.request.card_amounts import NO_AMOUNT
from timekeeper.core.values import TILES, Ask, Card, ContainerAsk, GPURequest, Placement, Slice

_Taken = frozenset[tuple[int, int]]  # card and tile


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


def lay_out_linked(
    asks: Sequence[ContainerAsk], shape: FreeShape, policy: Policy, steps: Steps
) -> Layout | None:
    """A layout of the asks, each for an even number of cards with one tile each; None if there is none.
    Raises TooManyStepsError."""
    if len(asks) > MAX_SEARCHED:
        raise TooManyStepsError

    def run(at: int, free: tuple[Free, ...], taken: _Taken) -> Layout | None:
        if at == len(asks):
            return Layout((), free, ())
        ask = asks[at].ask
        for links in _ways(ask, _fitting(ask, shape, free, taken, policy), shape, ask.devices // 2, steps):
            ends = [end for a, tile, b, other in links for end in ((a, tile), (b, other))]
            after = _less(ask, free, [card for card, _ in ends])
            rest = run(at + 1, after, taken | frozenset(ends))
            if rest is not None:
                cards, tiles = tuple(card for card, _ in ends), tuple(tile for _, tile in ends)
                return Layout((cards, *rest.chosen), rest.free_by_card, (tiles, *rest.tiles))
        return None

    return run(0, shape.free_by_card, frozenset())


def _fitting(ask: Ask, shape: FreeShape, free: Sequence[Free], taken: _Taken, policy: Policy) -> TileLinks:
    """The links whose two cards fit the ask and whose tiles are free, best first."""
    order = {}
    for at, each in enumerate(free):
        after = takes(ask, each)
        if after is not None:
            order[at] = (not each.preferred, *policy.order(each, after, at))
    found = [
        (sorted((order[a], order[b])), (a, tile, b, other))
        for a, tile, b, other in shape.links
        if a in order and b in order and (a, tile) not in taken and (b, other) not in taken
    ]
    return tuple(link for _, link in sorted(found))


def _ways(
    ask: Ask, links: TileLinks, shape: FreeShape, pairs: int, steps: Steps, held: Chosen = ()
) -> Iterator[TileLinks]:
    """Every set of this many links whose cards are distinct, and near each other where that matters."""
    if pairs == 0:
        yield ()
        return
    for place, (a, tile, b, other) in enumerate(links):
        steps.spend()
        if a in held or b in held or not _near(shape, (*held, a, b)):
            continue
        for rest in _ways(ask, links[place + 1 :], shape, pairs - 1, steps, (*held, a, b)):
            yield ((a, tile, b, other), *rest)


def _near(shape: FreeShape, cards: Chosen) -> bool:
    return not shape.near or all(shape.near[one] >> other & 1 for one in cards for other in cards)


def _less(ask: Ask, free: tuple[Free, ...], cards: Sequence[int]) -> tuple[Free, ...]:
    after = list(free)
    for at in cards:
        left = takes(ask, after[at])
        if left is None:
            raise AssertionError("a card was chosen that does not take the ask")
        after[at] = left
    return tuple(after)
