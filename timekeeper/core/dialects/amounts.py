"""What dialects read: a container's limits, a node's description of its cards, and one amount."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.violation import Violation, shown

MAX_CARDS = 64  # of a container, and of a node that describes none; limits the extender's search
MAX_COUNTED = 256  # devices of a node of which only their number is known; replicas of a card are some
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
    elif value == 0:
        problem = "zero is not a valid amount"
    elif value < 0:
        problem = "an amount cannot be negative"
    elif value < least:
        problem = "too small"
    else:
        return value
    return Violation(
        "amount", limits.at(resource), shown(given), problem, allowed, f'{resource}: "{example}"'
    )
