"""The shape that every dialect has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core.quantity import integral
from timekeeper.core.values import Ask, GPURequest, Placement
from timekeeper.core.violation import Violation, shown


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """One container's limits, with the path that a message names."""

    path: str
    container: str
    amounts: Mapping[str, Any]

    def at(self, resource: str) -> str:
        """The path of one resource's amount."""
        return f"{self.path}[{resource}]"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one system's users write a request, and what that system's node plugin reads.

    ``read`` turns a container's limits into an ask or violations; ``at_admission`` and ``at_binding`` give
    the annotations that the node plugin expects, ``labels_at_binding`` the labels; ``owned`` names the
    annotations (a name, or a prefix that ends in ``-`` or ``/``) that no user may write; ``plugin_chooses``
    tells that the node plugin picks the cards and sets the container's variables itself, ``plugin_limits``
    that it holds each container to its share by its own means.
    """

    name: str
    resources: tuple[str, ...]
    examples: Mapping[str, str]
    read: Callable[[ContainerLimits], Ask | tuple[Violation, ...]]
    at_admission: Callable[[GPURequest], dict[str, str]]
    at_binding: Callable[[GPURequest, Placement, str, int, tuple[str, ...]], dict[str, str]]
    owned: tuple[str, ...] = ()
    plugin_chooses: bool = False
    labels_at_binding: Callable[[GPURequest, Placement], dict[str, str]] = lambda _request, _placement: {}
    ignored_by_scheduler: tuple[str, ...] = ()
    plugin_limits: bool = False

    @property
    def limited_by_mps(self) -> bool:
        """True where no node plugin has a say in what containers use of their cards, so MPS may limit it."""
        return not (self.plugin_chooses or self.plugin_limits)


def nothing_at_admission(_request: GPURequest) -> dict[str, str]:
    """For dialects whose node plugin wants nothing at creation."""
    return {}


def nothing_at_binding(
    _request: GPURequest, _placement: Placement, _node: str, _now_ns: int, _containers: tuple[str, ...]
) -> dict[str, str]:
    """For dialects whose node plugin reads no annotation."""
    return {}


def amount(
    limits: ContainerLimits, resource: str, least: int, allowed: str, example: str
) -> int | Violation | None:
    """A resource's amount as an integer of at least ``least``; None where the container does not name it."""
    if resource not in limits.amounts:
        return None
    given = limits.amounts[resource]
    value = integral(given)
    if value is None:
        problem = "not a whole number"
    elif value == 0:
        problem = "zero asks for nothing"
    elif value < 0:
        problem = "an amount cannot be negative"
    elif value < least:
        problem = "too small"
    else:
        return value
    return Violation(
        "amount", limits.at(resource), shown(given), problem, allowed, f'{resource}: "{example}"'
    )
