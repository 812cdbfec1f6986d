"""The pods that wait for their namespace's budget or for a cap, and which of them go next.

When a pod of the namespace releases cards, or a cap is raised, no more pods are woken than the cap then
allows: a pod that was woken counts as if it held its cards, until it was tried. Times are seconds of one
monotonic clock. Not thread-safe.
"""

from collections.abc import Iterable, Mapping

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.refusal import Refusal, RefusalKind
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import ANYWHERE, queue_key
from timekeeper.core.values import GPURequest

MAX_WOKEN = 32  # at a time
TRIED_WITHIN_S = 2.0  # kube-scheduler tries a woken pod by then, or it counts no more

# reason and text of the condition that wakes the pod
WOKEN: Mapping[RefusalKind, tuple[str, str]] = {
    "budget": ("InBudget", "the namespace's GPU budget is not spent any more"),
    "cap": ("BelowCap", "the cap of the namespace or group allows the pod's cards now"),
}


class DeniedPods:
    """``uids``: of the pods, with the kind of their refusal, ``budget`` or ``cap``."""

    def __init__(self, caps: CapChecks) -> None:
        self.uids: dict[str, RefusalKind] = {}
        self._caps = caps
        self._woken: dict[str, tuple[Pod, float]] = {}  # with the time until when it counts
        self._seen: tuple[object, NamespaceStandings] | None = None

    def add(self, uid: str, why: RefusalKind) -> None:
        """A budget or a cap refuses the pod."""
        self.uids[uid] = why
        self._seen = None

    def discard(self, uids: Iterable[str]) -> None:
        """These pods wait no more."""
        for uid in uids:
            self.uids.pop(uid, None)

    def tried(self, uid: str) -> None:
        """kube-scheduler has tried the pod."""
        if self._woken.pop(uid, None) is not None:
            self._seen = None

    def may_have_changed(self, snapshot: Snapshot, standings: NamespaceStandings, now_s: float) -> bool:
        """True if a pod may be refused no more since the last call."""
        over = [uid for uid, (_, until_s) in self._woken.items() if until_s <= now_s]
        for uid in over:
            del self._woken[uid]
        seen = (snapshot.held, standings)
        same = self._seen is not None and self._seen[0] is seen[0] and self._seen[1] is seen[1]
        if not self.uids or (same and not over):
            return False
        self._seen = seen
        return True

    def no_longer(
        self, pods: Iterable[Pod], snapshot: Snapshot, standings: NamespaceStandings
    ) -> list[tuple[Pod, RefusalKind]]:
        """The first of these pods, in turn, that nothing refuses, each with what refused it before. Each
        counts for those after it."""
        ahead = self.ahead()
        found: list[tuple[Pod, RefusalKind]] = []
        refused: dict[tuple[str, GPURequest | None], Refusal | None] = {}

        def is_refused(pod: Pod) -> bool:
            shape = pod.namespace, pod.request
            if shape not in refused or refused[shape] is None or pod.uid in snapshot.allocated_on:
                refused[shape] = self._caps.refusal(pod, snapshot, ahead)
            return refused[shape] is not None

        for pod in sorted(pods, key=lambda each: queue_key(each, ANYWHERE, standings)):
            if standings.of_pod(pod).refuses or is_refused(pod):
                continue
            ahead.append(pod)
            found.append((pod, self.uids.get(pod.uid, "cap")))
            if len(found) == MAX_WOKEN:
                self._seen = None  # the others follow
                break
        return found

    def is_woken(self, uid: str) -> bool:
        """True if the pod was woken and not tried since."""
        return uid in self._woken

    def ahead(self) -> list[Pod]:
        """The pods that were woken, and count as if they held their cards."""
        return [pod for pod, _ in list(self._woken.values())]

    def wake(self, pods: Iterable[tuple[Pod, RefusalKind]], now_s: float) -> None:
        """These pods are about to be woken."""
        for pod, _ in pods:
            self.uids.pop(pod.uid, None)
            self._woken[pod.uid] = pod, now_s + TRIED_WITHIN_S
