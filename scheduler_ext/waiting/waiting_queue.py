"""The waiting pods, kept sorted, so that no call of kube-scheduler has to sort them."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.waiting.order import ANYWHERE, QueueKey, WaitingPod, queue_key


class WaitingQueue:
    """Waiting pods by UID and by `queue_key` without reservations. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting_pods: dict[str, WaitingPod] = {}
        self._waiting_queue: dict[str, QueueKey] = {}
        self._order: list[QueueKey] = []
        self._standings = UNHEARD

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting_pods

    def get(self, uid: str) -> WaitingPod | None:
        """The waiting pod of this UID; None if it does not wait."""
        return self._waiting_pods.get(uid)

    def all(self) -> list[WaitingPod]:
        """In the order in which they came."""
        return list(self._waiting_pods.values())

    def put(self, waiting: WaitingPod) -> None:
        """Adds the pod, or replaces its value."""
        uid, its = waiting.pod.uid, queue_key(waiting.pod, ANYWHERE, self._standings)
        self._waiting_pods[uid] = waiting
        if self._waiting_queue.get(uid) != its:
            self._out_of_order(uid)
            self._waiting_queue[uid] = its
            insort(self._order, its)

    def discard(self, uids: Iterable[str]) -> None:
        """These pods wait no more."""
        for uid in uids:
            if self._waiting_pods.pop(uid, None) is not None:
                self._out_of_order(uid)

    def some(
        self,
        standings: NamespaceStandings,
        most: int,
        after: QueueKey | None = None,
        before: QueueKey | None = None,
    ) -> list[WaitingPod]:
        """At most ``most`` pods whose key is greater than ``after`` and less than ``before``, in order."""
        if standings is not self._standings:
            self._standings = standings
            self._waiting_queue = {
                uid: queue_key(each.pod, ANYWHERE, standings) for uid, each in self._waiting_pods.items()
            }
            self._order = sorted(self._waiting_queue.values())
        start = 0 if after is None else bisect_right(self._order, after)
        end = len(self._order) if before is None else bisect_left(self._order, before)
        return [self._waiting_pods[its[-1]] for its in self._order[start : min(end, start + most)]]

    def _out_of_order(self, uid: str) -> None:
        its = self._waiting_queue.pop(uid, None)
        if its is not None:
            del self._order[bisect_left(self._order, its)]
