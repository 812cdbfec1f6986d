"""The cool-down: what has just been done to whom, and who is left alone for it, so that nothing is driven out
over and over."""

from dataclasses import dataclass

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.precedence import is_reclaim

# A pod for which others have left already, and that still waits, is not to cost anybody else his place soon:
# something keeps it away that no eviction mends.
AGAIN_MS = 300_000
# Standings may turn at any moment. Whoever had to leave for a namespace does not drive it out meanwhile.
BACK_MS = 300_000
# The replacement of a pod that had to leave is not driven out as soon as it has found a place.
REPLACEMENT_MS = 60_000
# What was freed on a node is seen, held and bound before more is freed there.
NODE_MS = 2_000
# The watch shows by then that a pod leaves which was asked to; one that does not was not heard.
SEEN_LEAVING_MS = 10_000


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that was asked to leave, with its controller's UID or "", and for whom."""

    uid: str
    owner: str
    namespace: str
    node: str
    beneficiary: str
    beneficiary_namespace: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The evictions of the last minutes."""

    evictions: tuple[Eviction, ...] = ()

    def after(self, victim: Pod, beneficiary: Pod, now_ms: int) -> "Cooldown":
        """With one eviction more; those that no rule asks for any longer are left out."""
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
        return Cooldown((*kept, done))

    def is_leaving(self, pod: Pod, now_ms: int) -> bool:
        """True for a pod that has just been asked to leave, whether its object says so yet or not."""
        return any(e.uid == pod.uid and now_ms - e.at_ms < SEEN_LEAVING_MS for e in self.evictions)

    def has_had_its_turn(self, waiting: Pod, now_ms: int) -> bool:
        """True where others have left for this pod already."""
        return any(e.beneficiary == waiting.uid and now_ms - e.at_ms < AGAIN_MS for e in self.evictions)

    def rests(self, node: str, now_ms: int) -> bool:
        """True for a node that somebody has just been asked to leave."""
        return any(each.node == node and now_ms - each.at_ms < NODE_MS for each in self.evictions)

    def spares(self, waiting: Pod, other: Pod, standings: NamespaceStandings, now_ms: int) -> bool:
        """True where the other is left alone for a while, at least by this waiting pod."""
        return any(
            _replaces(other, each, now_ms) or _is_back(waiting, other, each, standings, now_ms)
            for each in self.evictions
        )


NOTHING_DONE = Cooldown()


def _replaces(pod: Pod, eviction: Eviction, now_ms: int) -> bool:
    """The pod was made after the eviction by the same controller; of pods that none made, in the same
    namespace."""
    if now_ms - eviction.at_ms >= REPLACEMENT_MS or pod.asked_ms < eviction.at_ms // 1000 * 1000:
        return False
    return pod.owner == eviction.owner and pod.namespace == eviction.namespace


def _is_back(
    waiting: Pod, other: Pod, eviction: Eviction, standings: NamespaceStandings, now_ms: int
) -> bool:
    """The waiting pod's side had to leave for the other's side: by the same controller's pods, whatever puts
    the other below it; by others of the namespace, where only the standings do."""
    if now_ms - eviction.at_ms >= BACK_MS or other.namespace != eviction.beneficiary_namespace:
        return False
    if waiting.namespace != eviction.namespace or waiting.namespace == other.namespace:
        return False
    same_controller = bool(waiting.owner) and waiting.owner == eviction.owner
    return same_controller or (waiting.priority <= other.priority and is_reclaim(waiting, other, standings))
