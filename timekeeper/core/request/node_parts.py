"""What one ``nvidia.com/gpu`` of a node is, by the labels of GPU feature discovery and of GKE: a card, or a
replica that shares its time. That it is a MIG instance, its model says (`percent.labelled_model`). Sources:
gpu-feature-discovery's labels (`docs/dialects.md`); GKE, GPU sharing strategies."""

from collections.abc import Sequence

from timekeeper.core import names
from timekeeper.core.accelerators import accelerators_in, parts_of
from timekeeper.core.dialects.amounts import NodeFacts
from timekeeper.core.dialects.mig import card_model, instance_of
from timekeeper.core.dialects.nvidia_parts import REPLICAS_LABEL, SHARED, mig_doubts
from timekeeper.core.dialects.percent import CLIENTS_LABEL, COUNT_LABEL, label_number, labelled_model
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import is_model
from timekeeper.core.values import WHOLE_MILLI, Card


def card_parts(facts: NodeFacts) -> int:
    """Which part of its card, or of its MIG instance, one `nvidia.com/gpu` of the node is, in thousandths,
    rounded up; 1000 where no label says that it is a part."""
    # where the plugin names replicas otherwise, the label is theirs
    replicas = 1 if SHARED in facts.capacity else label_number(facts.labels, REPLICAS_LABEL)
    return max(1, -(-WHOLE_MILLI // max(1, replicas, label_number(facts.labels, CLIENTS_LABEL))))


def device_parts(facts: NodeFacts) -> dict[str, int]:
    """Of the node's accelerators that are parts of devices: how many each device has of the resource."""
    found = {name: parts_of(name, facts.labels)[0] for name in accelerators_in(facts.capacity)}
    return {name: number for name, number in found.items() if number > 1}


def part_doubts(facts: NodeFacts) -> dict[str, str]:
    """By resource, what of its part of a card or of a device is an assumption."""
    doubts = {name: parts_of(name, facts.labels)[1] for name in accelerators_in(facts.capacity)}
    sentences = {
        name: f"{name} {doubt}: nothing says which part of one it is; a weight of it sets another"
        for name, doubt in doubts.items()
        if doubt
    }
    return {**mig_doubts(facts), **sentences}


def contradiction(facts: NodeFacts, cards: Sequence[Card]) -> str:
    """Why the labels and the inventory of Bursar's agent cannot both be right; "": they can."""
    count, model = integral(facts.labels.get(COUNT_LABEL)), labelled_model(facts.labels)
    is_ours = names.INVENTORY in facts.annotations
    if not (is_ours and cards and count) or model == "GPU" or instance_of(model):
        return ""
    if any(card.resources or instance_of(card.model) for card in cards):
        return ""  # the labels count cards, and these are parts of some
    model = card_model(model)
    models = sorted({card.model for card in cards})
    if len(cards) == count and any(is_model(each, model) or is_model(model, each) for each in models):
        return ""
    return f"its inventory has {len(cards)} x {', '.join(models)}, its labels say {count} x {model}"
