"""GPUs that drivers publish in ResourceSlices, for device claims: which of them may be cards of a node's
inventory."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scheduler_ext.model.node import Node
from timekeeper.core.claims.devices import DeviceSlice, PublishedDevice
from timekeeper.core.claims.drivers import VENDORS, DriverRule
from timekeeper.core.dialects import gas

_OF_NVML = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class PublishedGPU:
    """A GPU of one node, or a part of one. ``uuids``: its own and that of the GPU of which it is a part,
    where the driver publishes them."""

    driver: str
    uuids: tuple[str, ...] = ()


def gpus_of(published: DeviceSlice, rules: Mapping[str, DriverRule]) -> Iterator[tuple[str, PublishedGPU]]:
    """The GPUs in the slice, each with its node's name. A driver without a rule has none, and a device of
    several nodes, or of a type that its rule does not know, is no node's card."""
    rule = rules.get(published.driver)
    if rule is None or not rule.has_gpus:
        return
    for each in published.devices.values():
        if each.node and rule.knows(each):
            yield each.node, PublishedGPU(published.driver, _uuids(each))


def _uuids(device: PublishedDevice) -> tuple[str, ...]:
    found = (device.attribute(name) for name in ("uuid", "parentUUID"))
    return tuple(each for each in found if isinstance(each, str) and each)


def claim_drivers(published: tuple[PublishedGPU, ...], node: Node | None) -> tuple[str, ...]:
    """The drivers that give out cards of this node by claims, or may. Without an inventory, those that
    publish GPUs of it."""
    if node is None or not published:
        return ()
    return tuple(sorted({each.driver for each in published if _is_here(each, node)}))


def _is_here(gpu: PublishedGPU, node: Node) -> bool:
    """Whether it may be one of the cards. Only what is known to be another card is none of them."""
    if not node.cards:
        return True
    return any(_may_be(gpu, card.uuid, node.family) for card in node.cards)


def _may_be(gpu: PublishedGPU, uuid: str, family: str) -> bool:
    if uuid in gpu.uuids:
        return True
    form = _OF_NVML.fullmatch(uuid)
    vendor = "NVIDIA" if form else "Intel" if family == gas.DIALECT.name else ""
    if vendor and VENDORS.get(gpu.driver, vendor) != vendor:
        return False
    if form is None:
        return True
    comparable = (_OF_NVML.fullmatch(each) for each in gpu.uuids)
    return not any(other and other[1] == form[1] for other in comparable)
