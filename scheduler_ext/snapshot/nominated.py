"""The pods that wait for a node where kube-scheduler has preempted others for them."""

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.immutable_map import Map


class NominatedPods:
    """Kept beside the pods of snapshots. May be called from any thread: what is known is one immutable value,
    which is replaced as a whole."""

    def __init__(self) -> None:
        self._known: tuple[Map[Pod], frozenset[str]] = Map(), frozenset()

    def among(self, pods: Map[Pod]) -> tuple[Pod, ...]:
        """Those of these pods."""
        known, uids = self._known
        if pods is not known:
            changed = frozenset(pods.changed_since(known))
            uids = (uids - changed) | {uid for uid in changed if _is_nominated(pods.get(uid))}
            self._known = pods, uids
        found = (pods.get(uid) for uid in sorted(uids))
        return tuple(pod for pod in found if pod is not None)


def _is_nominated(pod: Pod | None) -> bool:
    """A pod for which cards are reserved is nominated as well, by the extender: these cards are its own."""
    if pod is None or not pod.nominated or pod.reserved is not None or pod.gang is not None:
        return False
    return not (pod.deleting or pod.terminal)
