"""What a claim's allocation costs, fixed when it is first seen: the sum of its devices' rates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceAllocation
from timekeeper.core.claims.devices import FoundDevice
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.rating.devices import RatedDevice
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, Rating, rated

Find = Callable[[str, str, str], FoundDevice | None]


@dataclass(frozen=True, slots=True)
class DeviceCharge:
    """One allocated GPU, and what it costs. ``found``: as its driver publishes it; None: no slice has it."""

    device: AllocatedDevice
    rating: Rating
    found: FoundDevice | None = None

    @property
    def share_milli(self) -> int:
        """The part of a whole device that it is, unweighted."""
        return self.rating.requested.share_milli

    @property
    def uuid(self) -> str:
        """As its driver publishes it; "": it does not, or an administrator looks at it."""
        return (
            str(self.found.device.attribute("uuid") or "") if self.found and not self.device.is_admin else ""
        )


@dataclass(frozen=True, slots=True)
class ClaimCharge:
    """What an allocation costs: its GPUs, and the drivers of its devices for which there is no rule."""

    gpus: tuple[DeviceCharge, ...]
    unknown_drivers: tuple[str, ...] = ()

    @property
    def rate_milli(self) -> int:
        """Of all together, weighted."""
        return sum(gpu.rating.rate_milli for gpu in self.gpus)

    @property
    def doubt(self) -> str:
        """The first one's; "": the rate is certain."""
        return next((gpu.rating.doubt for gpu in self.gpus if gpu.rating.doubt), "")


def charge_of(
    allocation: DeviceAllocation, find: Find, rules: Mapping[str, DriverRule], terms: BudgetSettings
) -> ClaimCharge:
    """The charge of what is allocated, by what drivers publish of it now."""
    gpus, unknown = [], set()
    for device in allocation.devices:
        rule = rules.get(device.driver)
        if rule is None:
            unknown.add(device.driver)
            continue
        found = find(device.driver, device.pool, device.device)
        if rule.is_gpu(found.device if found else None):
            asked = Demand(device=RatedDevice(device, rule))
            gpus.append(DeviceCharge(device, rated(asked, NodeCards(published=found), terms), found))
    return ClaimCharge(tuple(gpus), tuple(sorted(unknown)))
