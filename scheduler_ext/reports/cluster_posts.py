"""Posts the nodes that changed, and what waits, to the timekeeper, for its live map. Only the leader posts.

Each node is posted again every few minutes, so that a timekeeper with a new database knows all of them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from scheduler_ext.log import Log
from scheduler_ext.reports.closed_nodes import why_closed
from scheduler_ext.reports.waiting_pods import MAX_BYTES
from scheduler_ext.snapshot.allocation import Allocation, uses_of
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, unreserved
from timekeeper.core.cluster_map import (
    MAX_CARDS,
    MAX_NAME,
    MAX_NODES,
    MAX_PODS,
    MAX_TEXT,
    posted_text,
)
from timekeeper.core.findings import RoleFinding, counted, published
from timekeeper.core.rating.parts import share_of
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.values import WHOLE_MILLI, Card
from timekeeper.edge.timekeeper_client import FAILURES, PostRefusedError, TimekeeperClient

Json = dict[str, Any]

PATH = "/v1/cluster"
INTERVAL_S = 2.0
WHOLE_MS = 300_000
ALIVE_MS = 30_000  # what waits is posted so often although nothing changes, so that the map is not called old
AFTER_FAILURE_MS = 30_000
_MAX_AMOUNT = 2**31


@dataclass(frozen=True, slots=True)
class MapSources:
    """What is posted. ``waiting``: the unbound pods; ``term``: the name of this replica's term, "" while it
    does not lead and so does not post."""

    nodes: Callable[[], Map[NodeInfo]]
    waiting: Callable[[], Json]
    findings: Callable[[], Iterable[RoleFinding]]
    term: Callable[[], str]
    monotonic_ms: Callable[[], int]


class ClusterPosts:
    """`run` posts, in one thread."""

    def __init__(self, client: TimekeeperClient, sources: MapSources, log: Log) -> None:
        self._client, self._sources, self._log = client, sources, log
        self._sent: Map[NodeInfo] = Map()
        self._term = ""  # of the last step
        self._whole_ms: int | None = None  # when posting all nodes began last
        self._waiting: Json | None = None
        self._waiting_ms = 0  # when it was posted last
        self._found_ms: int | None = None  # when findings were
        self.wrong: Mapping[str, int] = {}  # by code, of the last findings; none where this replica follows
        self._is_failing = False
        self._not_before_ms = 0

    def run(self, stop: threading.Event) -> None:
        """Post what changed, until ``stop``."""
        while not stop.wait(INTERVAL_S):
            self.step()
        self._client.close()

    def step(self) -> None:
        """Post what changed since the last step. After a failure all of it is posted by the next step, and in
        a new term by the first."""
        term = self._sources.term()
        if term != self._term:
            self._term, self._sent, self._whole_ms, self._found_ms = term, Map(), None, None
            self.wrong = {}
        if not term:
            return
        at_ms = self._sources.monotonic_ms()
        if at_ms < self._not_before_ms:
            return
        nodes, sent = self._sources.nodes(), self._sent
        if self._whole_ms is None or at_ms - self._whole_ms >= WHOLE_MS:
            sent, self._whole_ms, self._waiting = Map(), at_ms, None
        waiting = self._sources.waiting()
        is_same = _without_ages(waiting) == _without_ages(self._waiting)
        is_known = is_same and at_ms - self._waiting_ms < ALIVE_MS
        is_due = self._found_ms is None or at_ms - self._found_ms >= ALIVE_MS
        try:
            for body in bodies(nodes, sent, None if is_known else waiting, term):
                self._post(body)
            if is_due:
                found = published(self._sources.findings())
                self.wrong = counted(found)
                self._post(_body([], [], None, term, found))
        except FAILURES as error:
            self._failed(at_ms, error)
            return
        if self._is_failing:
            self._log("cluster-sent")
        self._is_failing, self._sent, self._waiting = False, nodes, waiting
        self._waiting_ms = self._waiting_ms if is_known else at_ms
        self._found_ms = at_ms if is_due else self._found_ms

    def _post(self, body: bytes) -> None:
        try:
            self._client.post(body)
        except PostRefusedError as error:  # the same would be refused again, and the others must not wait
            self._log("cluster-refused", level="error", error=str(error))

    def _failed(self, at_ms: int, error: BaseException) -> None:
        self._whole_ms = None  # some may have arrived, so all are posted again
        self._not_before_ms = at_ms + AFTER_FAILURE_MS
        if not self._is_failing:
            self._log("cluster-failed", level="warning", error=f"{type(error).__name__}: {error}")
        self._is_failing = True


def bodies(nodes: Map[NodeInfo], sent: Map[NodeInfo], waiting: Json | None, term: str) -> Iterator[bytes]:
    """The posts that turn what was sent into what is, each small enough. ``waiting`` None: unchanged."""
    gone: list[str] = []
    rows: list[bytes] = []
    size = 0
    for name in sorted(nodes.changed_since(sent)):
        node = nodes.get(name)
        if node is None or not node.is_on_map:
            gone.append(name)
        else:
            row = _row(node)
            if size + len(row) > MAX_BYTES or len(rows) >= MAX_NODES:
                yield _body(rows, [], None, term)
                rows, size = [], 0
            rows.append(row)
            size += len(row)
        if len(gone) >= MAX_NODES:
            yield _body([], gone, None, term)
            gone = []
    if rows or gone:
        yield _body(rows, gone, None, term)
    if waiting is not None:
        yield _body([], [], waiting, term)


def _row(node: NodeInfo) -> bytes:
    """The node; one that would not fit into a post has its pods counted only."""
    made = _node(node)
    row = orjson.dumps(made)
    if len(row) <= MAX_BYTES:
        return row
    for card in made["cards"]:
        card["more_pods"], card["pods"] = card["more_pods"] + len(card["pods"]), []
    return orjson.dumps(made)


def _body(
    rows: list[bytes],
    gone: list[str],
    waiting: Json | None,
    term: str,
    found: Mapping[str, Any] | None = None,
) -> bytes:
    nodes = [orjson.Fragment(each) for each in rows]
    changes = {"version": 1, "nodes": nodes, "gone": gone, "waiting": waiting}
    return orjson.dumps({**changes, "findings": found, "term": term})


def _node(node: NodeInfo) -> Json:
    closed = posted_text(why_closed(node), MAX_TEXT)
    view: Json = {"name": node.name, "closed": closed, "cards": _cards(node)}
    unused = [card for card in view["cards"] if card["healthy"] and not card["used_share_milli"]]
    unnamed = node.unnamed
    if unnamed and unnamed >= len(unused):  # all of these are held
        for card in unused:
            card |= {"used_share_milli": WHOLE_MILLI, "used_memory_mib": card["memory_mib"]}
        unnamed -= len(unused)
    if unnamed:
        view["unnamed"] = _amount(unnamed)
    if node.undescribed:
        view["undescribed"] = posted_text(node.undescribed, MAX_TEXT)
    return view


def _cards(node: NodeInfo) -> list[Json]:
    """The node's cards with the pods on them. Reservations do not count as used."""
    uses, cards = uses_of(unreserved(node).allocations), {card.uuid: card for card in node.cards}
    on_card: dict[str, list[Json]] = {}
    for allocation in node.allocations.values():
        for uuid, use in allocation.uses:
            on_card.setdefault(uuid, []).append(_pod(allocation, use, cards[uuid]))
    return [
        _card(card, uses.get(card.uuid, NO_AMOUNT), on_card.get(card.uuid, []))
        for card in node.cards[:MAX_CARDS]
    ]


def _card(card: Card, used: CardAmount, pods: list[Json]) -> Json:
    by_name = sorted(pods, key=lambda pod: (pod["namespace"], pod["name"]))
    return {
        "uuid": posted_text(card.uuid, MAX_NAME),
        "index": card.index,
        "model": posted_text(card.model, MAX_NAME),
        "memory_mib": _amount(card.memory_mib),
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "used_share_milli": _share(used, card),
        "used_memory_mib": _amount(used.memory_mib),
        "pods": by_name[:MAX_PODS],
        "more_pods": max(0, len(pods) - MAX_PODS),
    }


def _pod(allocation: Allocation, use: CardAmount, card: Card) -> Json:
    namespace, _, name = allocation.full_name.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "uid": posted_text(allocation.uid, MAX_NAME),
        "share_milli": _share(use, card),
        "memory_mib": _amount(use.memory_mib),
        "held": allocation.state,
    }


def _share(amount: CardAmount, card: Card) -> int:
    """In thousandths of the card; of named resources the largest part."""
    return _amount(share_of(amount, card) if amount.resources else amount.share_milli)


def _without_ages(waiting: Json | None) -> Any:
    if waiting is None:
        return None
    pods = [{name: value for name, value in each.items() if name != "age_ms"} for each in waiting["pods"]]
    return waiting["total"], pods, waiting["more"]


def _amount(figure: int) -> int:
    return min(max(0, figure), _MAX_AMOUNT)
