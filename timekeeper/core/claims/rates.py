"""What a claim's devices cost, fixed when their allocation is first seen.

A whole device costs 1000 milli-GPU times the weight of its model, times the GPUs that it is by its driver's
rule. A MIG instance costs its slices of compute over those of its card; another part the largest of its parts
of the counters that it shares with the others, or an equal part of what its driver publishes of one device; a
share the largest of the parts that it consumes of its device's capacities, and never less than the rule's
least share. Each device's rate is rounded up.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from timekeeper.core.accelerators import PRODUCT_LABEL, parts_of
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceAllocation
from timekeeper.core.claims.devices import Amounts, FoundDevice, PublishedDevice
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.dialects.mig import CardSlices, Profile, card_model, profile_of, slices_of
from timekeeper.core.request.cards import Weights, stated_weight, weight_of
from timekeeper.core.values import WHOLE_MILLI

MIG = "mig"  # the type of NVIDIA's instances
_MIB = 1024 * 1024
_WHOLE = Fraction(1)
_SEVERAL = (
    "it takes all of a counter that others leave, or counters of several sets, and counts as one GPU at most:"
    " drivers.{driver}.units says how many GPUs a device is"
)

Find = Callable[[str, str, str], FoundDevice | None]


@dataclass(frozen=True, slots=True)
class DeviceCharge:
    """What one allocated GPU costs. ``share_milli``: the part of a whole device that it is, unweighted;
    ``model``: "" where nothing says it; ``doubt``: what of it is an assumption; "": nothing."""

    device: AllocatedDevice
    model: str = ""
    share_milli: int = WHOLE_MILLI
    memory_mib: int = 0
    rate_milli: int = 0
    doubt: str = ""
    is_unpublished: bool = False  # no slice has the device
    uuid: str = ""  # as its driver publishes it; "": it does not


@dataclass(frozen=True, slots=True)
class ClaimCharge:
    """What an allocation costs: its GPUs, and the drivers of its devices for which there is no rule."""

    gpus: tuple[DeviceCharge, ...]
    unknown_drivers: tuple[str, ...] = ()

    @property
    def rate_milli(self) -> int:
        """Of all together, weighted."""
        return sum(each.rate_milli for each in self.gpus)

    @property
    def doubt(self) -> str:
        """The first one's; "": the rate is certain."""
        return next((each.doubt for each in self.gpus if each.doubt), "")


def charge_of(
    allocation: DeviceAllocation, find: Find, rules: Mapping[str, DriverRule], weights: Weights
) -> ClaimCharge:
    """The charge of what is allocated, by what drivers publish of it now."""
    gpus, unknown = [], set()
    for each in allocation.devices:
        rule = rules.get(each.driver)
        if rule is None:
            unknown.add(each.driver)
            continue
        found = find(each.driver, each.pool, each.device)
        if rule.is_gpu(found.device if found else None):
            gpus.append(_charge(each, found, rule, weights))
    return ClaimCharge(tuple(gpus), tuple(sorted(unknown)))


def _charge(
    allocated: AllocatedDevice, found: FoundDevice | None, rule: DriverRule, weights: Weights
) -> DeviceCharge:
    if found is None:
        doubt = "no ResourceSlice has its device, which counts as a whole one with weight 1"
        charged = DeviceCharge(allocated, rate_milli=WHOLE_MILLI, doubt=doubt, is_unpublished=True)
        return replace(charged, share_milli=0, rate_milli=0, doubt="") if allocated.is_admin else charged
    model = card_model(str(found.device.attribute(rule.model) or ""))
    if allocated.is_admin:
        return DeviceCharge(allocated, model, share_milli=0)
    part, doubt = _part(found, rule)
    share = _share(allocated, found.device, rule)
    milli = max(1, _ceil(WHOLE_MILLI * part * share))
    stated = stated_weight(f"{model} MIG {found.device.attribute('profile')}", weights)
    if stated is None:
        rate = _ceil(Fraction(milli * weight_of(model, weights), 1000))
    else:
        rate, doubt = _ceil(stated * share), ""
    uuid = str(found.device.attribute("uuid") or "")
    memory_mib = _memory_mib(allocated, found.device)
    return DeviceCharge(allocated, model, milli, memory_mib, rate, doubt, uuid=uuid)


def _part(found: FoundDevice, rule: DriverRule) -> tuple[Fraction, str]:
    """Which part of a whole device it is, or how many, and what of that is an assumption."""
    device = found.device
    if not rule.knows(device):
        doubt = f"a device of {rule.driver} of a type that is not known, {device.attribute('type')}"
        return _WHOLE, f"{doubt}, counts as a whole one"
    if rule.units:
        units = rule.units_of(device)
        return (units, "") if units else (_WHOLE, f"it has no {rule.units} (drivers.{rule.driver}.units)")
    profile = profile_of(str(device.attribute("profile") or ""))
    if profile is not None and device.attribute("type") == MIG:
        card = _card_of(found, profile, rule)
        return Fraction(profile.slices, card.slices), card.doubt
    totals = dict(found.counters)
    sets = [
        parts
        for name, consumed in device.consumed
        if (parts := dict(_parts(consumed, totals.get(name, ()), rule.counters)))
    ]
    if sets:
        is_several = len(sets) > 1 or any(sets[0].get(name, 0) >= 1 for name in found.unshared)
        doubt = _SEVERAL.format(driver=rule.driver) if is_several else ""
        return min(_WHOLE, max(part for parts in sets for part in parts.values())), doubt
    mode = str(device.attribute("partitionProfile") or "spx")
    if device.attribute("parentUUID") is None and mode.startswith("spx"):
        return _WHOLE, ""
    if found.parent is not None:
        of_parent = dict(_parts(device.capacity, found.parent.capacity, rule.counters))
        if of_parent:
            return min(_WHOLE, max(of_parent.values())), ""
    if found.siblings > 1:
        return Fraction(1, found.siblings), ""
    number, doubt = parts_of(f"amd.com/{mode}", {PRODUCT_LABEL: str(device.attribute(rule.model) or "")})
    if number > 1:
        return Fraction(1, number), f"a partition {mode} {doubt}" if doubt else ""
    return _WHOLE, "nothing says which part of a device it is: it counts as a whole one"


def _card_of(found: FoundDevice, profile: Profile, rule: DriverRule) -> CardSlices:
    """The card of a MIG instance: by its product, else by its memory."""
    product = card_model(str(found.device.attribute(rule.model) or ""))
    whole = [dict(counters).get("memory", 0) for _, counters in found.counters]
    whole += [dict(found.parent.capacity).get("memory", 0)] if found.parent else []
    return slices_of(product, profile, card_mib=max(whole, default=0) // (1000 * _MIB))


def _share(allocated: AllocatedDevice, device: PublishedDevice, rule: DriverRule) -> Fraction:
    """Which part of its device it holds."""
    if not allocated.share:
        return _WHOLE
    parts = (part for _, part in _parts(allocated.consumed, device.capacity, rule.capacity))
    least = Fraction(rule.min_share_milli, WHOLE_MILLI)
    return min(_WHOLE, max((least, *parts)))


def _parts(some: Amounts, whole: Amounts, names: tuple[str, ...]) -> Iterable[tuple[str, Fraction]]:
    """Of each amount that counts: its name, and which part it is."""
    totals = dict(whole)
    for name, amount in some:
        total = totals.get(name, 0)
        if total > 0 and (not names or name in names):
            yield name, Fraction(amount, total)


def _memory_mib(allocated: AllocatedDevice, device: PublishedDevice) -> int:
    """Of its memory; 0 where nothing says it."""
    has = dict(device.capacity).get("memory", 0)
    return max(0, dict(allocated.consumed).get("memory", has)) // (1000 * _MIB)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
