"""The running snapshot: one lock, one value, swapped whole.

Readers take ``snapshot`` and keep it as long as they like; every change is a function from one snapshot to
the next. Whoever asked is told which nodes a change made roomier.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from scheduler_ext.model.node import Node
from scheduler_ext.model.pod import MOST_GRACE_MS, NonGPUPod, Pod
from scheduler_ext.snapshot import snapshot as at_moment
from scheduler_ext.snapshot.node_info import NodeInfo, is_roomier
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot
from timekeeper.core.values import Placement

SETTLE_AFTER_MS = 10_000  # a binding that nobody has seen by then is asked after
MOST_GONE = 10_000


class ClusterCache:
    """What is known now. ``now_ms`` is the clock by which vanished pods let go, ``most_grace_ms`` the longest
    grace period."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        freed: Callable[[list[str]], None],
        most_grace_ms: int = MOST_GRACE_MS,
    ) -> None:
        self._now_ms, self._freed, self._most_grace_ms = now_ms, freed, most_grace_ms
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._snapshot = EMPTY
        self._listed: set[str] = set()
        self._gone: OrderedDict[str, None] = OrderedDict()

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of this moment."""
        return self._snapshot

    @property
    def complete(self) -> bool:
        """True from when both first lists are in: nothing is answered before."""
        return self._listed == {"pods", "nodes"}

    def pods_listed(self, pods: Iterable[Pod | NonGPUPod]) -> None:
        """These pods exist, and no others."""
        listed = list(pods)
        there = [pod for pod in listed if isinstance(pod, Pod)]
        others = [pod for pod in listed if isinstance(pod, NonGPUPod)]
        uids = {pod.uid for pod in there}
        self._remember_deleted(uid for uid, _ in self._snapshot.pods.items() if uid not in uids)
        self._change(lambda s: at_moment.non_gpu_pods_listed(s, others))
        self._change(lambda s: at_moment.pods_listed(s, there, self._now_ms()))
        self._listed.add("pods")

    def nodes_listed(self, nodes: Iterable[Node]) -> None:
        """These nodes exist, and no others."""
        self._change(lambda s: at_moment.nodes_listed(s, nodes))
        self._listed.add("nodes")

    def pod_updated(self, pod: Pod | NonGPUPod) -> None:
        """The pod is now as given."""
        if isinstance(pod, NonGPUPod):
            self._change(lambda s: at_moment.non_gpu_pod_updated(s, pod))
        else:
            self._change(lambda s: at_moment.pod_updated(s, pod, self._now_ms()))

    def pod_read(self, pod: Pod) -> None:
        """A read told that the pod is as given: booked where it tells of a Binding that the watch has not
        shown yet, and nothing else. A read is older than what the watch shows after it: a pod whose end was
        shown stays gone, for nothing would end it a second time. And the version of a pod that waits is known
        from the watch alone (`scheduler_ext.leadership.takeover`)."""

        def read(snapshot: Snapshot) -> Snapshot:
            known = snapshot.pods.get(pod.uid)
            if not pod.node or pod.uid in self._gone or (known is not None and known.node):
                return snapshot
            return at_moment.pod_updated(snapshot, pod, self._now_ms())

        self._change(read)

    def pod_deleted(self, pod: Pod | NonGPUPod) -> None:
        """The pod's object is gone, and was last as given."""
        if isinstance(pod, NonGPUPod):
            self._change(lambda s: at_moment.non_gpu_pod_deleted(s, pod.uid))
            return
        self._remember_deleted([pod.uid])
        self._change(lambda s: at_moment.pod_deleted(s, pod, self._now_ms()))

    def node_updated(self, node_object: Node) -> None:
        """The node is now as given."""
        self._change(lambda s: at_moment.node_updated(s, node_object))

    def node_deleted(self, name: str) -> None:
        """The node's object is gone."""
        self._change(lambda s: at_moment.node_deleted(s, name))

    def assume(self, pod: Pod, node: NodeInfo, placement: Placement) -> bool:
        """Take the cards of a placement that was found on this very node; False where it has changed since,
        so that the placement must be found anew, and where `is_superseded` holds."""
        with self._lock:
            if self._snapshot.nodes.get(node.name) is not node or self._is_superseded(pod.uid):
                return False
            ask_at_ms = self._now_ms() + SETTLE_AFTER_MS
            self._snapshot = at_moment.assume(self._snapshot, pod, node.name, placement, ask_at_ms)
            return True

    def is_superseded(self, uid: str) -> bool:
        """True where the pod is bound or gone by now: nothing may be assumed for it, for that would displace
        the cards that it holds, or hold some that nothing would free."""
        with self._lock:
            return self._is_superseded(uid)

    def _is_superseded(self, uid: str) -> bool:
        pod, allocation = self._snapshot.pods.get(uid), self._snapshot.allocation(uid)
        bound = pod is not None and pod.node != ""
        return (
            bound
            or uid in self._gone
            or (allocation is not None and allocation.state in ("bound", "orphaned"))
        )

    def forget(self, uid: str) -> None:
        """The pod was definitely not bound."""
        self._change(lambda s: at_moment.forget(s, uid, self._now_ms()))

    def mark_uncertain(self, uid: str) -> None:
        """Nobody knows whether the pod was bound: it is to be asked after now."""
        self._change(lambda s: at_moment.ask_after(s, uid, self._now_ms()))

    def postpone(self, uid: str) -> None:
        """The pod could not be asked after, or need not be yet."""
        self._change(lambda s: at_moment.ask_after(s, uid, self._now_ms() + SETTLE_AFTER_MS))

    def orphan(self, uid: str) -> None:
        """The pod's object is gone, and nobody knows whether it had been bound."""
        self._change(lambda s: at_moment.orphan(s, uid, self._now_ms()))

    def expire(self) -> None:
        """Vanished pods whose time has come let go of their cards, and reservations end."""
        if self._snapshot.unsure or len(self._snapshot.ended):
            self._change(lambda s: at_moment.expire(s, self._now_ms(), self._most_grace_ms))

    def wait_for(self, true: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Wait until it is true of the snapshot, at most so long; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: true(self._snapshot), timeout_s)

    def uncertain(self) -> list[str]:
        """The UIDs of assumed pods that are to be asked after now."""
        snapshot, now_ms = self._snapshot, self._now_ms()
        allocations = [snapshot.allocation(uid) for uid in snapshot.unsure]
        return [s.uid for s in allocations if s is not None and s.state == "assumed" and s.until_ms <= now_ms]

    def _remember_deleted(self, uids: Iterable[str]) -> None:
        with self._lock:
            self._gone.update(dict.fromkeys(uids))
            while len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)

    def _change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        with self._lock:
            old = self._snapshot
            new = self._snapshot = change(old)
            self._changed.notify_all()
        roomier = roomier_nodes(new, old) if self.complete and new is not old else []
        if roomier:
            self._freed(roomier)


def roomier_nodes(new: Snapshot, old: Snapshot) -> list[str]:
    """The nodes where a pod may fit in the new snapshot that did not in the old one."""
    return [
        name
        for name in new.nodes.changed_since(old.nodes)
        if (node := new.nodes.get(name)) is not None and is_roomier(node, old.nodes.get(name))
    ]
