"""The present snapshot: one lock, one value, replaced as a whole.

Readers take ``snapshot`` and keep it as long as they like; every change is a function from one snapshot to
the next. After a change, ``freed`` is called with the nodes that have more free.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.labels import Packed
from scheduler_ext.model.node import Node
from scheduler_ext.model.pod import MAX_GRACE_MS, NonGPUPod, Pod
from scheduler_ext.model.published_gpus import PublishedGPU
from scheduler_ext.snapshot import snapshot as transitions
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, is_emptier
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot
from timekeeper.core.values import Placement

SETTLE_AFTER_MS = 10_000  # after this time a binding that the watch has not shown is checked
MAX_GONE = 10_000


class ClusterCache:
    """The extender's knowledge of the cluster. ``now_ms``: the clock by which vanished pods release their
    cards. ``most_grace_ms``: the longest grace period. ``removed`` is called with each bound pod whose object
    is gone, with the hold that all of its versions tell, unless the watch missed how it ended; ``left`` when
    it then holds its cards no more: with its UID, and how long ago its node's agent ceased to list it, None:
    its grace is over."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        freed: Callable[[list[str]], None],
        most_grace_ms: int = MAX_GRACE_MS,
        removed: Callable[[Pod], None] = lambda _pod: None,
        left: Callable[[str, int | None], None] = lambda _uid, _age_ms: None,
    ) -> None:
        self._now_ms, self._freed = now_ms, freed
        self._removed, self._left = removed, left
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._snapshot = replace(EMPTY, most_grace_ms=most_grace_ms)
        self._missing = {"pods", "nodes"}
        self._gone: OrderedDict[str, None] = OrderedDict()

    @property
    def snapshot(self) -> Snapshot:
        """The present snapshot."""
        return self._snapshot

    @property
    def complete(self) -> bool:
        """True once all first lists are in; nothing is answered before."""
        return not self._missing

    def pods_listed(self, pods: Iterable[Pod | NonGPUPod]) -> None:
        """Exactly these pods exist."""
        listed = list(pods)
        there = [pod for pod in listed if isinstance(pod, Pod)]
        others = [pod for pod in listed if isinstance(pod, NonGPUPod)]
        uids = {pod.uid for pod in there}
        gone = [pod for uid, pod in self._snapshot.pods.items() if uid not in uids]
        self._remember_deleted(pod.uid for pod in gone)
        for pod in gone:
            if pod.hold.over:  # else its end was not seen
                self._report_removed(pod)
        self._change(lambda s: transitions.non_gpu_pods_listed(s, others))
        self._change(lambda s: transitions.pods_listed(s, there, self._now_ms()))
        self._missing.discard("pods")

    def nodes_listed(self, nodes: Iterable[Node]) -> None:
        """Exactly these nodes exist."""
        self._change(lambda s: transitions.nodes_listed(s, nodes, self._now_ms()))
        self._missing.discard("nodes")

    def pod_updated(self, pod: Pod | NonGPUPod) -> None:
        """The pod's present state."""
        if isinstance(pod, NonGPUPod):
            self._change(lambda s: transitions.non_gpu_pod_updated(s, pod))
        else:
            self._change(lambda s: transitions.pod_updated(s, pod, self._now_ms()))

    def pod_read(self, pod: Pod) -> None:
        """A read showed this pod. It is recorded only if it shows a Binding that the watch has not shown yet.
        A read is older than what the watch shows after it: a pod whose deletion was shown stays deleted,
        because nothing would delete it a second time. And a waiting pod's version comes only from the watch
        (`scheduler_ext.leadership.takeover`)."""

        def read(snapshot: Snapshot) -> Snapshot:
            known = snapshot.pods.get(pod.uid)
            if not pod.node or pod.uid in self._gone or (known is not None and known.node):
                return snapshot
            return transitions.pod_updated(snapshot, pod, self._now_ms())

        self._change(read)

    def pod_deleted(self, pod: Pod | NonGPUPod) -> None:
        """The pod's object is deleted; this was its last state."""
        if isinstance(pod, NonGPUPod):
            self._change(lambda s: transitions.non_gpu_pod_deleted(s, pod.uid))
            return
        self._remember_deleted([pod.uid])
        known = self._snapshot.pods.get(pod.uid)
        self._report_removed(pod if known is None else transitions.joined(known, pod))
        self._change(lambda s: transitions.pod_deleted(s, pod, self._now_ms()))

    def node_updated(self, node_object: Node) -> None:
        """The node's present state."""
        self._change(lambda s: transitions.node_updated(s, node_object, self._now_ms()))

    def node_deleted(self, name: str) -> None:
        """The node's object is deleted."""
        self._change(lambda s: transitions.node_deleted(s, name, self._now_ms()))

    def namespaces_changed(self, change: Callable[[Map[Packed]], Map[Packed]]) -> None:
        """The labels of namespaces, by name, are now what this makes of them."""
        self._change(lambda s: replace(s, namespaces=change(s.namespaces)))

    def await_published_gpus(self) -> None:
        """It is not complete before it is known what drivers publish, either."""
        self._missing.add("published GPUs")

    def gpus_published(self, by_node: Mapping[str, tuple[PublishedGPU, ...]], is_whole: bool) -> None:
        """The GPUs that drivers publish of these nodes. ``is_whole``: those of all nodes are known now."""
        self._change(lambda s: transitions.gpus_published(s, by_node))
        if is_whole:
            self._missing.discard("published GPUs")

    def assume(
        self,
        pod: Pod,
        node: NodeInfo,
        placement: Placement,
        refuses: Callable[[Pod, Snapshot], Refusal | None] = lambda _pod, _snapshot: None,
    ) -> bool | Refusal:
        """Take the cards of a placement found on this version of the node. False if the node has changed
        since (find a placement again), and if `is_superseded`. ``refuses`` sees the pod with these cards, and
        what every bind before took, on whichever node: what it refuses is not taken."""
        with self._lock:
            if self._snapshot.nodes.get(node.name) is not node or self._is_superseded(pod.uid):
                return False
            ask_at_ms = self._now_ms() + SETTLE_AFTER_MS
            taken = transitions.assume(self._snapshot, pod, node.name, placement, ask_at_ms)
            refusal = refuses(pod, taken)
            if refusal is None:
                self._snapshot = taken
            return refusal or True

    def keep_planned(self, members: Sequence[tuple[Pod, str, Placement]], seen: Snapshot) -> bool:
        """Keep these cards of these nodes for these waiting members of a gang, for all or, if a pod or one of
        the nodes has changed since the snapshot that they were chosen in, for none."""
        with self._lock:
            now = self._snapshot
            if any(now.node(name) is not seen.node(name) for _, name, _ in members):
                return False
            if any(now.pods.get(pod.uid) is not pod for pod, _, _ in members):
                return False
            for pod, name, placement in members:
                now = transitions.keep_planned(now, pod, name, placement)
            self._snapshot = now
            return True

    def end_planned(self, uids: Iterable[str]) -> None:
        """Nothing is kept for these members any more."""

        def ended(snapshot: Snapshot) -> Snapshot:
            for uid in uids:
                snapshot = transitions.end_planned(snapshot, uid)
            return snapshot

        self._change(ended)

    def drain(self, wanted: Drain) -> None:
        """Keep the cards of this drain empty, and no others, until it ends."""
        self._change(lambda s: transitions.drain(s, wanted))

    def undrain(self) -> None:
        """No cards are kept empty any more."""
        self._change(transitions.undrain)

    def is_superseded(self, uid: str) -> bool:
        """True if the pod is bound or deleted by now. An assumption would then displace the cards that it
        holds, or hold cards that nothing releases."""
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
        """The pod was certainly not bound."""
        self._change(lambda s: transitions.forget(s, uid, self._now_ms()))

    def mark_uncertain(self, uid: str) -> None:
        """It is unknown whether the pod was bound: check now."""
        self._change(lambda s: transitions.ask_after(s, uid, self._now_ms()))

    def postpone(self, uid: str) -> None:
        """The check failed, or is not needed yet."""
        self._change(lambda s: transitions.ask_after(s, uid, self._now_ms() + SETTLE_AFTER_MS))

    def orphan(self, uid: str) -> None:
        """The pod's object is gone, and it is unknown whether it had been bound."""
        self._change(lambda s: transitions.orphan(s, uid, self._now_ms()))

    def expire(self) -> None:
        """Vanished pods release their cards when their time is over; reservations and a drain end."""
        now = self._snapshot
        if now.unsure or len(now.ended) or now.drain is not None or len(now.rejections):
            self._change(lambda s: transitions.expire(s, self._now_ms()))

    def wait_for(self, true: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Wait at most this long until the condition holds for the snapshot; returns whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: true(self._snapshot), timeout_s)

    def uncertain(self) -> list[str]:
        """The UIDs of assumed pods to check now."""
        snapshot, now_ms = self._snapshot, self._now_ms()
        allocations = [snapshot.allocation(uid) for uid in snapshot.unsure]
        return [s.uid for s in allocations if s is not None and s.state == "assumed" and s.until_ms <= now_ms]

    def _remember_deleted(self, uids: Iterable[str]) -> None:
        with self._lock:
            self._gone.update(dict.fromkeys(uids))
            while len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)

    def _report_removed(self, pod: Pod) -> None:
        if pod.node:
            self._removed(pod)

    def _report_left(self, old: Snapshot, new: Snapshot) -> None:
        """What released the cards of vanished pods: the clock after the grace period, or the node's agent."""
        now_ms = self._now_ms()
        for uid in old.unsure - new.unsure:
            allocation = old.allocation(uid)
            gone = allocation.gone if allocation is not None else None
            if gone is None or new.allocation(uid) is not None:
                continue
            until_ms = now_ms if gone.is_held(now_ms) else gone.until_ms
            is_by_grace = until_ms == gone.removed_ms + gone.grace_ms
            self._left(uid, None if is_by_grace else max(0, now_ms - until_ms))

    def _change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        with self._lock:
            old = self._snapshot
            new = self._snapshot = change(old)
            self._changed.notify_all()
        if new.unsure is not old.unsure:
            self._report_left(old, new)
        emptier = emptier_nodes(new, old) if self.complete and new is not old else []
        if emptier:
            self._freed(emptier)


def emptier_nodes(new: Snapshot, old: Snapshot) -> list[str]:
    """The nodes where a pod may fit in the new snapshot but not in the old one."""
    return [
        name
        for name in new.nodes.changed_since(old.nodes)
        if (node := new.nodes.get(name)) is not None and is_emptier(node, old.nodes.get(name))
    ]
