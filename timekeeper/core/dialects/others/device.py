"""Accelerators that no dialect reads, where `_settings` says that they are metered: a number of devices,
which any scheduler places and the vendor's plugin shows.

It is in no table of ways of writing a request, because only the setting makes such a pod one of Bursar's
(`timekeeper.core.request.devices`).
"""

from timekeeper.core.dialects.amounts import MAX_DEVICES, ContainerLimits, amount
from timekeeper.core.dialects.dialect import (
    Dialect,
    nothing_at_admission,
    nothing_at_binding,
    nothing_to_read,
)
from timekeeper.core.values import WHOLE_MILLI, Ask
from timekeeper.core.violation import Violation, shown

_ALLOWED = f"a whole number from 1 to {MAX_DEVICES}"


def read_devices(limits: ContainerLimits, resource: str) -> Ask | Violation:
    """What a container requests by this resource, which its limits have."""
    count = amount(limits, resource, 1, _ALLOWED, "1")
    if isinstance(count, int) and count <= MAX_DEVICES:
        return Ask(count, WHOLE_MILLI, 0, device=resource)
    if isinstance(count, Violation):
        return count
    got, example = shown(limits.amounts[resource]), f'{resource}: "1"'
    return Violation("amount", limits.at(resource), got, "more than any node has", _ALLOWED, example)


DIALECT = Dialect(
    name="device",
    resources=(),
    examples={},
    read=nothing_to_read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    placed_by_others=True,
)
