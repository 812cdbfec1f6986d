"""Tells when a node is closed for sharing and when it is open again: in the log, and on the node as an Event,
for whoever looks why none of its cards is given out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_ext.clients.events import Events
from scheduler_ext.model.node import CLOSED
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.runtime.log import Log


@dataclass(frozen=True, slots=True)
class Closure:
    """A node that has become closed, by a word of `node.CLOSED` and because of these pods, if it is pods; or
    open, where the word is "". ``why``: for people, where there is more to say."""

    node: str
    word: str
    pods: tuple[str, ...] = ()
    why: str = field(default="", compare=False)

    def sentence(self) -> str:
        """For people."""
        if not self.word:
            return "The node's cards are given out again."
        named = f" ({', '.join(self.pods[:3])}{' and others' if len(self.pods) > 3 else ''})"
        why = self.why or CLOSED[self.word]
        return f"None of the node's cards is given out: {why}{named if self.pods else ''}."


def closures(new: Map[NodeInfo], old: Map[NodeInfo]) -> Iterator[Closure]:
    """What has changed between two versions of the map. A node whose object is gone is neither."""
    for name in new.changed_since(old):
        node, before = new.get(name), old.get(name)
        if node is None or node.node_object is None:
            continue
        now = Closure(name, node.closed, culprits(node), why_closed(node))
        was = Closure(name, before.closed, culprits(before)) if before is not None else Closure(name, "")
        if now != was:
            yield now


def why_closed(node: NodeInfo) -> str:
    """Why the node is closed, with what its agent says of that; "" where it is open."""
    if not node.closed:
        return ""
    agents = (
        node.node_object.present.closed
        if node.node_object is not None and node.node_object.present is not None
        else ""
    )
    return f"{CLOSED[node.closed]}: {agents}" if node.closed == "strangers" else CLOSED[node.closed]


def culprits(node: NodeInfo) -> tuple[str, ...]:
    """The pods that close the node, by name; none where it is closed for what it is itself."""
    return tuple(
        sorted(
            allocation.full_name
            for allocation in node.allocations.values()
            if allocation.fault == node.closed != ""
        )
    )


class Closures:
    """`look` is called again and again, by one thread."""

    def __init__(self, events: Events, log: Log) -> None:
        self._events, self._log = events, log
        self._seen: Map[NodeInfo] = Map()

    def look(self, nodes: Map[NodeInfo]) -> None:
        """Tell what has changed since the last look."""
        seen, self._seen = self._seen, nodes
        for each in closures(nodes, seen) if nodes is not seen else ():
            said = each.sentence()
            if each.word:
                self._log("closed", level="warning", node=each.node, why=said)
                self._events.post_on_node(each.node, "CardsClosed", said, "Warning")
            else:
                self._log("opened", node=each.node)
                self._events.post_on_node(each.node, "CardsOpen", said)
