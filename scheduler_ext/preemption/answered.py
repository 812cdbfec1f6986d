"""The pods for which kube-scheduler was told whom it may evict."""

import threading

from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.cooldown import AGAIN_MS
from scheduler_ext.snapshot.snapshot import Snapshot


class AnsweredPreemptions:
    """Pods that were named victims by the verb ``preempt``, until they are bound or gone. kube-scheduler
    evicts at once, so a pod that goes without having been bound is one for which others were evicted in vain.
    One thread may call `note` while another calls `in_vain`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_ms: dict[str, tuple[Pod, int]] = {}

    def note(self, pod: Pod, now_ms: int) -> None:
        """kube-scheduler was told whom it may evict for this pod."""
        with self._lock:
            self._since_ms.setdefault(pod.uid, (pod, now_ms))

    def in_vain(self, snapshot: Snapshot, now_ms: int) -> list[Pod]:
        """The pods that have gone, or are being deleted, unbound since the last call. Pods that were bound
        are forgotten, and so are those that have waited for longer than the cool-down."""
        with self._lock:
            waiting, gone = {}, []
            for uid, (pod, since_ms) in self._since_ms.items():
                now = snapshot.pods.get(uid)
                if now is None or now.deleting:
                    gone += [pod] if now is None or not now.node else []
                elif not now.node and now_ms - since_ms < AGAIN_MS:
                    waiting[uid] = pod, since_ms
            self._since_ms = waiting
        return gone
