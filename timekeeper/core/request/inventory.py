"""The cards of a node: from the inventory of Bursar's agent, or as the node plugin of a dialect describes
them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.accelerators import BESIDE_CARDS, accelerator_of
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE_PATTERN, Dialect
from timekeeper.core.dialects.amounts import MAX_CARDS, NodeFacts
from timekeeper.core.dialects.mig import instance_of
from timekeeper.core.dialects.nvidia import GPU as NVIDIA
from timekeeper.core.dialects.nvidia_parts import REPLICAS_LABEL
from timekeeper.core.dialects.percent import (
    CLIENTS_LABEL,
    COUNT_LABEL,
    MODEL_LABEL,
    UNKNOWN_MEMORY_MIB,
    label_mib,
    label_number,
    labelled_model,
)
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import decode_inventory, nri_plugins
from timekeeper.core.request.runtime_plugins import KAIS
from timekeeper.core.values import Card, UndecodableError

_NODE_ANNOTATIONS = frozenset(each.node_annotation for each in DIALECTS if each.node_annotation)
# Source: KAI-Scheduler, pkg/common/constants; gpu-fractioning's operator writes it
_FRACTIONED = "gpu-fractioning.nvidia.com/Ready"


def read_cards(raw: Json) -> tuple[Card, ...] | None:
    """The cards of a Node object; None if nothing describes any. Raises UndecodableError."""
    return cards_by(node_facts(raw), raw)


def cards_by(facts: NodeFacts, raw: Json) -> tuple[Card, ...] | None:
    """The same, where ``facts`` are what the Node object says of its cards (`node_facts`)."""
    dialects = dialects_of(facts)
    if any(dialect.own_cards for dialect in dialects):
        return _cards_in_parts(raw, facts, dialects) or None
    described = [each for each in dialects if each.node_annotation]
    inventory = annotations_of(raw).get(names.INVENTORY)
    if inventory is not None and not described:
        return _in_units(decode_inventory(str(inventory)), facts)
    try:
        return next(filter(None, (each.cards(facts) for each in described or dialects)), None)
    except ValueError as error:
        raise UndecodableError(f"the node plugin's description: {error}") from error


def _cards_in_parts(raw: Json, facts: NodeFacts, dialects: Collection[Dialect]) -> tuple[Card, ...]:
    """The cards of which a plugin gives out replicas or instances, and those beside them that it gives out
    whole. Raises UndecodableError."""
    own, *more = (dialect.cards(facts) for dialect in dialects if dialect.own_cards)
    whole = [card for dialect in dialects for card in dialect.counted_cards(facts)]
    inventory, known = annotations_of(raw).get(names.INVENTORY), tuple[Card, ...]()
    if whole and inventory is not None:
        known = tuple(card for card in decode_inventory(str(inventory)) if not instance_of(card.model))
        whole = []
    others = enumerate(card for group in (*more, whole) for card in group)
    return (*own, *(replace(card, uuid=f"other{at}") for at, card in others), *known)


def time_slices(node: NodeFacts, cards: Collection[Card]) -> int:
    """How many ``nvidia.com/gpu`` NVIDIA's plugin makes of these cards, which Bursar's agent describes; 0: as
    many as they are. Where no label says that it shares their time, a multiple of them does: else the agent
    lacks a card."""
    offered = node.capacity.get(NVIDIA, 0)
    is_ours = names.INVENTORY in node.annotations and not any(card.resources for card in cards)
    if not (is_ours and 0 < len(cards) < offered):
        return 0
    said = max(label_number(node.labels, name) for name in (REPLICAS_LABEL, CLIENTS_LABEL))
    guessed = not (said or offered % len(cards) or any(instance_of(card.model) for card in cards))
    return offered if said > 1 or guessed else 0


def counted_cards(raw: Json) -> tuple[Card, ...] | None:
    """The cards of a Node object of which `read_cards` knows nothing: as many as its plugin has; None if no
    plugin does that alone. Those that it does not give out, for none of that kind is allocatable, are
    unhealthy."""
    facts, listed = node_facts(raw), mapping(mapping(raw.get("status")).get("allocatable"))
    facts = replace(facts, capacity={name: facts.capacity[name] for name in facts.capacity if name in listed})
    dialect = next((each for each in dialects_of(facts) if each.counted_cards(facts)), None)
    if dialect is None:
        return None
    given = Counter(
        card.resources for card in dialect.counted_cards(replace(facts, capacity=gpu_amounts(listed)))
    )
    cards = []
    for card in dialect.counted_cards(facts):
        cards.append(replace(card, healthy=given[card.resources] > 0))
        given[card.resources] -= 1
    return tuple(cards)


def runtime_plugins(raw: Json) -> tuple[str, ...]:
    """The plugins of a Node's container runtime that containers with cards need, by the names under which
    they register: the agent's word, and KAI's where its operator says in the node's status that it is ready.
    Users can write neither."""
    said = nri_plugins(str(annotations_of(raw).get(names.INVENTORY, "")))
    return (*said, KAIS) if _is_fractioned(raw) and KAIS not in said else said


def _is_fractioned(raw: Json) -> bool:
    conditions = map(mapping, sequence(mapping(raw.get("status")).get("conditions")))
    return any((each.get("type"), each.get("status")) == (_FRACTIONED, "True") for each in conditions)


def plugin_chooses(raw: Json) -> bool:
    """Whether a device plugin picks the cards of a Node object, whatever a placement says."""
    return any(dialect.plugin_chooses for dialect in dialects_of(node_facts(raw)))


def charged_cards(raw: Json) -> tuple[Card, ...]:
    """The cards of a Node object by which pods are charged: those of `read_cards`, else as another
    scheduler's plugin or labels describe them. Raises UndecodableError."""
    facts = node_facts(raw)
    cards = cards_by(facts, raw)
    if cards is not None:
        return cards
    try:
        described = next(filter(None, (each.charged_cards(facts) for each in dialects_of(facts))), ())
    except ValueError as error:
        raise UndecodableError(f"the node plugin's description: {error}") from error
    return described or _labelled_cards(facts)


def _in_units(cards: tuple[Card, ...], node: NodeFacts) -> tuple[Card, ...]:
    """The cards with their memory in the units of the node's plugin, in proportion to their sizes: pods
    request these units, and which they are no object says."""
    total = next((node.capacity.get(each.memory_units, 0) for each in dialects_of(node)), 0)
    whole = sum(card.memory_mib for card in cards)
    if not total or not whole:
        return cards
    return tuple(replace(card, memory_mib=card.memory_mib * total // whole) for card in cards)


def _labelled_cards(node: NodeFacts) -> tuple[Card, ...]:
    """The cards that labels describe: those of GPU feature discovery, else of clouds, which do not say how
    many there are, or how much memory they have."""
    model, memory = labelled_model(node.labels), label_mib(node.labels)
    if MODEL_LABEL in node.labels:
        count = label_number(node.labels, COUNT_LABEL) if memory else 0
    else:
        offered = 0 if model == "GPU" else max(node.capacity.values(), default=0)
        count, memory = -(-offered // max(1, label_number(node.labels, CLIENTS_LABEL))), UNKNOWN_MEMORY_MIB
    known = 0 < count <= MAX_CARDS
    return tuple(Card(f"card{index}", index, model, memory) for index in range(count if known else 0))


def dialects_of(node: NodeFacts) -> tuple[Dialect, ...]:
    """The dialects that the node's plugins serve, as far as Bursar knows them.

    A plugin that describes its node by an annotation takes the resources that it shares with another dialect.
    """
    return _dialects_of(frozenset(node.capacity), _NODE_ANNOTATIONS.intersection(node.annotations))


@lru_cache(maxsize=1_024)
def _dialects_of(resources: frozenset[str], annotations: frozenset[str]) -> tuple[Dialect, ...]:
    """By the names of a node's resources and of those of its annotations that describe cards: many nodes
    have the same."""
    described = {each.name: each for each in DIALECTS if each.node_annotation in annotations}
    marked = {
        name
        for name, each in described.items()
        if not each.advertised or not resources.isdisjoint(each.advertised)
    }
    taken = {resource for name in marked for resource in described[name].shared}
    left = resources - taken
    left -= {name for each in DIALECTS if _advertises(left, each) for name in each.node_resources}
    return tuple(each for each in DIALECTS if each.name in marked or _advertises(left, each))


def _advertises(resources: Collection[str], dialect: Dialect) -> bool:
    """A prefix alone counts where the dialect has no other resource."""
    if dialect.prefix and not dialect.resources:
        return any(name.startswith(dialect.prefix) for name in resources)
    return not set(dialect.resources).isdisjoint(resources)


def gpu_amounts(amounts: Json) -> dict[str, int]:
    """The GPU resources among these with an amount above zero, and accelerators that no dialect reads: a node
    with cards whose plugin is one of these is closed."""
    found = {name: integral(amount) or 0 for name, amount in amounts.items() if _is_of_gpus(name)}
    return {name: amount for name, amount in found.items() if amount > 0}


def vendor_of(resource: str) -> str:
    """Whose cards the resource counts."""
    row = accelerator_of(resource)
    if row is not None:
        return row.vendor
    return "Intel" if resource.startswith("gpu.intel.com/") else "NVIDIA"


@lru_cache(maxsize=4_096)  # a cluster's nodes have few resources
def _is_of_gpus(resource: str) -> bool:
    row = accelerator_of(resource)
    is_device = row is not None and row.domain not in BESIDE_CARDS
    return GPU_RESOURCE_PATTERN.match(resource) is not None or is_device


def advertised(raw: Json) -> tuple[str, ...]:
    """The resources of which a Node object has any."""
    capacity = mapping(mapping(raw.get("status")).get("capacity"))
    return tuple(name for name, amount in capacity.items() if amount and integral(amount) != 0)


def node_facts(raw: Json) -> NodeFacts:
    """What a Node object says of its cards. A resource of which nothing is allocatable, beside another of
    which something is, is left over: for five minutes the kubelet keeps the capacity of a plugin that is
    gone."""
    status = mapping(raw.get("status"))
    capacity, allocatable = gpu_amounts(mapping(status.get("capacity"))), mapping(status.get("allocatable"))
    if gpu_amounts(allocatable):
        capacity = {name: amount for name, amount in capacity.items() if integral(allocatable.get(name)) != 0}
    labels = mapping(mapping(raw.get("metadata")).get("labels"))
    return NodeFacts(capacity, _texts(labels), _texts(annotations_of(raw)))


def _texts(names: Json) -> dict[str, str]:
    return {name: text for name, text in names.items() if isinstance(text, str)}
