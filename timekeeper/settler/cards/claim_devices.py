"""GPUs that drivers give out by claims: what is free of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from timekeeper.core.claims.devices import DeviceSlice, FoundDevice, PublishedDevice
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.dialects.mig import card_model
from timekeeper.core.free_cards import Apart, FreeUnit
from timekeeper.core.rating.devices import MIG, model_of
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.settler.state.tick_view import TickView


class ClaimDevices(NamedTuple):
    """What drivers give out on a node by claims. ``uuids``: of the cards that these are; with "": some of
    them do not say it."""

    units: tuple[FreeUnit, ...] = ()
    uuids: frozenset[str] = frozenset()


NO_DEVICES = ClaimDevices()


def devices_of(view: TickView) -> dict[str, ClaimDevices]:
    """The GPUs that claims give out, by node."""
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for driver, pool, name in view.freed:
        held[driver, pool][name] = WHOLE_MILLI
    for claim in view.cluster.allocated.values():
        for allocated in claim.allocation.devices if claim.allocation else ():
            if not allocated.is_admin:
                there = held[allocated.driver, allocated.pool]
                key = allocated.driver, allocated.pool, allocated.device
                device = view.cluster.devices.published(*key) if allocated.share else None
                part = _part(allocated.consumed, device) if allocated.share else WHOLE_MILLI
                there[allocated.device] = there.get(allocated.device, 0) + part
    found: dict[str, ClaimDevices] = {}
    for driver, pool in view.cluster.devices.pools:
        rule = view.cluster.rules.get(driver)
        if rule is not None and rule.has_gpus:
            slices = view.cluster.devices.current(driver, pool)
            for gpu, unit in _units(slices, held.get((driver, pool), {}), rule):
                before = found.get(gpu.node, NO_DEVICES)
                uuids = (gpu.attribute(name) for name in ("uuid", "parentUUID"))
                named = {str(uuid) for uuid in uuids if uuid} or {""}
                found[gpu.node] = ClaimDevices((*before.units, unit), before.uuids | named)
    return found


def devices_from_ms(view: TickView, devices: Iterable[ClaimDevices], now_ms: int) -> int:
    """Before when no device of claims is free, if the pods that use them run for the time that they declare;
    0: for one of them none is known; -1: some device is free, or there is none."""
    units = [unit for there in devices for unit in there.units if not unit.apart]
    if not units or any(unit.free_milli for unit in units):
        return -1
    ends = [0] if view.freed else []
    for claim in view.cluster.allocated.values():
        drivers = {device.driver for device in claim.allocation.devices} if claim.allocation else set[str]()
        if any((rule := view.cluster.rules.get(driver)) is not None and rule.has_gpus for driver in drivers):
            users = filter(None, map(view.cluster.user, claim.consumers))
            known = [(pod.hold.bound_ms or now_ms) + pod.runs_ms for pod in users if pod.runs_ms]
            ends.append(max(known, default=0))
    first_ms = min(ends, default=0)
    return first_ms if first_ms > now_ms else 0


def _part(consumed: Iterable[tuple[str, int]], device: PublishedDevice | None) -> int:
    """Which part of the device a share takes, in thousandths."""
    most = dict(device.capacity) if device is not None else {}
    return max((WHOLE_MILLI * amount // most[name] for name, amount in consumed if most.get(name)), default=0)


def _units(
    slices: Iterable[DeviceSlice], held: Mapping[str, int], rule: DriverRule
) -> Iterator[tuple[PublishedDevice, FreeUnit]]:
    """The pool's GPUs. Of parts that overlap, by the counters that they consume, those that are held count,
    then whole devices, then parts in the order of their names, as far as they fit."""
    left = {
        (name, counter): amount
        for part in slices
        for name, amounts in part.counters
        for counter, amount in amounts
    }
    devices = (device for part in slices for device in part.devices.values())
    gpus = [device for device in devices if device.node and rule.is_gpu(device)]
    for gpu in sorted(gpus, key=lambda gpu: (gpu.name not in held, gpu.attribute("type") == MIG, gpu.name)):
        is_instance, is_held = gpu.attribute("type") == MIG, gpu.name in held
        takes = {(name, counter): amount for name, amounts in gpu.consumed for counter, amount in amounts}
        fits = all(left.get(key, 0) >= amount for key, amount in takes.items())
        if fits or is_held:
            left.update({key: left.get(key, 0) - amount for key, amount in takes.items()})
        elif is_instance:
            continue
        model = model_of(FoundDevice(gpu), rule)
        name = f"{model} MIG {gpu.attribute('profile')}" if is_instance else model
        free_milli = max(0, WHOLE_MILLI - held.get(gpu.name, 0)) if fits or is_held else 0
        apart: Apart = "cordoned" if gpu.is_tainted else ""
        yield gpu, FreeUnit(name, free_milli, apart, card_model(name), weight_of(name, ()))
