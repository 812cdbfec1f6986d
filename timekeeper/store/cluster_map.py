"""The live map of nodes, cards and waiting pods, as the extender posted it last. Nothing is charged by it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from sqlalchemy import bindparam, delete, func, select

from timekeeper.core.values import WHOLE_MILLI
from timekeeper.store import role_findings
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import MAP_NODES, MAP_WAITING
from timekeeper.store.stranded import LastPost, count, last_post, note
from timekeeper.wire.cluster_map import MapNode, MapPost

TURN = "cluster_map"  # of two posts at once the second waits
FORGOTTEN_MS = 900_000  # the extender posts each node again every few minutes
_EACH_QUERY = 500
_COLUMNS = ("models", "cards", "unhealthy", "is_closed", "used_milli", "memory_mib", "used_mib")


@dataclass(frozen=True, slots=True)
class NodeSums:
    """A node's sums over its cards, without them."""

    name: str
    models: str  # of its cards, with commas
    cards: int
    unhealthy: int
    is_closed: bool
    used_milli: int
    memory_mib: int
    used_mib: int
    received_ms: int


def record(connection: Connection, post: MapPost, received_ms: int) -> bool:
    """Replace these nodes and, unless None, what waits and what is found wrong; drop those that are gone or
    were not posted for long. First what the map showed until now is counted (`timekeeper.store.stranded`).
    False, and nothing is written, if the leader's term is over."""
    last = last_post(connection)
    if last is not None and last.is_over(post.term):
        return False
    if last is not None:
        count(connection, stranded(connection), last.received_ms, received_ms)
    note(connection, last.then(received_ms, post.term) if last else LastPost(received_ms, post.term))
    _replace(connection, post, received_ms)
    return True


def _replace(connection: Connection, post: MapPost, received_ms: int) -> None:
    rows = sorted((_row(node, received_ms) for node in post.nodes), key=lambda row: str(row["name"]))
    dropped = sorted({*post.gone, *(str(row["name"]) for row in rows)})
    if dropped:
        named = delete(MAP_NODES).where(MAP_NODES.c.name == bindparam("of"))
        connection.execute(named, [{"of": name} for name in dropped])
    if rows:
        connection.execute(MAP_NODES.insert(), rows)
    connection.execute(delete(MAP_NODES).where(MAP_NODES.c.received_ms < received_ms - FORGOTTEN_MS))
    if post.waiting is not None:
        connection.execute(delete(MAP_WAITING))
        pods, more = (msgspec.json.encode(part).decode() for part in (post.waiting.pods, post.waiting.more))
        row = {"id": 1, "total": post.waiting.total, "body": pods, "more": more, "received_ms": received_ms}
        connection.execute(MAP_WAITING.insert(), row)
    if post.findings is not None:
        role_findings.record(connection, "extender", post.findings, received_ms)


def sums(connection: Connection) -> list[NodeSums]:
    """Every node's sums, by name."""
    columns = [MAP_NODES.c[name] for name in ("name", *_COLUMNS, "received_ms")]
    return [NodeSums(*row) for row in connection.execute(select(*columns).order_by(MAP_NODES.c.name))]


def nodes(connection: Connection, names: Sequence[str]) -> dict[str, Any]:
    """Name -> the node as it was posted, of those that are known."""
    found: dict[str, Any] = {}
    for at in range(0, len(names), _EACH_QUERY):
        its = MAP_NODES.c
        rows = select(its.name, its.body).where(its.name.in_(names[at : at + _EACH_QUERY]))
        found |= {row.name: orjson.loads(row.body) for row in connection.execute(rows)}
    return found


def stranded(connection: Connection, node: str = "") -> Counter[str]:
    """Namespace -> thousandths of a card that it strands, on one node or on all."""
    its, found = MAP_NODES.c, Counter[str]()
    rows = select(its.stranded).where(its.stranded.is_not(None))
    for text in connection.scalars(rows.where(its.name == node) if node else rows):
        found.update(orjson.loads(text))
    return found


@dataclass(frozen=True, slots=True)
class WaitingOfMap:
    """What waits, as it was posted (`timekeeper.wire.cluster_map.MapWaiting`)."""

    total: int
    pods: list[Any]
    more: dict[str, int]
    received_ms: int

    def total_of(self, namespace: str) -> int | None:
        """How many pods of the namespace wait; None: its number was left out of the post."""
        listed = sum(each["namespace"] == namespace for each in self.pods)
        is_whole = len(self.pods) + sum(self.more.values()) == self.total
        return listed + self.more.get(namespace, 0) if is_whole or namespace in self.more else None


def waiting(connection: Connection) -> WaitingOfMap | None:
    """What waits; None before the first post."""
    row = connection.execute(select(MAP_WAITING)).first()
    if row is None:
        return None
    return WaitingOfMap(row.total, orjson.loads(row.body), orjson.loads(row.more), row.received_ms)


def posted_ms(connection: Connection) -> int | None:
    """When the extender last posted a node or what waits; None: never."""
    newest = [
        connection.execute(select(func.max(column))).scalar()
        for column in (MAP_NODES.c.received_ms, MAP_WAITING.c.received_ms)
    ]
    known = [each for each in newest if each is not None]
    return max(known) if known else None


def _row(node: MapNode, received_ms: int) -> dict[str, Any]:
    cards = node.cards
    return {
        "name": node.name,
        "models": ",".join(sorted({card.model for card in cards})),
        "cards": len(cards),
        "unhealthy": sum(not card.healthy for card in cards),
        "is_closed": bool(node.closed),
        "used_milli": sum(card.used_share_milli for card in cards) + WHOLE_MILLI * node.unnamed,
        "memory_mib": sum(card.memory_mib for card in cards),
        "used_mib": sum(card.used_memory_mib for card in cards),
        "stranded": msgspec.json.encode(node.stranded).decode() if node.stranded else None,
        "body": msgspec.json.encode(node).decode(),
        "received_ms": received_ms,
    }
