"""What a node says of its cards and of what its plugins count: cards, or parts of them.

That one ``nvidia.com/gpu`` is a MIG instance, its model says (`percent.labelled_model`); that it is a replica
which shares its card's time, the labels of GPU feature discovery and of GKE. Sources: gpu-feature-discovery's
labels (`docs/dialects.md`); GKE, GPU sharing strategies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from timekeeper.core import names
from timekeeper.core.accelerators import accelerators_in, parts_of
from timekeeper.core.claims.devices import FoundDevice
from timekeeper.core.dialects.amounts import NodeFacts
from timekeeper.core.dialects.mig import card_model, instance_of
from timekeeper.core.dialects.nvidia_parts import REPLICAS_LABEL, SHARED, mig_doubts
from timekeeper.core.dialects.percent import CLIENTS_LABEL, COUNT_LABEL, label_number, labelled_model
from timekeeper.core.json_values import Json
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import is_model
from timekeeper.core.request.inventory import node_facts, time_slices
from timekeeper.core.values import WHOLE_MILLI, Card


@dataclass(frozen=True, slots=True)
class NodeCards:
    """What is known of a node. ``cards``: as they are described; ``part_milli``: which part of a card one
    ``nvidia.com/gpu`` is, in thousandths; ``devices``: by resource, how many of it a device of another vendor
    has; ``doubt``: why its cards may be others than those known; ``doubts``: by resource, what of its part is
    an assumption; ``published``: what a driver publishes of a claim's device, None: nothing."""

    cards: tuple[Card, ...] = ()
    _: KW_ONLY
    part_milli: int = WHOLE_MILLI
    devices: Mapping[str, int] = field(default_factory=dict)
    doubt: str = ""
    doubts: Mapping[str, str] = field(default_factory=dict)
    published: FoundDevice | None = None


NO_CARDS = NodeCards()


def cards_of_node(raw: Json, cards: tuple[Card, ...]) -> NodeCards:
    """What the Node object says. ``cards``: as they are described."""
    facts = node_facts(raw)
    # where the plugin names replicas otherwise, the label is theirs
    replicas = 1 if SHARED in facts.capacity else label_number(facts.labels, REPLICAS_LABEL)
    replicas = replicas or time_slices(facts, cards) // max(1, len(cards))
    parts = {name: parts_of(name, facts.labels) for name in accelerators_in(facts.capacity)}
    return NodeCards(
        cards,
        part_milli=max(1, -(-WHOLE_MILLI // max(1, replicas, label_number(facts.labels, CLIENTS_LABEL)))),
        devices={name: number for name, (number, _) in parts.items() if number > 1},
        doubt=_contradiction(facts, cards),
        doubts={
            **mig_doubts(facts),
            **{
                name: f"{name} {doubt}: nothing says which part of one it is; a weight of it sets another"
                for name, (_, doubt) in parts.items()
                if doubt
            },
        },
    )


def _contradiction(facts: NodeFacts, cards: Sequence[Card]) -> str:
    """Why the labels and the inventory of Bursar's agent cannot both be right; "": they can."""
    count, model = integral(facts.labels.get(COUNT_LABEL)), labelled_model(facts.labels)
    is_ours = names.INVENTORY in facts.annotations
    if not (is_ours and cards and count) or model == "GPU" or instance_of(model):
        return ""
    if any(card.resources or instance_of(card.model) for card in cards):
        return ""  # the labels count cards, and these are parts of some
    model = card_model(model)
    models = sorted({card.model for card in cards})
    if len(cards) == count and any(is_model(known, model) or is_model(model, known) for known in models):
        return ""
    return f"its inventory has {len(cards)} x {', '.join(models)}, its labels say {count} x {model}"
