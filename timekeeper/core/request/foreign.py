"""The placement of a pod that another scheduler bound, from the annotations that it wrote for its plugin."""

from collections.abc import Iterable, Mapping

from timekeeper.core.dialects import DIALECTS, PodFacts
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.request.cards import mismatch, need
from timekeeper.core.request.request import containers
from timekeeper.core.values import Card, GPURequest, Placement, Slice

NamedCards = tuple[tuple[str, tuple[int | str, ...]], ...]  # container -> indexes or UUIDs of its cards


def named_cards(pod: Json, request: GPURequest) -> NamedCards:
    """The cards that the annotations of the pod's own system name; empty if they name none."""
    facts = PodFacts(
        annotations_of(pod), mapping(mapping(pod.get("metadata")).get("labels")), containers(pod)
    )
    systems = (each for each in DIALECTS if request.dialect in (each.name, *each.serves))
    found = ({name: cards for name, cards in each.found(facts, request).items() if cards} for each in systems)
    return tuple(next(filter(None, found), {}).items())


def foreign_placement(request: GPURequest, named: NamedCards, cards: Iterable[Card]) -> Placement | None:
    """The placement on these cards with the amounts that the request takes of them; None if the names are not
    ones that the request could have been given."""
    cards = tuple(cards)
    by_name: Mapping[int | str, Card] = {name: card for card in cards for name in (card.index, card.uuid)}
    wanted = dict(named)
    placed = []
    for each in request.asks:
        found = [by_name[name] for name in wanted.get(each.container, ()) if name in by_name]
        uses = [(card, need(each.ask, card)) for card in found]
        slices = (
            Slice(card.uuid, card.index, use.share_milli, use.memory_mib, use.resources) for card, use in uses
        )
        placed.append((each.container, tuple(slices)))
    placement = Placement(tuple(placed))
    return None if mismatch(request, placement, cards) else placement
