"""Reports nodes that come after others because their kubelets refuse pods, in the log and as Events on the
nodes."""

from collections.abc import Iterator

from scheduler_ext.log import EventReason, Log
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.rejections import NOTHING_REJECTED, Demotion, NodeRejections
from timekeeper.core.object_names import timestamp
from timekeeper.runtime.event_recorder import EventRecorder


def demotions(new: Map[NodeRejections], old: Map[NodeRejections]) -> Iterator[tuple[str, str, Demotion]]:
    """Those that have begun between two versions of the map: node, namespace or `rejections.ALL`, and the
    demotion."""
    for name in new.changed_since(old):
        before = (old.get(name) or NOTHING_REJECTED).demotions
        for namespace, demotion in (new.get(name) or NOTHING_REJECTED).demotions.items():
            if not demotion.is_over and before.get(namespace) != demotion:
                yield name, namespace, demotion


def sentence(namespace: str, demotion: Demotion) -> str:
    """For people; its second word is a time, which the doctor reads."""
    whose = f"GPU pods of namespace {namespace}" if namespace else "GPU pods"
    until = timestamp(demotion.until_ms)
    return f"Until {until} other nodes come first for {whose}: the kubelet refused several ({demotion.why})"


class DemotedNodes:
    """Call `look` repeatedly, from one thread."""

    def __init__(self, events: EventRecorder[EventReason], log: Log) -> None:
        self._events, self._log = events, log
        self._seen: Map[NodeRejections] = Map()

    def look(self, nodes: Map[NodeRejections]) -> None:
        """Report what has begun since the last call."""
        seen, self._seen = self._seen, nodes
        for name, namespace, demotion in demotions(nodes, seen) if nodes is not seen else ():
            said = sentence(namespace, demotion)
            self._log("demoted", level="warning", node=name, namespace=namespace, why=said)
            self._events.post_on_node(name, "NodeDemoted", said, "Warning")
