"""The placement of a pod that another scheduler bound, from the annotations that it wrote for its plugin."""

from collections.abc import Iterable, Mapping
from functools import cache

from timekeeper.core.dialects import DIALECTS, Container, PodFacts
from timekeeper.core.dialects.dialect import CardName, Dialect, TilesOf, nothing_found
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.request.cards import mismatch, need
from timekeeper.core.values import Card, GPURequest, Placement, Slice

NamedCards = tuple[tuple[str, tuple[CardName, ...]], ...]  # container -> its cards


def named_cards(pod: Json, request: GPURequest, listed: tuple[Container, ...]) -> NamedCards:
    """The cards that the annotations of the pod's own system name; empty if they name none. ``listed``: the
    pod's containers (`request.containers`)."""
    systems = _systems(request.dialect)
    if not systems:
        return ()
    facts = PodFacts(annotations_of(pod), mapping(mapping(pod.get("metadata")).get("labels")), listed)
    found = ({name: cards for name, cards in each.found(facts, request).items() if cards} for each in systems)
    return tuple(next(filter(None, found), {}).items())


@cache
def _systems(dialect: str) -> tuple[Dialect, ...]:
    """Those that may have placed its pods and write the cards."""
    return tuple(
        each for each in DIALECTS if dialect in (each.name, *each.serves) and each.found is not nothing_found
    )


def foreign_placement(request: GPURequest, named: NamedCards, cards: Iterable[Card]) -> Placement | None:
    """The placement on these cards with the amounts that the request takes of them; None if the names are not
    ones that the request could have been given."""
    cards = tuple(cards)
    by_name: Mapping[int | str, Card] = {name: card for card in cards for name in (card.index, card.uuid)}
    wanted = dict(named)
    placed = []
    for each in request.asks:
        found = map(_with_tiles, wanted.get(each.container, ()))
        uses = [
            (by_name[name], need(each.ask, by_name[name]), tiles) for name, tiles in found if name in by_name
        ]
        slices = (
            Slice(card.uuid, card.index, use.share_milli, use.memory_mib, use.resources, tiles)
            for card, use, tiles in uses
        )
        placed.append((each.container, tuple(slices)))
    placement = Placement(tuple(placed))
    return None if mismatch(request, placement, cards) else placement


def _with_tiles(name: CardName) -> tuple[int | str, tuple[int, ...]]:
    return (name.card, name.tiles) if isinstance(name, TilesOf) else (name, ())
