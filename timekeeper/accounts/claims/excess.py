"""Pods whose claims hold more GPUs than the pods were judged for, because a claim or a template became
another after that. Pure.

A judgement counts by classes, and an allocation has devices, so a device counts here if its driver and its
class are both such as count there: by what is known now, and by what was known when the pod was created.
What people decide later about drivers and classes makes no pod leave that was admitted before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.accounts.budget_history import MODE_UNCERTAIN_MS
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceClaim
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.request.device_classes import (
    DEFAULTS,
    GPU_DRIVERS,
    ClassKind,
    ClassSettings,
    DeviceClass,
    kind_of,
)

EXCESS_GRACE_MS = 30_000  # of such a pod at most: what it holds it should not have had


@dataclass(frozen=True, slots=True)
class ClassKnowledge:
    """What is known of device classes. ``drivers``: the rules of `_settings` at a time; ``settings``: of the
    ConfigMap, each since its time; before the first it is not known what they were."""

    classes: Mapping[str, DeviceClass]
    drivers: Callable[[int], tuple[DriverRule, ...]]
    settings: tuple[tuple[int, ClassSettings], ...] = ((0, DEFAULTS),)

    def around(self, at_ms: int) -> list[ClassSettings] | None:
        """Those that may have been in force; None: it is not known."""
        first_ms, last_ms = at_ms - MODE_UNCERTAIN_MS, at_ms + MODE_UNCERTAIN_MS
        ends = [*(since for since, _ in self.settings[1:]), None]
        if 0 < self.settings[0][0] >= first_ms:
            return None
        return [
            each
            for (since_ms, each), end_ms in zip(self.settings, ends, strict=True)
            if since_ms <= last_ms and (end_ms is None or end_ms >= first_ms)
        ]


@dataclass(frozen=True, slots=True)
class ClaimExcess:
    """A pod whose claims, by these UIDs, hold ``devices`` GPUs, though it was judged for ``judged``."""

    pod: LedgerPod
    devices: int
    judged: int
    claims: frozenset[str]


def excesses(
    claims: Iterable[DeviceClaim],
    pod_of: Callable[[str], LedgerPod | None],
    known: ClassKnowledge,
    now_ms: int,
) -> dict[str, ClaimExcess]:
    """The pods with more than they were judged for, by UID. ``claims``: those that are allocated; ``pod_of``:
    the pod that uses claims, by its UID."""
    held: dict[str, list[DeviceClaim]] = {}
    for claim in claims:
        for uid in claim.consumers:
            held.setdefault(uid, []).append(claim)
    found = {}
    for uid, theirs in held.items():
        pod = pod_of(uid)
        if pod is None or pod.uses.judged is None or not _holds_on(pod, now_ms):
            continue
        devices = [each for claim in theirs for each in _devices(claim, pod)]
        is_more = len(devices) > pod.uses.judged
        if is_more or any(each.driver not in GPU_DRIVERS for each in devices):  # others need no closer look
            counted = list(_counted(devices, pod.created_ms, known, now_ms))
            number = len(counted)
            # where unknown devices are denied, no pod was judged for one
            if number > pod.uses.judged or "unknown" in counted:
                mine = frozenset(each.uid for each in theirs)
                found[uid] = ClaimExcess(pod, number, pod.uses.judged, mine)
    return found


def _holds_on(pod: LedgerPod, now_ms: int) -> bool:
    """Whether the pod may hold its claims for longer than its last grace period: nothing asked it to leave,
    or with a later deadline."""
    deadline_ms = pod.hold.deletion_ms
    is_late = deadline_ms is None or (pod.node != "" and deadline_ms > now_ms + EXCESS_GRACE_MS)
    return pod.ended_ms is None and is_late


def _devices(claim: DeviceClaim, pod: LedgerPod) -> Iterable[AllocatedDevice]:
    """What the pod was to be judged for of the claim. One that serves the cards of a pod whose claims are of
    no GPUs was judged as cards."""
    if claim.allocation is None or (not pod.uses.judged and claim.name == pod.uses.served_by):
        return ()
    return (each for each in claim.allocation.devices if not each.is_admin)


def _counted(
    devices: Iterable[AllocatedDevice], created_ms: int, known: ClassKnowledge, now_ms: int
) -> Iterator[ClassKind]:
    """Those of the devices that count, as what: unknown, if nothing that is known of one says more."""
    then, now = ({each.driver: each.has_gpus for each in known.drivers(at)} for at in (created_ms, now_ms))
    earlier, latest = known.around(created_ms), known.settings[-1][1]
    for each in devices:
        if earlier is not None or each.driver in GPU_DRIVERS or each.driver in now:
            terms = dict.fromkeys((latest, *(earlier or ())))
            kinds = [(kind, by) for by in terms for kind in _kinds(each, known.classes, by, then, now)]
            if all(_counts(kind, by) for kind, by in kinds):
                yield "unknown" if {kind for kind, _ in kinds} == {"unknown"} else "gpu"


def _kinds(
    device: AllocatedDevice,
    classes: Mapping[str, DeviceClass],
    settings: ClassSettings,
    then: Mapping[str, bool],
    now: Mapping[str, bool],
) -> Iterable[ClassKind]:
    """What the device's own driver makes of it, then and now, and what its class allocates now."""
    own = DeviceClass(device.device_class, device.driver)
    yield kind_of(own, settings, then)
    yield kind_of(own, settings, now)
    by_class = classes.get(device.device_class)
    if by_class is not None:
        yield kind_of(by_class, settings, now)


def _counts(kind: ClassKind, settings: ClassSettings) -> bool:
    return kind == "gpu" or (kind == "unknown" and settings.unknown == "deny")
