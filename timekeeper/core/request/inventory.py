"""The cards of a node: from the inventory of Bursar's agent, or as the node plugin of a dialect describes
them."""

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE_PATTERN
from timekeeper.core.dialects.amounts import NodeFacts
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import decode_inventory
from timekeeper.core.values import Card


def read_cards(raw: Json) -> tuple[Card, ...] | None:
    """The cards of a Node object; None if nothing describes any. Raises UndecodableError."""
    inventory = annotations_of(raw).get(names.INVENTORY)
    if inventory is not None:
        return decode_inventory(str(inventory))
    facts = _facts(raw)
    described = (
        each.cards(facts) for each in DIALECTS if not facts.capacity.keys().isdisjoint(each.resources)
    )
    return next(filter(None, described), None)


def gpu_amounts(amounts: Json) -> dict[str, int]:
    """The GPU resources among these with an amount above zero."""
    found = {
        name: integral(amount) or 0 for name, amount in amounts.items() if GPU_RESOURCE_PATTERN.match(name)
    }
    return {name: amount for name, amount in found.items() if amount > 0}


def _facts(raw: Json) -> NodeFacts:
    capacity = gpu_amounts(mapping(mapping(raw.get("status")).get("capacity")))
    labels = mapping(mapping(raw.get("metadata")).get("labels"))
    return NodeFacts(capacity, {name: text for name, text in labels.items() if isinstance(text, str)})
