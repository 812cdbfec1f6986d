"""Accelerators that no dialect reads, where `_settings` says that they are metered: a number of devices,
which any scheduler places and the vendor's plugin shows.

It is in no table of ways of writing a request, because only the setting makes such a pod one of Bursar's
(`timekeeper.core.request.devices`).
"""

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of, cores_of
from timekeeper.core.dialects.amounts import MAX_DEVICES, ContainerLimits, amount
from timekeeper.core.dialects.dialect import Dialect, nothing_at_binding, nothing_to_read
from timekeeper.core.json_values import Json
from timekeeper.core.values import WHOLE_MILLI, Ask, GPURequest
from timekeeper.core.violation import Violation, shown


def devices_of(resource: str, count: int) -> Ask | None:
    """What this amount of the resource is: devices; of cores, equal parts of as few devices as have them; of
    memory one device, for nothing says how much it has. None if no node has so much."""
    cores = cores_of(resource)
    devices = count if cores is None else -(-count // cores) if cores else 1
    if not 0 < devices <= MAX_DEVICES:
        return None
    milli = -(-WHOLE_MILLI * count // (cores * devices)) if cores else WHOLE_MILLI
    return Ask(devices, milli, 0, device=resource)


def read_devices(limits: ContainerLimits, resource: str) -> Ask | Violation:
    """What a container requests by this resource, which its limits have."""
    cores = cores_of(resource)
    allowed = "a whole number from 1" + ("" if cores == 0 else f" to {(cores or 1) * MAX_DEVICES}")
    count = amount(limits, resource, 1, allowed, "1")
    if isinstance(count, Violation):
        return count
    asked = None if count is None else devices_of(resource, count)
    got, example = shown(limits.amounts[resource]), f'{resource}: "1"'
    return asked or Violation("amount", limits.at(resource), got, "more than any node has", allowed, example)


def record(request: GPURequest) -> dict[str, str]:
    """The annotation of a pod with devices that only the settings name, so that it stays what it was when it
    was admitted."""
    devices = {ask.ask.device for ask in request.asks}
    named = sorted(device for device in devices if accelerator_of(device) is None)
    return {names.ACCELERATORS: ",".join(named)} if named else {}


def recorded(annotations: Json) -> tuple[str, ...]:
    """The resources that admission recorded."""
    return tuple(str(annotations.get(names.ACCELERATORS, "")).split(","))


DIALECT = Dialect(
    name="device",
    resources=(),
    examples={},
    read=nothing_to_read,
    at_admission=record,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    placed_by_others=True,
)
