"""Which devices of a driver are GPUs, and by what their parts count: a rule for each driver.

A rule compares attributes and capacities of a published device; it is no expression of CEL, and no name of a
class counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from timekeeper.core.claims.devices import Attribute, PublishedDevice
from timekeeper.core.quantity import thousandths
from timekeeper.core.request.device_classes import DEFAULTS, GPU_DRIVERS, ClassSettings

MAX_UNITS = 100_000  # GPUs of one device; more are a forged number
OPERATORS = ("=", "!=", "<=", ">=", "<", ">")
CAPACITY = "capacity."  # before the name of a capacity
EXAMPLE = "type = gpu|mig or capacity.memory >= 8Gi"

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}"
_COMPARISON = re.compile(rf"({_NAME}) *(<=|>=|!=|=|<|>) *([A-Za-z0-9._+-]+(?:\|[A-Za-z0-9._+-]+)*)", re.ASCII)
_MAX_LENGTH = 256


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """A device meets it if its attribute, or its capacity (``capacity.NAME``), compares so with one of the
    values."""

    name: str
    operator: str
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        """As `read_comparison` reads it."""
        return f"{self.name} {self.operator} {'|'.join(self.values)}"

    def holds(self, device: PublishedDevice) -> bool:
        """An attribute that the device lacks equals nothing."""
        if self.name.startswith(CAPACITY):
            amount = dict(device.capacity).get(self.name.removeprefix(CAPACITY))
            return amount is not None and any(self._is_met(amount, thousandths(each)) for each in self.values)
        found = device.attribute(self.name)
        if self.operator in ("=", "!="):
            return (found is not None and _text(found) in self.values) is (self.operator == "=")
        if isinstance(found, bool) or not isinstance(found, int):
            return False
        return any(self._is_met(1000 * found, thousandths(each)) for each in self.values)

    def _is_met(self, amount: int, other: int | None) -> bool:
        if other is None:
            return False
        return {
            "=": amount == other,
            "!=": amount != other,
            "<": amount < other,
            ">": amount > other,
            "<=": amount <= other,
            ">=": amount >= other,
        }[self.operator]


def _text(value: Attribute) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_comparison(text: str) -> DeviceComparison | None:
    """Reads ``NAME OPERATOR VALUE``, also with several values between bars; None for any other text. What
    compares by size is a number."""
    found = _COMPARISON.fullmatch(text.strip()) if len(text) <= _MAX_LENGTH else None
    if found is None:
        return None
    values = tuple(found[3].split("|"))
    by_size = found[2] not in ("=", "!=") or found[1].startswith(CAPACITY)
    if by_size and any(thousandths(each) is None for each in values):
        return None
    return DeviceComparison(found[1], found[2], values)


@dataclass(frozen=True, slots=True)
class DriverRule:
    """A driver's devices. ``has_gpus``: whether any are GPUs; ``where``: those that meet all of these; none:
    all are. ``model``: the attribute that names the model. ``counters``, ``capacity``: by which of them a
    part of a device, and a share of one, count; none: by all. ``min_share_milli``: what a share costs at
    least, in thousandths of its device. ``units``: the attribute or ``capacity.NAME`` that says how many GPUs
    a device is; "": it is one, or a part of one. ``is_open``: devices that do not meet ``where`` are GPUs of
    a kind that came after the rule."""

    driver: str
    has_gpus: bool = True
    where: tuple[DeviceComparison, ...] = ()
    model: str = "model"
    counters: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    min_share_milli: int = 10
    units: str = ""
    is_open: bool = False

    def units_of(self, device: PublishedDevice) -> Fraction | None:
        """How many GPUs the device is, by ``units``; None where it does not say a number above 0."""
        if self.units.startswith(CAPACITY):
            milli = dict(device.capacity).get(self.units.removeprefix(CAPACITY))
        else:
            milli = thousandths(device.attribute(self.units))
        return Fraction(milli, 1000) if milli is not None and 0 < milli <= 1000 * MAX_UNITS else None

    def knows(self, device: PublishedDevice) -> bool:
        """Whether the device meets all comparisons."""
        return all(comparison.holds(device) for comparison in self.where)

    def is_gpu(self, device: PublishedDevice | None) -> bool:
        """Whether the device is a GPU. One that nothing describes counts as one."""
        if not self.has_gpus:
            return False
        return device is None or self.is_open or self.knows(device)


_NVIDIA = DriverRule(
    "gpu.nvidia.com",
    where=(DeviceComparison("type", "=", ("gpu", "mig", "vfio")),),
    model="productName",
    counters=("multiprocessors", "memory"),
    capacity=("memory", "shares"),
    is_open=True,
)
VENDORS = {"gpu.nvidia.com": "NVIDIA", "gpu.amd.com": "AMD", "gpu.intel.com": "Intel"}  # by driver
_BUILT_IN = (
    *map(DriverRule, GPU_DRIVERS),
    _NVIDIA,  # the rules of these two say more
    DriverRule("gpu.amd.com", model="productName"),
)


def rules_of(given: tuple[DriverRule, ...], settings: ClassSettings = DEFAULTS) -> Mapping[str, DriverRule]:
    """By driver: those that an administrator gave; of other drivers those that are built in; and of others
    still what the lists of ``settings`` say, as admission reads them: all of its devices, or none."""
    listed = (
        *map(DriverRule, settings.gpu_drivers),
        *(DriverRule(driver, has_gpus=False) for driver in settings.other_drivers),
    )
    return {rule.driver: rule for rule in (*listed, *_BUILT_IN, *given)}
