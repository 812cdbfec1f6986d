"""What became of pods whose objects are gone, and of claims that such pods used: `core.ledger.hold.followed`
for each, with every report about its node."""

from dataclasses import dataclass, field, replace

from timekeeper.core.ledger.hold import NodeSight, Vanished, followed, heard

MAX_NODES = 100_000  # nodes, including deleted ones: a node may come back after a reboot

NOTHING_SEEN = NodeSight()


@dataclass(slots=True)
class PodsWithoutObject:
    """The vanished pods whose sessions are not settled, or whose claims may be released, and what is known of
    nodes."""

    holds: dict[str, Vanished] = field(default_factory=dict)  # by the UID of the pod, or of a claim's session
    is_complete: bool = False  # the sessions that an earlier settler left are among them
    sights: dict[str, NodeSight] = field(default_factory=dict)  # by node
    changed: set[str] = field(default_factory=set)  # nodes of which something else is known since a tick
    most_nodes: int = MAX_NODES
    _by_node: dict[str, set[str]] = field(default_factory=dict)  # node -> UIDs
    nodes: dict[str, str] = field(default_factory=dict)  # UID -> node

    def see(self, node: str, sight: NodeSight | None, at_ms: int) -> None:
        """A Node changed; ``sight`` None: it is gone. The boot of a deleted node is remembered."""
        known = self.sights.pop(node, NOTHING_SEEN)
        sight = replace(sight or NOTHING_SEEN, boot=(sight.boot if sight else "") or known.boot)
        self.sights[node] = sight
        if len(self.sights) > self.most_nodes:
            del self.sights[next(iter(self.sights))]
        for uid in self._by_node.get(node, ()):
            self.holds[uid] = followed(self.holds[uid], uid, sight, at_ms)

    def add(self, uid: str, node: str, gone: Vanished, at_ms: int) -> None:
        """A pod vanished from this node. The first report of it counts."""
        if uid in self.holds:
            return
        self.nodes[uid] = node
        self._by_node.setdefault(node, set()).add(uid)
        self.holds[uid] = followed(gone, uid, self.sights.get(node, NOTHING_SEEN), at_ms)

    def confirm(self, uid: str, until_ms: int | None) -> Vanished:
        """The hold of a vanished pod, which its node lists until ``until_ms`` if it still lists it."""
        gone = self.holds[uid]
        if gone.is_listed and until_ms is not None:
            gone = self.holds[uid] = replace(gone, listed_ms=max(until_ms, gone.listed_ms or 0))
        return gone

    def hear(self, node: str, at_ms: int | None) -> None:
        """A node's Lease was renewed at this time."""
        if at_ms is not None and self.sights.get(node, NOTHING_SEEN).ends_forced:
            for uid in self._by_node.get(node, ()):
                self.holds[uid] = heard(self.holds[uid], at_ms)

    def remove(self, uid: str) -> None:
        """The pod's session is settled, or its object is back."""
        self.holds.pop(uid, None)
        node = self.nodes.pop(uid, "")
        there = self._by_node.get(node, set())
        there.discard(uid)
        if not there:
            self._by_node.pop(node, None)
