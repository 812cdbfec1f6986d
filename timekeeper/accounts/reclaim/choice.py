"""The devices that a waiting pod may get from pods of a namespace over budget, and whether it may."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import effect_of, places
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceClaim
from timekeeper.core.claims.devices import PublishedDevice
from timekeeper.core.claims.heirs import DeviceKey
from timekeeper.core.ledger.metering import FOREVER_MS

WAITED_MS = 1_000  # before others are evicted for a pod, kube-scheduler has found no node for it so long
# a pod that leaves anyway is waited for until so long after its deadline, unless that is far ahead
LATE_MS, FAR_MS = 15_000, 600_000


@dataclass(frozen=True, slots=True)
class ReclaimStandings:
    """The accounts of the last tick, and the budgets in force."""

    statements: Mapping[str, Statement]
    history: History
    now_ms: int

    def is_heirs(self, namespace: str) -> bool:
        """Whether pods of others may be evicted for the namespace's pods by the standings."""
        each = self.statements.get(namespace)
        if each is None or not self._is_valid(each) or each.standing != "IN_BUDGET":
            return False
        return self.history.mode(namespace, self.now_ms) == "enforce"

    @property
    def has_debtors(self) -> bool:
        """Whether any namespace's pods are."""
        return any(map(self.owes, self.statements))

    def owes(self, namespace: str) -> bool:
        """Whether the namespace's pods are debtors: over budget now, with ``onExhausted: reclaim``."""
        each = self.statements.get(namespace)
        if each is None or not self._is_valid(each) or each.standing != "OVER_BUDGET":
            return False
        is_placed = places(each.in_force.budget, self.history.settings(self.now_ms))
        if effect_of(each.deciding.in_force.budget.on_exhausted, is_placed) != "reclaim":
            return False
        return self.history.mode(namespace, self.now_ms) == "enforce"

    def _is_valid(self, each: Statement) -> bool:
        until_ms = FOREVER_MS if each.valid_until_ms is None else each.valid_until_ms
        return until_ms > self.now_ms


def heirs(waiting: Iterable[LedgerPod], standings: ReclaimStandings) -> list[LedgerPod]:
    """The pods for which others may be evicted, the first first: by priority, then by age."""
    found = [
        each
        for each in waiting
        if each.uses.waits is not None
        and each.is_governed
        and each.can_be_bound
        and not each.is_gated
        and standings.now_ms - each.uses.waits.since_ms >= WAITED_MS
        and standings.is_heirs(each.namespace)
    ]
    return sorted(found, key=lambda each: (-each.priority, each.created_ms, each.uid))


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that holds devices, and all pods that use it."""

    claim: DeviceClaim
    pods: Pods

    @property
    def ends(self) -> bool:
        """Whether the claim is freed once its pods have left. One that outlives them is allocated on for the
        pods that a controller creates in their place."""
        own = self.claim.owner
        return bool(self.pods) and all(not each.owner or own == f"Pod/{each.name}" for each in self.pods)


@dataclass(frozen=True, slots=True)
class FreeableDevice:
    """A device, the claim that holds it whole, and the pods that would leave: those that use the claim, and
    who leaves with them, such as others of their gangs."""

    device: AllocatedDevice
    held: HeldClaim
    pods: Pods

    @property
    def key(self) -> DeviceKey:
        """Its driver, pool and name."""
        return key_of(self.device)

    @property
    def node(self) -> str:
        """Where it is."""
        allocation = self.held.claim.allocation
        return "" if allocation is None else allocation.node


def key_of(device: AllocatedDevice) -> DeviceKey:
    """Its driver, pool and name."""
    return device.driver, device.pool, device.device


def is_whole(device: AllocatedDevice, published: PublishedDevice | None) -> bool:
    """Whether nothing but this allocation keeps the device from others, so that one taint keeps it for its
    heir once it is free: it is no share, and has no counters in common with partitions."""
    return published is not None and not device.is_admin and not device.share and is_free_whole(published)


def is_free_whole(published: PublishedDevice) -> bool:
    """The same of a device that no claim holds."""
    return not (published.is_shared or published.consumed or published.is_tainted)


def freeable(
    held: Iterable[HeldClaim],
    device_classes: Collection[str],
    published: Callable[[DeviceKey], PublishedDevice | None],
    is_debtor: Callable[[LedgerPod], bool],
    leaving_with: Callable[[Pods], Pods] = lambda pods: pods,
) -> list[FreeableDevice]:
    """The devices that were allocated as of these classes, and for which only debtors leave: fewest pods
    first, then fewest devices, then the lowest priority, then the youngest pods. ``leaving_with``: these
    pods, and all that leave with them."""
    found = [
        FreeableDevice(device, each, pods)
        for each in held
        if each.ends and (pods := leaving_with(each.pods))
        if all(_may_leave(pod) and is_debtor(pod) for pod in pods)
        for device in devices_of(each.claim)
        if device.device_class in device_classes and is_whole(device, published(key_of(device)))
    ]
    return sorted((each for each in found if each.node), key=order)


def _may_leave(pod: LedgerPod) -> bool:
    return pod.is_charged and pod.hold.grace_ms <= FAR_MS


def order(each: FreeableDevice) -> tuple[int, int, int, int, DeviceKey]:
    """The least is taken first."""
    pods = each.pods
    return (
        len(pods),
        len(devices_of(each.held.claim)),
        max(pod.priority for pod in pods),
        -max(pod.created_ms for pod in pods),
        each.key,
    )


def devices_of(claim: DeviceClaim) -> tuple[AllocatedDevice, ...]:
    """What it holds."""
    return () if claim.allocation is None else claim.allocation.devices


def leaving(held: Iterable[HeldClaim], device_class: str, now_ms: int) -> list[DeviceKey]:
    """The devices of this class that come free without any eviction: every pod that uses their claim is
    leaving, and soon."""
    return [
        key_of(device)
        for each in held
        if each.pods and all(_leaves(pod, now_ms) for pod in each.pods)
        for device in devices_of(each.claim)
        if device.device_class == device_class and not device.is_admin
    ]


def _leaves(pod: LedgerPod, now_ms: int) -> bool:
    if pod.is_staying:
        return False
    deadline_ms = pod.hold.deletion_ms
    return deadline_ms is None or now_ms - LATE_MS <= deadline_ms <= now_ms + FAR_MS
