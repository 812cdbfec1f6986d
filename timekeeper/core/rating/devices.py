"""Which part of a GPU a claim's device is, by what its driver publishes.

A whole device is one GPU, or as many as its driver's rule says. A MIG instance is its slices of compute over
those of its card; another part the largest of its parts of the counters that it shares with the others, or an
equal part of what its driver publishes of one device; a share the largest of the parts that it consumes of
its device's capacities, and never less than the rule's least share.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from timekeeper.core.accelerators import PRODUCT_LABEL, parts_of
from timekeeper.core.claims.allocation import AllocatedDevice
from timekeeper.core.claims.devices import Amounts, FoundDevice, PublishedDevice
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.dialects.mig import CardSlices, Profile, card_model, profile_of, slices_of
from timekeeper.core.rating.parts import Holding
from timekeeper.core.rating.weights import Weights, stated_weight
from timekeeper.core.request.card_amounts import CardAmount
from timekeeper.core.values import WHOLE_MILLI, Ask, Card

MIG = "mig"  # the type of NVIDIA's instances
_MIB = 1024 * 1024
_WHOLE = Fraction(1)
_UNPUBLISHED = "no ResourceSlice has its device, which counts as a whole one with weight 1"
_SEVERAL = (
    "it takes all of a counter that others leave, or counters of several sets, and counts as one GPU at most:"
    " drivers.{driver}.units says how many GPUs a device is"
)


@dataclass(frozen=True, slots=True)
class RatedDevice:
    """A device that a claim holds, and its driver's rule."""

    allocated: AllocatedDevice
    rule: DriverRule


def holding_of(device: RatedDevice, found: FoundDevice | None, weights: Weights) -> tuple[Holding, str]:
    """What the claim holds of the device, and what of that is an assumption. An administrator's access takes
    it from no pod. ``found``: as its driver publishes it, None: it does not. An instance whose weight is
    stated is one of its model, and not a part of its card's."""
    allocated, rule = device.allocated, device.rule
    count = 0 if allocated.is_admin else 1
    if found is None:
        return _held(count, "", WHOLE_MILLI, WHOLE_MILLI, 0), _UNPUBLISHED if count else ""
    model, profile = model_of(found, rule), found.device.attribute("profile")
    part, doubt = _part(found, rule)
    share = _share(allocated, found.device, rule)
    milli = max(1, _ceil(WHOLE_MILLI * part * share))
    memory_mib = _memory_mib(allocated, found.device)
    if stated_weight(f"{model} MIG {profile}", weights) is None:
        return _held(count, model, milli, milli, memory_mib), doubt if count else ""
    return _held(count, f"{model} MIG {profile}", _ceil(WHOLE_MILLI * share), milli, memory_mib), ""


def model_of(found: FoundDevice, rule: DriverRule) -> str:
    """The model of its card; "": nothing says it."""
    return card_model(str(found.device.attribute(rule.model) or ""))


def _held(count: int, model: str, charged_milli: int, share_milli: int, memory_mib: int) -> Holding:
    """``charged_milli``: which part of a card of this model it is; ``share_milli``: unweighted."""
    ask = Ask(count, share_milli, memory_mib)
    card, amount = Card("", 0, model, WHOLE_MILLI), CardAmount(charged_milli, charged_milli)
    return Holding(ask, cards=(card,), amount=amount)


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
    whole = [dict(counters).get("memory", 0) for _, counters in found.counters]
    whole += [dict(found.parent.capacity).get("memory", 0)] if found.parent else []
    return slices_of(model_of(found, rule), profile, card_mib=max(whole, default=0) // (1000 * _MIB))


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
