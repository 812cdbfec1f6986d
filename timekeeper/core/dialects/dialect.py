"""The interface of every dialect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core.quantity import integral
from timekeeper.core.values import Ask, GPURequest, Placement
from timekeeper.core.violation import Violation, shown


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    path: str  # of the limits, as a message names it
    container: str
    amounts: Mapping[str, Any]  # resource -> amount as in JSON

    def at(self, resource: str) -> str:
        return f"{self.path}[{resource}]"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How users of one system write a request, and what that system's node plugin reads."""

    name: str
    resources: tuple[str, ...]
    examples: Mapping[str, str]  # resource -> a valid amount
    # a container's limits -> request or violations
    read: Callable[[ContainerLimits], Ask | tuple[Violation, ...]]
    # annotations that the node plugin expects on a created pod
    at_admission: Callable[[GPURequest], dict[str, str]]
    # annotations that it expects on a bound pod: request, placement, node, now_ns, containers
    at_binding: Callable[[GPURequest, Placement, str, int, tuple[str, ...]], dict[str, str]]
    # annotations that users may not write: names, or prefixes that end in ``-`` or ``/``
    owned: tuple[str, ...] = ()
    plugin_chooses: bool = False  # the node plugin chooses the cards and sets the container's variables
    # labels that it expects on a bound pod
    labels_at_binding: Callable[[GPURequest, Placement], dict[str, str]] = lambda _request, _placement: {}
    ignored_by_scheduler: tuple[str, ...] = ()  # resources that kube-scheduler ignores
    plugin_limits: bool = False  # the node plugin enforces each container's share itself

    @property
    def limited_by_mps(self) -> bool:
        """True if MPS may limit the containers, because no node plugin does."""
        return not (self.plugin_chooses or self.plugin_limits)


def nothing_at_admission(_request: GPURequest) -> dict[str, str]:
    """For dialects whose node plugin needs nothing at creation."""
    return {}


def nothing_at_binding(
    _request: GPURequest, _placement: Placement, _node: str, _now_ns: int, _containers: tuple[str, ...]
) -> dict[str, str]:
    """For dialects whose node plugin reads no annotation."""
    return {}


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
