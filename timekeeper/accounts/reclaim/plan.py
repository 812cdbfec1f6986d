"""Which devices of one node a waiting pod gets, so that as few pods as possible leave. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.accounts.reclaim.choice import FreeableDevice, devices_of, order
from timekeeper.core.claims.heirs import DeviceKey, WantedDevice

Need = Mapping[str, int]  # class -> number of devices


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device that is free, and would meet what ``like`` met when that was allocated as of this class."""

    key: DeviceKey
    device_class: str
    like: FreeableDevice


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """Devices of one node, as many of each class as are needed: those that come free once their pods leave,
    and those that are free."""

    devices: tuple[FreeableDevice, ...]
    free: tuple[FreeDevice, ...] = ()

    @property
    def node(self) -> str:
        """Where they are."""
        return self.devices[0].node

    @property
    def pods(self) -> Pods:
        """Those that leave."""
        return tuple({pod.uid: pod for each in self.devices for pod in each.pods}.values())

    @property
    def keys(self) -> list[DeviceKey]:
        """Drivers, pools and names of those that come free."""
        return [each.key for each in self.devices]

    @property
    def classes(self) -> dict[DeviceKey, str]:
        """All of them, each with its class."""
        freed = {each.key: each.device.device_class for each in self.devices}
        return freed | {each.key: each.device_class for each in self.free}


def by_node(found: Iterable[FreeableDevice]) -> dict[str, list[FreeableDevice]]:
    """The devices of each node, in order."""
    nodes: dict[str, list[FreeableDevice]] = {}
    for each in found:
        nodes.setdefault(each.node, []).append(each)
    return nodes


def best_plan(
    found: Iterable[FreeableDevice],
    need: Need,
    beside: Mapping[str, Sequence[FreeDevice]] | None = None,
) -> ReclaimPlan | None:
    """``beside``: the nodes that count, each with its free devices; None: all, and without any.

    On the node where the fewest pods leave, then the fewest devices come free, then the pods of the lowest
    priority and the youngest leave; None: no node has enough of these devices."""
    nodes = by_node(found)
    if beside is not None:
        nodes = {node: devices for node, devices in nodes.items() if node in beside}
    plans = (_plan(devices, need, (beside or {}).get(node, ())) for node, devices in nodes.items())
    return min((each for each in plans if each is not None), key=_cost, default=None)


def _plan(
    devices: Sequence[FreeableDevice], whole_need: Need, beside: Sequence[FreeDevice]
) -> ReclaimPlan | None:
    """By claims that cost the fewest pods for each device; then without those that the others make
    superfluous. None, too, where more is free than is needed: then it is not devices that the heir waits
    for."""
    free = Counter(each.device_class for each in beside)
    need = Counter(whole_need) - free
    if not need or free - Counter(whole_need):
        return None
    taken: dict[str, list[FreeableDevice]] = {}
    claims: dict[str, list[FreeableDevice]] = {}
    for each in devices:
        claims.setdefault(each.held.claim.uid, []).append(each)
    leaving: set[str] = set()
    while left := _left(taken.values(), need):
        useful = {uid: some for uid, some in claims.items() if uid not in taken and _gain(some, left)}
        if not useful:
            return None
        uid = min(useful, key=lambda uid: (_price(useful[uid], left, leaving), order(useful[uid][0])))
        taken[uid] = claims[uid]
        leaving |= {pod.uid for pod in claims[uid][0].pods}
    for uid in sorted(taken, key=lambda uid: order(taken[uid][0]), reverse=True):
        others = {each: some for each, some in taken.items() if each != uid}
        if not _left(others.values(), need):
            taken = others
    return ReclaimPlan(tuple(_picked(taken.values(), need)), tuple(beside))


def _left(taken: Iterable[Sequence[FreeableDevice]], need: Need) -> Counter[str]:
    """What is needed beyond the devices of these claims."""
    return Counter(need) - Counter(each.device.device_class for some in taken for each in some)


def _gain(some: Sequence[FreeableDevice], left: Counter[str]) -> int:
    return (left & Counter(each.device.device_class for each in some)).total()


def _price(some: Sequence[FreeableDevice], left: Counter[str], leaving: Collection[str]) -> float:
    """The pods that leave for each of a claim's devices, beside those that leave anyway."""
    return sum(pod.uid not in leaving for pod in some[0].pods) / _gain(some, left)


def _picked(taken: Iterable[Sequence[FreeableDevice]], need: Need) -> Iterable[FreeableDevice]:
    left = Counter(need)
    for each in (each for some in taken for each in some):
        if left[each.device.device_class] > 0:
            left[each.device.device_class] -= 1
            yield each


def _cost(plan: ReclaimPlan) -> tuple[int, int, int, int, DeviceKey]:
    claims = {each.held.claim.uid: each.held.claim for each in plan.devices}
    return (
        len(plan.pods),
        sum(len(devices_of(each)) for each in claims.values()),
        max(pod.priority for pod in plan.pods),
        -max(pod.created_ms for pod in plan.pods),
        plan.devices[0].key,
    )


def assigned(
    plan: ReclaimPlan, met: Mapping[DeviceKey, Collection[str]], wanted: Sequence[WantedDevice]
) -> dict[DeviceKey, WantedDevice] | None:
    """For what each device is. ``met``: the selectors that it met when it was allocated; None: that is not
    known to be enough."""
    found: dict[DeviceKey, WantedDevice] = {}
    for want in sorted(wanted, key=lambda each: -len(each.selectors)):
        fit = [
            key
            for key, device_class in plan.classes.items()
            if key not in found and device_class == want.device_class and {*want.selectors} <= {*met[key]}
        ]
        if not fit:
            return None
        found[min(fit, key=lambda key: len(met[key]))] = want
    return found
