"""When no pod is evicted for a claim, because others were a while ago. The times are those of reclaim for
cards (docs/preemption.md, "Cool-down")."""

from dataclasses import dataclass, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.claims.heirs import DeviceKey

# after fruitless evictions, which gave the heir no device, for a pod of the same namespace and class
AGAIN_MS = 300_000
MAX_FRUITLESS = 8  # of one namespace within that time: then for none of its pods
BACK_MS = 300_000  # pods of the evicted pod's namespace evict none of the heir's namespace for so long
REPLACEMENT_MS = 60_000  # the replacement of an evicted pod is left alone for so long
SEEN_MS = 30_000  # the watch shows that a pod leaves within this time
DEVICE_MS = 60_000  # a device that was freed, or whose pods could not be evicted, is left alone for so long


@dataclass(frozen=True, slots=True)
class PastEviction:
    """Of a pod with this owner, for a pod of another namespace."""

    uid: str
    owner: str
    namespace: str
    heirs_namespace: str
    at_ms: int
    on_ms: int  # the same in Unix milliseconds


@dataclass(frozen=True, slots=True)
class FruitlessReclaim:
    """Others were evicted for a pod of this namespace, and its claim on this class did not get the device."""

    namespace: str
    device_class: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReclaimHistory:
    """What was done lately. Times are of a monotonic clock, unless they say otherwise."""

    evictions: tuple[PastEviction, ...] = ()
    fruitless: tuple[FruitlessReclaim, ...] = ()
    tried: tuple[tuple[DeviceKey, int], ...] = ()  # devices, each with when it was last freed or refused

    def after_eviction(self, victim: LedgerPod, heir: LedgerPod, at_ms: int, on_ms: int) -> "ReclaimHistory":
        """With one more eviction, and without those that no rule considers any more."""
        kept = tuple(each for each in self.evictions if at_ms - each.at_ms < BACK_MS)
        done = PastEviction(victim.uid, victim.owner, victim.namespace, heir.namespace, at_ms, on_ms)
        return replace(self, evictions=(*kept, done))

    def left(self, at_ms: int) -> frozenset[str]:
        """The UIDs of pods that may be leaving, though the watch does not show it yet."""
        return frozenset(each.uid for each in self.evictions if at_ms - each.at_ms < SEEN_MS)

    def after_unused(self, namespace: str, device_class: str, at_ms: int) -> "ReclaimHistory":
        """The heir did not get the device."""
        kept = tuple(each for each in self.fruitless if at_ms - each.at_ms < AGAIN_MS)
        return replace(self, fruitless=(*kept, FruitlessReclaim(namespace, device_class, at_ms)))

    def after_trying(self, device: DeviceKey, at_ms: int) -> "ReclaimHistory":
        """The device was freed, or its pods could not be evicted."""
        kept = tuple(each for each in self.tried if each[0] != device and at_ms - each[1] < DEVICE_MS)
        return replace(self, tried=(*kept, (device, at_ms)))

    def refuses(self, namespace: str, device_class: str, at_ms: int) -> bool:
        """Whether nothing is evicted for a pod of this namespace with a claim on this class."""
        late = [e for e in self.fruitless if e.namespace == namespace and at_ms - e.at_ms < AGAIN_MS]
        return len(late) >= MAX_FRUITLESS or any(each.device_class == device_class for each in late)

    def rests(self, device: DeviceKey, at_ms: int) -> bool:
        """Whether the device is left alone."""
        return any(each == device and at_ms - tried_ms < DEVICE_MS for each, tried_ms in self.tried)

    def spares(self, victim: LedgerPod, heir: LedgerPod, at_ms: int) -> bool:
        """Whether the pod is not evicted for this heir: it replaces one that was, or the heir's side was
        evicted for the pod's side."""
        return any(
            _replaces(victim, each, at_ms) or _is_back(victim, heir, each, at_ms) for each in self.evictions
        )


def _replaces(pod: LedgerPod, past: PastEviction, at_ms: int) -> bool:
    if at_ms - past.at_ms >= REPLACEMENT_MS or pod.created_ms < past.on_ms // 1000 * 1000:
        return False
    return pod.owner == past.owner and pod.namespace == past.namespace


def _is_back(victim: LedgerPod, heir: LedgerPod, past: PastEviction, at_ms: int) -> bool:
    if at_ms - past.at_ms >= BACK_MS:
        return False
    return heir.namespace == past.namespace and victim.namespace == past.heirs_namespace
