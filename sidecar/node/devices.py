"""Where the agent reads cards: NVML, or a reader that an installed package ships.

Such a package has an entry point of the group ``bursar.devices``: a callable that gets a clock (a callable in
monotonic milliseconds) and returns a `DeviceReader`. KubeGPU's node advertiser loads plugins in this way.

A card's UUID is what the vendor's device plugin calls it, which may add ``::`` or ``-`` and more for its
parts. By its processes the agent finds the use of pods, and pods on cards that they were not given.
"""

from __future__ import annotations

from functools import partial

from sidecar.log import log
from sidecar.node.nvml.cards import NvmlReader, binding
from sidecar.node.values import NO_VENDOR, DeviceReading, Vendor
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from sidecar.node.values import CardFailed

    class DeviceReader(Protocol):
        """Reads the cards of one vendor. One thread uses it."""

        @property
        def vendor(self) -> Vendor:
            """Resources and programs of the vendor on the node. A package's reader may be without."""

        @property
        def waits(self) -> bool:
            """Whether `wait` waits for events; otherwise the cards are read at each interval alone."""

        @property
        def paths(self) -> Mapping[str, str]:
            """By UUID the path of the card's device node; may be left out."""

        def look(self) -> DeviceReading:
            """All cards of the node, with their health and use, now."""

        def wait(self, most_ms: int) -> CardFailed | None:
            """Wait up to ``most_ms`` for an event that makes cards unhealthy. None if there is none."""


GROUP = "bursar.devices"
NVML = "nvml"
MAX_UUID = 128  # characters


class UnusableDevicesError(Exception):
    """The reader cannot be used; the text is a sentence that names it."""


class GuardedReader:
    """A reader whose exceptions become readings with an error, so that they never end the agent."""

    def __init__(self, reader: DeviceReader) -> None:
        self._reader, self._failed = reader, False
        self.vendor: Vendor = getattr(reader, "vendor", NO_VENDOR)
        if not isinstance(self.vendor, Vendor):
            raise TypeError(f"vendor is {self.vendor!r}, but must be a Vendor of sidecar.node.values")

    @property
    def waits(self) -> bool:
        """As of the reader, until it has failed to wait."""
        return not self._failed and self._reader.waits

    @property
    def paths(self) -> Mapping[str, str]:
        """As of the reader; empty where it has none."""
        found: Mapping[str, str] = getattr(self._reader, "paths", {})
        return found

    def look(self) -> DeviceReading:
        """As of the reader; its exception is the error of the reading."""
        try:
            return self._checked(self._reader.look())
        except Exception as error:
            return DeviceReading((), (), (), (), (), (), (), f"{type(error).__name__}: {error}")

    def wait(self, most_ms: int) -> CardFailed | None:
        """As of the reader; after an exception the cards are read at each interval alone."""
        try:
            return self._reader.wait(most_ms)
        except Exception as error:
            self._failed = True
            log("events-lost", reason=f"{type(error).__name__}: {error}")
            return None

    @staticmethod
    def _checked(reading: DeviceReading) -> DeviceReading:
        """Raises ValueError if the inventory would be one that no reader of it trusts."""
        cards = reading.cards
        if len({each.uuid for each in cards}) < len(cards) or len({each.index for each in cards}) < len(
            cards
        ):
            raise ValueError("two cards have the same UUID or index")
        for each in cards:
            if not _is_uuid(each.uuid) or each.memory_mib < 1 or each.index < 0:
                raise ValueError(f"card {each.uuid!r} has no usable UUID, no memory, or a negative index")
        return reading


def _is_uuid(text: str) -> bool:
    """Whether annotations, a list by commas, and reports to the timekeeper can have it."""
    return 0 < len(text) <= MAX_UUID and text.isascii() and text.isprintable() and not {" ", ","} & set(text)


def reader_of(
    name: str, clock: Callable[[], int], ignored_xids: frozenset[int], driver_root: str
) -> DeviceReader:
    """The reader of this name. Raises UnusableDevicesError."""
    if name == NVML:
        return NvmlReader(clock, ignored_xids, partial(binding, driver_root))
    from importlib.metadata import entry_points  # takes memory that NVML's agents need not spend

    shipped = {each.name: each for each in entry_points(group=GROUP)}
    if name not in shipped:
        known = ", ".join(sorted({NVML, *shipped}))
        raise UnusableDevicesError(f"--devices is {name!r}, but must be one of {known}.")
    try:
        return GuardedReader(shipped[name].load()(clock))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise UnusableDevicesError(f"--devices {name}: entry point {GROUP} failed: {fault}") from None
