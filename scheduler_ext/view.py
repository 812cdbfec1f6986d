"""``GET /v1/cluster``: the cards, who sits where, and who waits, for people and dashboards."""

from typing import Literal, TypedDict

from scheduler_ext.facts import CLOSED
from scheduler_ext.nodes import Node, uses_of
from scheduler_ext.snapshot import Snapshot
from scheduler_ext.waiting import Waiter
from timekeeper.core.cards import NO_USE, Use
from timekeeper.core.values import Card


class PodView(TypedDict):
    """A pod on a card: what it takes of it, and whether it is bound, assumed or vanished."""

    namespace: str
    name: str
    uid: str
    share_milli: int
    memory_mib: int
    held: str


class CardView(TypedDict):
    """A card, what is taken of it in all, and by whom."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool
    used_share_milli: int
    used_memory_mib: int
    pods: list[PodView]


class NodeView(TypedDict):
    """A node; ``closed`` tells why none of its cards is given out, or is null."""

    name: str
    family: str
    closed: str | None
    cards: list[CardView]


class WaitingView(TypedDict):
    """A pod that no node has room for."""

    namespace: str
    name: str
    uid: str
    priority: int


class ClusterView(TypedDict):
    """The answer; it has the nodes that have cards, by name."""

    version: Literal[1]
    nodes: list[NodeView]
    waiting: list[WaitingView]


def cluster(snapshot: Snapshot, waiting: list[Waiter]) -> ClusterView:
    """All of it."""
    nodes = sorted(
        (node for node in snapshot.nodes.values() if node.cards or node.closed), key=lambda n: n.name
    )
    waiters = [
        WaitingView(namespace=p.namespace, name=p.name, uid=p.uid, priority=p.priority)
        for p in (each.pod for each in waiting)
    ]
    return ClusterView(version=1, nodes=[_node(node) for node in nodes], waiting=waiters)


def _node(node: Node) -> NodeView:
    uses = uses_of(node.seats)
    return NodeView(
        name=node.name,
        family=node.facts.family if node.facts else "",
        closed=CLOSED[node.closed] if node.closed else None,
        cards=[_card(node, card, uses.get(card.uuid, NO_USE)) for card in node.cards],
    )


def _card(node: Node, card: Card, used: Use) -> CardView:
    pods = []
    for seat in node.seats.values():
        use = dict(seat.uses).get(card.uuid)
        if use is not None:
            namespace, _, name = seat.full_name.partition("/")
            pods.append(
                PodView(
                    namespace=namespace,
                    name=name,
                    uid=seat.uid,
                    share_milli=use.share_milli,
                    memory_mib=use.memory_mib,
                    held=seat.held,
                )
            )
    return CardView(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        memory_mib=card.memory_mib,
        healthy=card.healthy,
        used_share_milli=used.share_milli,
        used_memory_mib=used.memory_mib,
        pods=sorted(pods, key=lambda pod: (pod["namespace"], pod["name"])),
    )
