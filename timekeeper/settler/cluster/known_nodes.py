"""Nodes with their cards, and what says that they live, as the watches show them."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from timekeeper.core import names
from timekeeper.core.free_cards import Apart
from timekeeper.core.kube.node_constraints import Labels
from timekeeper.core.ledger.hold import RENEWED_MS, NodeSight
from timekeeper.core.rating.held import card_host
from timekeeper.core.rating.nodes import NO_CARDS, NodeCards
from timekeeper.core.request.host import NO_HOST, CardHost, HostAmount
from timekeeper.core.tables import Table
from timekeeper.core.values import WHOLE_MILLI, Card


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that exists, as the watch shows it."""

    name: str
    rated: NodeCards = NO_CARDS  # its cards, and what its plugins count of them
    fault: str = ""  # why its inventory cannot be read
    allocatable: HostAmount = NO_HOST  # CPU and memory; of a node without cards nothing is known
    plugin_chooses: bool = False  # its device plugin picks the cards
    unclassified: tuple[str, ...] = ()  # its resources of which no table says whether they are accelerators'
    gpus: Mapping[str, int] = field(default_factory=dict)  # the GPU resources that it advertises
    offers: tuple[str, ...] = ()  # those of which it has some to give out
    devices: int = 0  # how many cards and accelerators it has
    # when it came, if its inventory is of Bursar's agent; 0: it is not
    came_ms: int = field(default=0, compare=False)
    ready: str = field(default="", compare=False)  # the status of its condition Ready; "": it has none
    # its boot, and the pods on it by its agent's fresh report; arrives apart from the cards
    sight: NodeSight = field(default=NodeSight(), compare=False)
    labels: Labels = ()  # without those that tell single nodes apart
    apart: Apart = ""  # why no pod of GPUs comes to it
    cordoned: tuple[str, ...] = ()  # UUIDs of cards

    @property
    def cards(self) -> tuple[Card, ...]:
        """As they are described; empty where nothing describes any."""
        return self.rated.cards


@dataclass(frozen=True, slots=True)
class NodeLease:
    """When a node's kubelet last renewed its Lease, by the node's clock. ``ahead_ms``: by how much that is
    ahead of the API server's; 0: it is right; None: that is not known."""

    name: str
    renewed_ms: int | None
    ahead_ms: int | None = None

    @property
    def heard_ms(self) -> int | None:
        """The renewal by the API server's clock."""
        return None if self.renewed_ms is None else self.renewed_ms - (self.ahead_ms or 0)


class KnownNodes(Table[str, KnownNode]):
    """By name; ``version`` is of their cards. ``failing``: the sources that cannot be watched now."""

    def __init__(self, failing: Container[str] = ()) -> None:
        super().__init__()
        self._failing = failing
        self.leases: Table[str, NodeLease] = Table()  # by node
        self.had_lease: set[str] = set()  # nodes of which this process or the ledger knows one
        # node without a Lease -> its condition Ready, and since when it is Unknown, None: it is not
        self._ready: dict[str, tuple[str, int | None]] = {}
        self.logged_clocks: frozenset[str] = frozenset()  # nodes with wrong clocks that the log has named
        self.counted_resources: frozenset[str] = frozenset()  # unclassified ones that the metrics have
        # by a card's UUID the Node that came last with it, and when
        self._last_with: dict[str, tuple[int, str]] = {}
        # Node whose cards came again as another's, because its host was renamed or they were moved -> when
        self.moved_ms: dict[str, int] = {}
        # the version, and how much CPU and memory there is for each card in it
        self._card_host: tuple[int, CardHost | None] = (-1, None)
        # the version, and on how many nodes each unclassified resource is
        self._unclassified: tuple[int, Mapping[str, int]] = (-1, {})

    def see(self, node: KnownNode, deleted: bool, at_ms: int) -> None:
        """The node as it is now, or its last state if it was deleted."""
        self.keep(node.name, node, deleted)
        for card in node.cards if node.came_ms and not deleted else ():
            mine = node.came_ms, node.name
            earlier, later = sorted((mine, self._last_with.get(card.uuid, mine)))
            self._last_with[card.uuid] = later
            if earlier[1] != later[1]:
                self.moved_ms[earlier[1]] = later[0]
        self._see_ready(node.name, "" if deleted else node.ready, at_ms)

    def see_lease(self, lease: NodeLease, deleted: bool) -> None:
        """The node's Lease as it is now."""
        self.had_lease.add(lease.name)
        self.leases.keep(lease.name, lease, deleted)

    def _see_ready(self, node: str, status: str, at_ms: int) -> None:
        """One that was first seen as Unknown is heard no more: nothing says since when."""
        _, unknown_ms = self._ready.pop(node, ("", 0))
        if status:
            since_ms = at_ms if unknown_ms is None else unknown_ms
            self._ready[node] = status, since_ms if status == "Unknown" else None

    def alive_ms(self, node: str, current_ms: int) -> int | None:
        """Until when the node was alive with its pods observed; None if it never renewed its Lease.
        ``current_ms``: until when the pods are known; 0: they are not."""
        lease = self.leases.get(node)
        if node in self.had_lease or not current_ms:
            is_heard = lease is not None and lease.heard_ms is not None and current_ms
            return min(current_ms, lease.heard_ms or 0) if is_heard and lease else None
        return self._ready_until_ms(node, current_ms)

    def _ready_until_ms(self, node: str, current_ms: int) -> int | None:
        """Of a node that never had a Lease: while its condition Ready is not Unknown, as the watch saw it. As
        often as a Lease is renewed."""
        status, unknown_ms = self._ready.get(node, ("", None))
        if not status or "nodes" in self._failing or "leases" in self._failing:
            return None
        until_ms = current_ms // RENEWED_MS * RENEWED_MS
        return until_ms if unknown_ms is None else min(until_ms, unknown_ms)

    def leaseless(self) -> list[str]:
        """The nodes with cards that never had a Lease, and live by their condition Ready."""
        return [name for name in self._ready if self.cards(name) and name not in self.had_lease]

    def wrong_clocks(self) -> dict[str, int]:
        """By how many milliseconds the clocks of nodes with cards are ahead, where they are wrong."""
        return {
            node: lease.ahead_ms for node, lease in self.leases.items() if lease.ahead_ms and self.cards(node)
        }

    def clock_ahead_ms(self, node: str) -> int | None:
        """By how much the node's clock is ahead, as its Lease shows; None: that is not known. Of a node that
        never had a Lease nothing but the receipt of an end says that its clock is wrong."""
        lease = self.leases.get(node)
        if lease is not None:
            return lease.ahead_ms
        return 0 if node in self._ready and node not in self.had_lease else None

    def rated(self, node: str) -> NodeCards:
        """The node's cards, and what its plugins count of them; none of a node that is not known."""
        known = self.get(node)
        return known.rated if known else NO_CARDS

    def cards(self, node: str) -> tuple[Card, ...]:
        """The node's cards; empty for a node that is not known."""
        return self.rated(node).cards

    def most_milli(self, node: str) -> int:
        """What all cards of the node are together, in milli-GPU; 0 for a node that is not known."""
        known = self.get(node)
        return WHOLE_MILLI * known.devices if known else 0

    def card_host(self) -> CardHost | None:
        """How much CPU and memory there is for each card, computed anew where a node has changed."""
        if self._card_host[0] != self.version:
            known = card_host((each.cards, each.allocatable) for each in self.values())
            self._card_host = self.version, known and replace(known, most_card_mib=self._most_card_mib())
        return self._card_host[1]

    def _most_card_mib(self) -> int:
        """0 while the agent of some node is of a release that does not advertise what pods would request."""
        ours = [node for node in self.values() if names.GPU_PERCENT in node.gpus]
        if any(names.CARD_MILLIONTHS not in node.gpus for node in ours):
            return 0
        return max((card.memory_mib for node in ours for card in node.cards), default=0)

    def unclassified(self) -> Mapping[str, int]:
        """On how many nodes each resource is of which no table says whether it is an accelerator's."""
        if self._unclassified[0] != self.version:
            resources = chain.from_iterable(node.unclassified for node in self.values())
            self._unclassified = self.version, Counter(resources)
        return self._unclassified[1]
