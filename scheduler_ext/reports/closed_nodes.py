"""Reports when a node closes for sharing and when it opens again, in the log and as an Event on the node."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.node import CLOSED
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.runtime.event_recorder import EventRecorder


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


class Closures:
    """Call `look` repeatedly, from one thread."""

    def __init__(self, events: EventRecorder[EventReason], log: Log) -> None:
        self._events, self._log = events, log
        self._seen: Map[NodeInfo] = Map()

    def look(self, nodes: Map[NodeInfo]) -> None:
        """Report what has changed since the last call."""
        seen, self._seen = self._seen, nodes
        for each in closures(nodes, seen) if nodes is not seen else ():
            said = each.sentence()
            if each.word:
                self._log("closed", level="warning", node=each.node, why=said)
                self._events.post_on_node(each.node, "CardsClosed", said, "Warning")
            else:
                self._log("opened", node=each.node)
                self._events.post_on_node(each.node, "CardsOpen", said)
