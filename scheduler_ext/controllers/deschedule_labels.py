"""Marks pods for a descheduler while a node's labels say that the pods of one of their cards or tiles must
leave, and takes the mark off again when no label says so any more.

Only the leader writes. The mark is a label of the pod, and so the only record of what was done.
"""

import threading
from collections.abc import Callable, Iterator

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import pod_path
from scheduler_ext.log import Log
from scheduler_ext.model.labels import by_key
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.dialects import gas
from timekeeper.core.values import Placement
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api

LABEL, VALUE = "gpu.aware.scheduling/deschedule-pod", "gpu"

INTERVAL_S = 1.0
ALL_S = 60.0  # between two looks at all nodes, so that a mark that somebody removed comes back
CALL_S = 2.0


def wrongly_marked(node: NodeInfo, pods: Map[Pod]) -> Iterator[tuple[Pod, bool]]:
    """The running pods of the node whose mark is not as its cards require, each with whether it needs one."""
    if node.node_object is None or node.node_object.family != gas.DIALECT.name:
        return
    for uid, allocation in node.allocations.items():
        pod = pods.get(uid)
        if pod is None or allocation.state != "bound" or allocation.placement is None or pod.deleting:
            continue
        needs = _must_leave(allocation.placement, node)
        if needs != (by_key(pod.labels).get(LABEL) == VALUE):
            yield pod, needs


def _must_leave(placement: Placement, node: NodeInfo) -> bool:
    cards = {card.uuid: card for card in node.cards}
    parts = (part for _, slices in placement.containers for part in slices if part.uuid in cards)
    return any(
        cards[part.uuid].vacated or not set(cards[part.uuid].vacated_tiles).isdisjoint(part.tiles)
        for part in parts
    )


class DescheduleLabels:
    """``leads``: whether this replica may write. `run` needs a thread of its own."""

    def __init__(self, api: Api, cache: ClusterCache, leads: Callable[[], bool], log: Log) -> None:
        self._api, self._cache, self._leads, self._log = api, cache, leads, log
        self._seen: Map[NodeInfo] = Map()

    def run(self, stop: threading.Event) -> None:
        """Look each second, until ``stop``."""
        left_s = ALL_S
        while not stop.wait(INTERVAL_S):
            left_s -= INTERVAL_S
            if left_s <= 0:
                self._seen, left_s = Map(), ALL_S
            self.look()

    def look(self) -> None:
        """Mark the pods of the nodes that have changed since the last look, if this replica leads; nodes on
        which a call failed are looked at again."""
        if not self._leads() or not self._cache.complete:
            self._seen = Map()
            return
        snapshot = self._cache.snapshot
        seen, self._seen = self._seen, snapshot.nodes
        if snapshot.nodes is seen:
            return
        for name in snapshot.nodes.changed_since(seen):
            node = snapshot.nodes.get(name)
            for pod, needs in wrongly_marked(node, snapshot.pods) if node is not None else ():
                if not self._mark(pod, needs):
                    self._seen = seen

    def _mark(self, pod: Pod, needs: bool) -> bool:
        """True if the mark is as it should be or the pod is gone."""
        patch = {"metadata": {"uid": pod.uid, "labels": {LABEL: VALUE if needs else None}}}
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = self._api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)
        if not isinstance(reply, Answered) or reply.status >= 500:
            return False
        if reply.status < 300:
            self._log("deschedule-label", pod=pod.full_name, present=needs)
        return True
