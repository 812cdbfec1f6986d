"""Reports when a node closes for sharing and when it opens again, and when other nodes come before it, in the
log and as an Event on the node."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.node import CLOSED
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.rejections import NOTHING_REJECTED, Demotion, NodeRejections
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot
from timekeeper.core.object_names import timestamp
from timekeeper.edge.events import EventRecorder


@dataclass(frozen=True, slots=True)
class Closure:
    """A node that has closed, with the reason (a key of `node.CLOSED`) and the pods that caused it; or, with
    reason "", opened. ``why``: details for people."""

    node: str
    word: str
    pods: tuple[str, ...] = ()
    why: str = field(default="", compare=False)

    def sentence(self) -> str:
        """For people."""
        if not self.word:
            return "GPU pods are placed on the node again."
        named = f" ({', '.join(self.pods[:3])}{' and others' if len(self.pods) > 3 else ''})"
        why = self.why or CLOSED[self.word]
        return f"No GPU pods are placed on the node: {why}{named if self.pods else ''}."


def closures(new: Map[NodeInfo], old: Map[NodeInfo]) -> Iterator[Closure]:
    """The nodes that closed or opened between two versions of the map. A deleted node is not reported."""
    for name in new.changed_since(old):
        node, before = new.get(name), old.get(name)
        if node is None or node.node_object is None:
            continue
        now = Closure(name, node.closed, culprits(node), why_closed(node))
        was = Closure(name, before.closed, culprits(before)) if before is not None else Closure(name, "")
        if now != was:
            yield now


def why_closed(node: NodeInfo) -> str:
    """Why the node is closed, with its agent's explanation or the drivers; "" if it is open."""
    if not node.closed:
        return ""
    if node.closed == "claims":
        return f"{CLOSED[node.closed]} of {' and '.join(node.claim_drivers)}"
    agents = (
        node.node_object.present.closed
        if node.node_object is not None and node.node_object.present is not None
        else ""
    )
    return f"{CLOSED[node.closed]}: {agents}" if node.closed == "strangers" else CLOSED[node.closed]


def culprits(node: NodeInfo) -> tuple[str, ...]:
    """The names of the pods that close the node; empty if the cause is the node itself."""
    return tuple(
        sorted(
            allocation.full_name
            for allocation in node.allocations.values()
            if (allocation.fault or (allocation.named and "overcommitted")) == node.closed != ""
        )
    )


def demotions(new: Map[NodeRejections], old: Map[NodeRejections]) -> Iterator[tuple[str, str, Demotion]]:
    """Those that began between two versions of the map: node, namespace or `rejections.ALL`, demotion."""
    for name in new.changed_since(old):
        before = (old.get(name) or NOTHING_REJECTED).demotions
        for namespace, demotion in (new.get(name) or NOTHING_REJECTED).demotions.items():
            if not demotion.is_over and before.get(namespace) != demotion:
                yield name, namespace, demotion


def demoted_sentence(namespace: str, demotion: Demotion) -> str:
    """For people."""
    whose = f"GPU pods of namespace {namespace}" if namespace else "GPU pods"
    until = timestamp(demotion.until_ms)
    return f"Until {until} other nodes come first for {whose}: the kubelet refused several ({demotion.why})"


class Closures:
    """Call `look` repeatedly, from one thread."""

    def __init__(self, events: EventRecorder[EventReason], log: Log) -> None:
        self._events, self._log = events, log
        self._seen = EMPTY

    def look(self, snapshot: Snapshot) -> None:
        """Report what has changed since the last call."""
        seen, self._seen = self._seen, snapshot
        for closure in closures(snapshot.nodes, seen.nodes):
            said = closure.sentence()
            if closure.word:
                self._log("closed", level="warning", node=closure.node, why=said)
                self._events.post_on_node(closure.node, "CardsClosed", said, "Warning")
            else:
                self._log("opened", node=closure.node)
                self._events.post_on_node(closure.node, "CardsOpen", said)
        for name, namespace, demotion in demotions(snapshot.rejections, seen.rejections):
            said = demoted_sentence(namespace, demotion)
            self._log("demoted", level="warning", node=name, namespace=namespace, why=said)
            self._events.post_on_node(name, "NodeDemoted", said, "Warning")
