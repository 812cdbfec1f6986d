"""Cooldowns after evictions, so that pods do not evict each other over and over."""

from dataclasses import dataclass, replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.precedence import outranks
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.values import GPURequest

# After unused evictions, which no binding on the freed cards followed, no pod is evicted for this long for a
# pod of the same namespace with the same request: something keeps such pods off that no eviction mends.
AGAIN_MS = 300_000
# After this number of them within that time, no pod is evicted for the namespace at all. Otherwise a user
# could delete each waiting pod once others have been evicted for it, and repeat that with new requests.
MAX_UNUSED = 8
# Standings may change at any time. For this long a namespace cannot evict the one that it was evicted for.
BACK_MS = 300_000
# For this long the replacement of a victim is not evicted.
REPLACEMENT_MS = 60_000
# For this long no more is freed on a node, so that what was freed is seen, held and bound first.
NODE_MS = 2_000
# By then the watch shows that an evicted pod is being deleted; if not, the call had no effect.
SEEN_LEAVING_MS = 10_000


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction, and the pod that benefits."""

    uid: str
    owner: str  # UID of the victim's controller, or empty
    namespace: str
    node: str
    beneficiary: str  # UID of the pod that benefits
    beneficiary_namespace: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class UnusedEviction:
    """For a pod of this namespace with this request others were evicted, and it was not bound to their
    cards."""

    namespace: str
    request: GPURequest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The evictions of the last minutes, and those that turned out to be unused."""

    evictions: tuple[Eviction, ...] = ()
    unused: tuple[UnusedEviction, ...] = ()

    def after(self, victim: Pod, beneficiary: Pod, now_ms: int) -> "Cooldown":
        """With one more eviction, and without those that no rule considers any more."""
        kept = tuple(each for each in self.evictions if now_ms - each.at_ms < max(AGAIN_MS, BACK_MS))
        done = Eviction(
            uid=victim.uid,
            owner=victim.owner,
            namespace=victim.namespace,
            node=victim.node,
            beneficiary=beneficiary.uid,
            beneficiary_namespace=beneficiary.namespace,
            at_ms=now_ms,
        )
        return replace(self, evictions=(*kept, done))

    def after_unused(self, beneficiary: Pod, now_ms: int) -> "Cooldown":
        """Others were evicted for this pod, and it was not bound to their cards."""
        kept = tuple(each for each in self.unused if now_ms - each.at_ms < AGAIN_MS)
        done = UnusedEviction(beneficiary.namespace, beneficiary.request, now_ms)
        return replace(self, unused=(*kept, done))

    def without(self, beneficiary: Pod) -> "Cooldown":
        """Without this pod's own evictions and without what was unused, so that a preemption that has begun
        goes on: its own evictions must not spare its remaining victims."""
        others = tuple(each for each in self.evictions if each.beneficiary != beneficiary.uid)
        return Cooldown(others)

    def is_leaving(self, pod: Pod, now_ms: int) -> bool:
        """True for a pod evicted so recently that its object may not show it yet."""
        return any(e.uid == pod.uid and now_ms - e.at_ms < SEEN_LEAVING_MS for e in self.evictions)

    def refuses(self, waiting: Pod, now_ms: int) -> bool:
        """True if evictions were unused recently for a pod of this namespace with this request, or
        for many pods of this namespace."""
        recent = self._recent(waiting.namespace, now_ms)
        return len(recent) >= MAX_UNUSED or waiting.request in [each.request for each in recent]

    def is_exhausted(self, waiting: Pod, now_ms: int) -> bool:
        """True if evictions were unused recently for many pods of this namespace."""
        return len(self._recent(waiting.namespace, now_ms)) >= MAX_UNUSED

    def _recent(self, namespace: str, now_ms: int) -> list[UnusedEviction]:
        if not self.unused:  # as a rule
            return []
        return [e for e in self.unused if e.namespace == namespace and now_ms - e.at_ms < AGAIN_MS]

    def rests(self, node: str, now_ms: int) -> bool:
        """True for a node where a pod was evicted a moment ago."""
        return any(each.node == node and now_ms - each.at_ms < NODE_MS for each in self.evictions)

    def spares(self, waiting: Pod, other: Pod, standings: NamespaceStandings, now_ms: int) -> bool:
        """True if the other pod is exempt from eviction for a while, at least by this waiting pod."""
        return any(
            _replaces(other, each, now_ms) or _is_back(waiting, other, each, standings, now_ms)
            for each in self.evictions
        )


NOTHING_DONE = Cooldown()


def _replaces(pod: Pod, eviction: Eviction, now_ms: int) -> bool:
    """True if the same controller created the pod after the eviction; for pods without a controller: in the
    same namespace."""
    if now_ms - eviction.at_ms >= REPLACEMENT_MS or pod.asked_ms < eviction.at_ms // 1000 * 1000:
        return False
    return pod.owner == eviction.owner and pod.namespace == eviction.namespace


def _is_back(
    waiting: Pod, other: Pod, eviction: Eviction, standings: NamespaceStandings, now_ms: int
) -> bool:
    """True if a pod of the waiting pod's side was evicted for the other's side. Pods of the evicted pod's
    controller wait, whatever would rank the other pod lower. Other pods of its namespace wait only if
    standings alone would."""
    if now_ms - eviction.at_ms >= BACK_MS or other.namespace != eviction.beneficiary_namespace:
        return False
    if waiting.namespace != eviction.namespace or waiting.namespace == other.namespace:
        return False
    same_controller = bool(waiting.owner) and waiting.owner == eviction.owner
    return same_controller or (waiting.priority <= other.priority and outranks(waiting, other, standings))


class AnsweredPreemptions:
    """Pods for which the verb ``preempt`` named victims, until they are bound or gone. kube-scheduler evicts
    at once, so a pod that goes without having been bound is one whose evictions are unused. Others may
    call `note` while one caller is in `unused`."""

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[Pod, int]] = {}

    def note(self, pod: Pod, now_ms: int) -> None:
        """Victims were named to kube-scheduler for this pod."""
        self._since_ms.setdefault(pod.uid, (pod, now_ms))

    def unused(self, snapshot: Snapshot, now_ms: int) -> list[Pod]:
        """The pods that have gone, or are being deleted, unbound since the last call. Pods that were bound
        are forgotten, and so are those that have waited for longer than the cool-down."""
        gone = []
        for uid, (pod, since_ms) in list(self._since_ms.items()):
            now = snapshot.pods.get(uid)
            leaves = now is None or (now.deleting and not now.node)
            if leaves:
                gone.append(pod)
            if now is None or now.node or leaves or now_ms - since_ms >= AGAIN_MS:
                del self._since_ms[uid]
        return gone
