"""Devices as their drivers publish them in ResourceSlices: attributes, capacities, and the counters that
partitions of one device share.

All amounts are thousandths of what the quantity says, so that they are whole numbers.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.object_names import KEEPS_OFF
from timekeeper.core.quantity import thousandths
from timekeeper.core.tables import GroupTable, Table
from timekeeper.core.texts import only_printable

MAX_FORMER = 4_096  # former versions of slices: pools come and go with their nodes
Amounts = tuple[tuple[str, int], ...]  # name and thousandths of each
Attribute = str | int | bool


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a pool. ``attributes`` and ``capacity``: by name, without the driver's own domain;
    ``consumed``: what it takes of each set of counters; ``is_shared``: several claims may hold it at one
    time; ``node``: "" where it is not of one node; ``is_tainted``: a taint of its driver keeps claims off."""

    name: str
    node: str = ""
    attributes: tuple[tuple[str, Attribute], ...] = ()
    capacity: Amounts = ()
    consumed: tuple[tuple[str, Amounts], ...] = ()
    is_shared: bool = False
    is_tainted: bool = False

    def attribute(self, name: str) -> Attribute | None:
        """None: it has none of this name."""
        return dict(self.attributes).get(name)


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """A ResourceSlice: a part of what one driver publishes of one pool. ``counters``: what each set has;
    ``of``: how many slices make the pool in this generation."""

    name: str
    driver: str
    pool: str
    generation: int
    devices: Mapping[str, PublishedDevice]  # by name
    counters: tuple[tuple[str, Amounts], ...] = ()
    of: int = 0


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A published device beside the others of its pool. ``counters``: those sets that it takes from;
    ``unshared``: the counters of which another device that takes from the same set takes nothing."""

    device: PublishedDevice
    counters: tuple[tuple[str, Amounts], ...] = ()
    parent: PublishedDevice | None = None  # the device of which it is a part, if that is published
    siblings: int = 1  # parts of the same device that its driver publishes, itself included
    unshared: frozenset[str] = frozenset()


@dataclass(slots=True)
class PublishedDevices:
    """All slices that exist; of each pool those of its newest generation count."""

    slices: Mapping[str, DeviceSlice] = field(default_factory=dict)  # by name
    # driver and pool -> names of their slices
    pools: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)

    def published(self, driver: str, pool: str, device: str) -> PublishedDevice | None:
        """The device as it may be allocated now; None: it may not."""
        current = self.current(driver, pool)
        return next((part.devices[device] for part in current if device in part.devices), None)

    def every(self) -> dict[tuple[str, str, str], PublishedDevice]:
        """All devices, by driver, pool and name."""
        return {
            (driver, pool, name): each
            for driver, pool in self.pools
            for one in self.current(driver, pool)
            for name, each in one.devices.items()
        }

    def current(self, driver: str, pool: str) -> list[DeviceSlice]:
        """The slices of the pool's newest generation."""
        every = [self.slices[name] for name in self.pools.get((driver, pool), ())]
        newest = max((part.generation for part in every), default=0)
        return [part for part in every if part.generation == newest]


@dataclass(slots=True)
class DevicePools(PublishedDevices):
    """They change here. An allocation may name a device that its driver has just replaced: `find` looks into
    former versions too."""

    slices: Table[str, DeviceSlice] = field(default_factory=Table)
    pools: GroupTable[tuple[str, str], str] = field(default_factory=GroupTable)
    # the oldest first: slices that are gone, and versions of others that said what is said no more
    _former: deque[DeviceSlice] = field(default_factory=lambda: deque(maxlen=MAX_FORMER))

    def frozen(self) -> PublishedDevices:
        """As they are published now."""
        return PublishedDevices(self.slices.frozen(), self.pools.frozen())

    def put(self, found: DeviceSlice) -> None:
        """The slice as it is now."""
        before = self._remove(found.name)
        if before is not None and _is_said_no_more(before, found):
            self._former.append(before)
        self.slices[found.name] = found
        self.pools.add((found.driver, found.pool), found.name)

    def remove(self, name: str) -> None:
        """It does not exist any more."""
        gone = self._remove(name)
        if gone is not None:
            self._former.append(gone)

    def _remove(self, name: str) -> DeviceSlice | None:
        gone = self.slices.remove(name)
        if gone is not None:
            self.pools.leave((gone.driver, gone.pool), name)
        return gone

    def find(self, driver: str, pool: str, device: str) -> FoundDevice | None:
        """The device, as of the newest generation that is whole and has it, else of the newest that has it;
        None: no slice has, or had it."""
        versions = self._versions(driver, pool)
        having = [parts for parts in versions if any(device in part.devices for part in parts)]
        if not having:
            return None
        current = next((version for version in having if len(version) == version[0].of), having[0])
        found = next(part.devices[device] for part in current if device in part.devices)
        taken = {name for name, _ in found.consumed}
        sets = tuple(counter for part in current for counter in part.counters if counter[0] in taken)
        unshared = frozenset(_unshared(found, current)) if found.consumed else frozenset[str]()
        return FoundDevice(found, sets, _parent(found, current), _siblings(found, current), unshared)

    def of_driver(self, driver: str) -> dict[str, int]:
        """The driver's pools, each with the number of its devices."""
        names = sorted(pool for mine, pool in self.pools if mine == driver)
        return {pool: sum(len(part.devices) for part in self.current(driver, pool)) for pool in names}

    def _versions(self, driver: str, pool: str) -> Iterator[list[DeviceSlice]]:
        """What the driver has published of the pool: by generation, the newest that still has slices first;
        then the former slices of these generations, each by itself."""
        there = [self.slices[name] for name in self.pools.get((driver, pool), ())]
        former = [part for part in self._former if (part.driver, part.pool) == (driver, pool)]
        now = {part.generation for part in there}
        numbers = {*now, *(part.generation for part in former)}
        for number in sorted(numbers, key=lambda number: (number in now, number), reverse=True):
            same = {part.name: part for part in (*former, *there) if part.generation == number}
            yield list(same.values())
        yield from ([part] for part in reversed(former))


def _unshared(found: PublishedDevice, pool: Iterable[DeviceSlice]) -> Iterator[str]:
    mine = dict(found.consumed)
    for device in (device for part in pool for device in part.devices.values()):
        for name, consumed in device.consumed:
            yield from dict(mine.get(name, ())).keys() - {counter for counter, amount in consumed if amount}


def _is_said_no_more(before: DeviceSlice, now: DeviceSlice) -> bool:
    """Whether a device is gone, or other slices of the former generation may still be there."""
    is_part = before.of > 1 and before.generation != now.generation
    return is_part or not before.devices.keys() <= now.devices.keys()


def _parent(found: PublishedDevice, pool: Iterable[DeviceSlice]) -> PublishedDevice | None:
    uuid = found.attribute("parentUUID")
    if not uuid:
        return None
    others = (each for one in pool for each in one.devices.values())
    return next((each for each in others if each.attribute("uuid") == uuid and each is not found), None)


_PARENT = ("parentUUID", "parentPciAddr", "resource.kubernetes.io/pciBusID", "pciAddr")


def _siblings(found: PublishedDevice, pool: Iterable[DeviceSlice]) -> int:
    name = next((name for name in _PARENT if found.attribute(name)), "")
    devices = (device for part in pool for device in part.devices.values()) if name else (found,)
    return sum(
        all(other.attribute(key) == found.attribute(key) for key in (name, "type")) for other in devices
    )


def read_slice(raw: Json) -> DeviceSlice:
    """The slice. Never raises on JSON from an API server."""
    spec = mapping(raw.get("spec"))
    pool, driver = mapping(spec.get("pool")), intern(str(spec.get("driver", "")))
    node, generation = str(spec.get("nodeName") or ""), pool.get("generation")
    devices = (_device(mapping(each), driver, node) for each in sequence(spec.get("devices")))
    return DeviceSlice(
        str(mapping(raw.get("metadata")).get("name", "")),
        driver,
        intern(str(pool.get("name", ""))),
        generation if isinstance(generation, int) else 0,
        {each.name: each for each in devices},
        tuple(_counters(spec.get("sharedCounters"), "name", driver)),
        number if isinstance(number := pool.get("resourceSliceCount"), int) else 0,
    )


def _device(raw: Json, driver: str, node: str) -> PublishedDevice:
    return PublishedDevice(
        intern(str(raw.get("name", ""))),
        intern(str(raw.get("nodeName") or node)),
        tuple(_attributes(mapping(raw.get("attributes")), driver)),
        read_amounts(mapping(raw.get("capacity")), driver),
        tuple(_counters(raw.get("consumesCounters"), "counterSet", driver)),
        raw.get("allowMultipleAllocations") is True,
        any(mapping(each).get("effect") in KEEPS_OFF for each in sequence(raw.get("taints"))),
    )


def _attributes(raw: Json, driver: str) -> Iterator[tuple[str, Attribute]]:
    for name, value in raw.items():
        for each in mapping(value).values():  # one of bool, int, string, version
            if isinstance(each, str | int):
                yield _own(name, driver), intern(only_printable(each)) if isinstance(each, str) else each


def _counters(raw: object, named: str, driver: str) -> Iterator[tuple[str, Amounts]]:
    for each in map(mapping, sequence(raw)):
        yield intern(str(each.get(named, ""))), read_amounts(mapping(each.get("counters")), driver)


def read_amounts(raw: Json, driver: str) -> Amounts:
    """Each amount by name, given as a quantity or as ``{"value": QUANTITY}``; what is no quantity is left
    out."""
    found = ((_own(name, driver), thousandths(_value(value))) for name, value in raw.items())
    return tuple(sorted((name, amount) for name, amount in found if amount is not None))


def _value(raw: object) -> object:
    return raw.get("value") if isinstance(raw, Mapping) else raw


def _own(name: str, driver: str) -> str:
    return intern(name.removeprefix(f"{driver}/"))
