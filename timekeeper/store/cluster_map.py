"""The live map of nodes, cards and waiting pods, as the extender posted it last; and cards that are held,
free and waited for, by model and UTC hour, as the settler counted them. Nothing is charged by either.

A leader names its term in its posts. Once another term has posted, an earlier one's posts are refused: what
an old leader sends late does not change the map.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import orjson
from sqlalchemy import Executable, Row, bindparam, delete, func, select, text

from timekeeper.core.cluster_map import STALE_MS
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.store import role_findings
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import CARD_HOURS, HOUR_MS, MAP_NODES, MAP_POSTS, MAP_WAITING
from timekeeper.wire.cluster_map import MapNode, MapPost

TURN = "cluster_map"  # of two posts at once the second waits
FORGOTTEN_MS = 900_000  # the extender posts each node again every few minutes
_MOST_TERMS = 50  # earlier ones that are remembered
_EACH_QUERY = 500
_COLUMNS = ("cards", "used_milli")


@dataclass(frozen=True, slots=True)
class NodeSums:
    """A node's sums over its cards, without them."""

    name: str
    cards: int
    used_milli: int
    received_ms: int


def record(connection: Connection, post: MapPost, received_ms: int) -> bool:
    """Replace these nodes and, unless None, what waits and what is found wrong; drop those that are gone or
    were not posted for long. False, and nothing is written, if the leader's term is over."""
    last = connection.execute(select(MAP_POSTS)).first()
    earlier = [] if last is None else orjson.loads(last.earlier)
    if post.term in earlier:
        return False
    if last is not None and last.term != post.term:
        earlier = [*earlier, last.term][-_MOST_TERMS:]
    connection.execute(delete(MAP_POSTS))
    terms = {"term": post.term, "earlier": orjson.dumps(earlier).decode()}
    connection.execute(MAP_POSTS.insert(), {"id": 1, "received_ms": received_ms, **terms})
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
    return True


def sums(connection: Connection) -> list[NodeSums]:
    """Every node's sums, by name."""
    columns = [MAP_NODES.c[name] for name in ("name", *_COLUMNS, "received_ms")]
    return [NodeSums(*row) for row in connection.execute(select(*columns).order_by(MAP_NODES.c.name))]


def closed(connection: Connection) -> set[str]:
    """The nodes to which the extender gives no pods."""
    return set(connection.scalars(select(MAP_NODES.c.name).where(MAP_NODES.c.is_closed)))


def kept_empty(connection: Connection) -> dict[str, frozenset[str]]:
    """Node -> the UUIDs of its cards that the extender keeps empty for a gang."""
    its = MAP_NODES.c
    found = connection.execute(select(its.name, its.body).where(its.body.like('%"held":"drained"%')))
    return {
        row.name: frozenset(
            card["uuid"]
            for card in orjson.loads(row.body)["cards"]
            if any(pod["held"] == "drained" for pod in card["pods"])
        )
        for row in found
    }


def nodes(connection: Connection, names: Sequence[str]) -> dict[str, Any]:
    """Name -> the node as it was posted, of those that are known; of a post that another release took the
    fields of this one alone."""
    found: dict[str, Any] = {}
    for at in range(0, len(names), _EACH_QUERY):
        columns = MAP_NODES.c
        rows = select(columns.name, columns.body).where(columns.name.in_(names[at : at + _EACH_QUERY]))
        for row in connection.execute(rows):
            body = orjson.loads(row.body)
            found[row.name] = {key: body[key] for key in MapNode.__struct_fields__ if key in body}
    return found


@dataclass(frozen=True, slots=True)
class WaitingOfMap:
    """What waits, as it was posted (`timekeeper.wire.cluster_map.MapWaiting`)."""

    total: int
    pods: list[Any]
    more: dict[str, int]
    received_ms: int

    def total_of(self, namespace: str, is_its: Callable[[str], bool]) -> int | None:
        """How many pods of the namespace, or of a group's, wait; None: their number was left out of the
        post."""
        listed = sum(is_its(pod["namespace"]) for pod in self.pods)
        unlisted = sum(pods for name, pods in self.more.items() if is_its(name))
        is_whole = len(self.pods) + sum(self.more.values()) == self.total
        return listed + unlisted if is_whole or namespace in self.more else None


def waiting(connection: Connection) -> WaitingOfMap | None:
    """What waits; None before the first post."""
    row = connection.execute(select(MAP_WAITING)).first()
    if row is None:
        return None
    return WaitingOfMap(row.total, orjson.loads(row.body), orjson.loads(row.more), row.received_ms)


def when(connection: Connection, uid: str, now_ms: int) -> str:
    """When a listed pod may start, by a post that is not old; "": nothing is known of it."""
    posted = waiting(connection)
    if posted is None or now_ms - posted.received_ms > STALE_MS:
        return ""
    return next((str(pod.get("when", "")) for pod in posted.pods if pod["uid"] == uid), "")


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
        "body": msgspec.json.encode(node).decode(),
        "received_ms": received_ms,
    }


EVERY_MS = 30_000  # how often they are counted
_LONGEST_MS = 2 * EVERY_MS  # for which one count stands


class CardCount(NamedTuple):
    """Thousandths of whole cards of one model."""

    held: int
    free: int
    waiting: int


# The same SQL on both databases. A clock that is set back adds to no hour more than the hour.
_ADD = text(
    "INSERT INTO card_hours (hour_ms, model, known_ms, held, free, waiting)"
    " VALUES (:hour_ms, :model, :known_ms, :held, :free, :waiting)"
    " ON CONFLICT (hour_ms, model) DO UPDATE SET"
    " known_ms = card_hours.known_ms + excluded.known_ms, held = card_hours.held + excluded.held,"
    " free = card_hours.free + excluded.free, waiting = card_hours.waiting + excluded.waiting"
    " WHERE card_hours.known_ms + excluded.known_ms <= 3600000"
)


def added_hours(
    since_ms: int, counts: Mapping[str, CardCount], now_ms: int
) -> Iterator[tuple[Executable, list[dict[str, Any]]]]:
    """What adds these counts, by model, for the time since they were made. None was made for a longer time:
    nothing is known of it."""
    first_ms = since_ms if now_ms - since_ms <= _LONGEST_MS and counts else now_ms
    for hour_ms in range(first_ms // HOUR_MS * HOUR_MS, now_ms, HOUR_MS):
        known_ms = min(now_ms, hour_ms + HOUR_MS) - max(first_ms, hour_ms)
        rows = [
            {"hour_ms": hour_ms, "model": model, "known_ms": known_ms}
            | {name: milli * known_ms for name, milli in count._asdict().items()}
            for model, count in sorted(counts.items())
        ]
        if known_ms > 0:
            yield _ADD, rows


def card_hours(connection: Connection, span: Interval) -> list[Row[Any]]:
    """The rows of the hours that begin within the span, in their order, by model."""
    its = CARD_HOURS.c
    rows = select(CARD_HOURS).where(its.hour_ms >= span.start_ms, its.hour_ms < span.end_ms)
    return list(connection.execute(rows.order_by(its.hour_ms, its.model)))
