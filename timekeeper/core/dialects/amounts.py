"""What dialects read: a container's limits, a node's description of its cards, and one amount."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.violation import Violation, shown

MAX_CARDS = 64  # of a container, and of a node that describes none; limits the extender's search
MAX_COUNTED = 256  # devices of a node of which only their number is known; replicas of a card are some
MAX_DEVICES = 1024  # of a container: more than any node has, also of parts of devices
MAX_MEMORY_MIB = 1024 * 1024  # 1 TiB on one card: a higher value is a mistake, usually bytes


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The amounts in a container's limits."""

    path: str  # of the limits, as a message names it
    container: str
    amounts: Mapping[str, Any]  # resource -> amount as in JSON

    def at(self, resource: str) -> str:
        """The path of this resource's limit."""
        return f"{self.path}[{resource}]"


@dataclass(frozen=True, slots=True)
class Most:
    """The largest amount of a resource that counts units. ``unit``: what they are, in the plural."""

    resource: str
    amount: int
    unit: str
    rule: str = "memory-range"
    problem: str = "more than any card has"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a Node object says of its cards."""

    capacity: Mapping[str, int]  # the GPU resources that it advertises
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod."""

    path: str  # as messages name it
    name: str
    init: bool  # it ends before the others start (a native sidecar does not)
    raw: Json

    @property
    def limits(self) -> Json:
        """Its limits, by resource; empty without any."""
        return mapping(mapping(self.raw.get("resources")).get("limits"))


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What a Pod object says of its request."""

    annotations: Json
    labels: Json
    containers: tuple[Container, ...] = ()  # init containers first
    scheduler: str = ""  # its schedulerName

    @property
    def ordinary(self) -> tuple[str, ...]:
        """The names of the pod's containers without its init containers."""
        return tuple(each.name for each in self.containers if each.path.startswith("spec.containers"))


def indexes(text: object) -> tuple[int, ...]:
    """Card indexes such as ``0,3``; empty if the text is anything else."""
    words = text.split(",") if isinstance(text, str) else []
    if not 0 < len(words) <= MAX_CARDS or not all(w.isascii() and w.isdigit() and len(w) < 4 for w in words):
        return ()
    return tuple(map(int, words))


def amount(
    limits: ContainerLimits, resource: str, least: int, allowed: str, example: str
) -> int | Violation | None:
    """A resource's amount as an integer of at least ``least``; None if the container does not have it."""
    if resource not in limits.amounts:
        return None
    given = limits.amounts[resource]
    value = integral(given)
    if value is None:
        problem = "not a whole number"
    elif value < 0:
        problem = "an amount cannot be negative"
    elif value < least:
        problem = "too small"
    else:
        return value
    return Violation(
        "amount", limits.at(resource), shown(given), problem, allowed, f'{resource}: "{example}"'
    )


def units(limits: ContainerLimits, most: Most, example: str, cards: int = 1) -> int | Violation | None:
    """As `amount`, of a resource of which each card has so much at most. ``cards``: how many it is on."""
    allowed = f"a whole number of {most.unit}, from 1 to {cards * most.amount}"
    found = amount(limits, most.resource, 1, allowed, example)
    if not isinstance(found, int) or found <= cards * most.amount:
        return found
    got = shown(limits.amounts[most.resource])
    at, text = limits.at(most.resource), f'{most.resource}: "{example}"'
    return Violation(most.rule, at, got, most.problem, allowed, text)
