"""The pods for which the verb ``preempt`` named victims."""

from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.cooldown import AGAIN_MS
from scheduler_ext.snapshot.snapshot import Snapshot


class AnsweredPreemptions:
    """Pods for which the verb ``preempt`` named victims, until they are bound or gone. kube-scheduler evicts
    at once, so a pod that goes without having been bound is one for which others were evicted in vain. Others
    may call `note` while one caller is in `in_vain`."""

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[Pod, int]] = {}

    def note(self, pod: Pod, now_ms: int) -> None:
        """Victims were named to kube-scheduler for this pod."""
        self._since_ms.setdefault(pod.uid, (pod, now_ms))

    def in_vain(self, snapshot: Snapshot, now_ms: int) -> list[Pod]:
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
