"""Posts the nodes that changed, and what waits, to the timekeeper, for its live map. Only the leader posts.

Each node is posted again every few minutes, so that a timekeeper with a new database knows all of them.
"""

import datetime
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from scheduler_ext.reports.closed_nodes import why_closed
from scheduler_ext.reports.cluster_page import CardView, cards_of
from scheduler_ext.reports.waiting_page import WaitingView
from scheduler_ext.scoring.stranding import largest, stranded_by
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.cluster_map import (
    MAX_CARDS,
    MAX_NAME,
    MAX_NODES,
    MAX_PODS,
    MAX_TEXT,
    MAX_WAITING,
    MapCard,
    MapNode,
    MapWaiting,
    MapWaitingPod,
    waiting_reason,
)
from timekeeper.core.texts import only_printable
from timekeeper.runtime.log import Log
from timekeeper.runtime.timekeeper_client import FAILURES, PostRefusedError, TimekeeperClient

PATH = "/v1/cluster"
INTERVAL_S = 2.0
WHOLE_MS = 300_000
ALIVE_MS = 30_000  # what waits is posted so often although nothing changes, so that the map is not called old
AFTER_FAILURE_MS = 30_000
MAX_BYTES = 200_000  # of nodes in one post; the timekeeper takes 256 KiB
MAX_COUNTS_BYTES = 40_000
_MAX_AMOUNT = 2**31
_MAX_AGE_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class MapSources:
    """What is posted. ``waiting``: the unbound pods; ``term``: the name of this replica's term, "" while it
    does not lead and so does not post; ``now_ms``: wall clock, ``monotonic_ms``: for intervals."""

    nodes: Callable[[], Map[NodeInfo]]
    waiting: Callable[[], Iterable[WaitingView]]
    term: Callable[[], str]
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]


class ClusterPosts:
    """`run` posts, in one thread."""

    def __init__(self, client: TimekeeperClient, sources: MapSources, log: Log) -> None:
        self._client, self._sources, self._log = client, sources, log
        self._sent: Map[NodeInfo] = Map()
        self._term = ""  # of the last step
        self._whole_ms: int | None = None  # when posting all nodes began last
        self._waiting: MapWaiting | None = None
        self._waiting_ms = 0  # when it was posted last
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
            self._term, self._sent, self._whole_ms = term, Map(), None
        if not term:
            return
        at_ms = self._sources.monotonic_ms()
        if at_ms < self._not_before_ms:
            return
        nodes, sent = self._sources.nodes(), self._sent
        if self._whole_ms is None or at_ms - self._whole_ms >= WHOLE_MS:
            sent, self._whole_ms, self._waiting = Map(), at_ms, None
        waiting = waiting_of(self._sources.waiting(), self._sources.now_ms())
        is_same = _without_ages(waiting) == _without_ages(self._waiting)
        is_known = is_same and at_ms - self._waiting_ms < ALIVE_MS
        try:
            for body in bodies(nodes, sent, None if is_known else waiting, term):
                self._post(body)
        except FAILURES as error:
            self._failed(at_ms, error)
            return
        if self._is_failing:
            self._log("cluster-sent")
        self._is_failing, self._sent, self._waiting = False, nodes, waiting
        self._waiting_ms = self._waiting_ms if is_known else at_ms

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


def bodies(
    nodes: Map[NodeInfo], sent: Map[NodeInfo], waiting: MapWaiting | None, term: str
) -> Iterator[bytes]:
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


def waiting_of(pods: Iterable[WaitingView], now_ms: int) -> MapWaiting:
    """Of each namespace those that wait longest, and how many there are."""
    oldest = sorted(pods, key=lambda each: (each["created"], each["namespace"], each["name"]))
    before = Counter[str]()  # of its namespace
    places: list[int] = []
    for each in oldest:
        places.append(before[each["namespace"]])
        before[each["namespace"]] += 1
    in_turns = sorted(range(len(oldest)), key=places.__getitem__)[:MAX_WAITING]
    first = _fitting([_waiting(oldest[at], now_ms) for at in in_turns])
    more = before - Counter(each["namespace"] for each in first)
    return {"total": len(oldest), "pods": sorted(first, key=_age, reverse=True), "more": _largest(more)}


def _age(pod: MapWaitingPod) -> int:
    return pod["age_ms"]


def _largest(counts: Counter[str]) -> dict[str, int]:
    """The largest counts that fit into a post beside the pods."""
    listed = counts.most_common()
    sizes = accumulate(len(name) + len(str(count)) + 4 for name, count in listed)
    fitting = sum(size <= MAX_COUNTS_BYTES for size in sizes)
    return dict(listed[:fitting])


def _row(node: NodeInfo) -> bytes:
    """The node; one that would not fit into a post has its pods counted only."""
    made = _node(node)
    row = orjson.dumps(made)
    if len(row) <= MAX_BYTES:
        return row
    for card in made["cards"]:
        card["more_pods"], card["pods"] = card["more_pods"] + len(card["pods"]), []
    return orjson.dumps(made)


def _fitting(pods: list[MapWaitingPod]) -> list[MapWaitingPod]:
    """The first of them that fit into a post."""
    sizes = accumulate(len(orjson.dumps(each)) + 1 for each in pods)
    return [pod for pod, size in zip(pods, sizes, strict=True) if size <= MAX_BYTES]


def _body(rows: list[bytes], gone: list[str], waiting: MapWaiting | None, term: str) -> bytes:
    nodes = [orjson.Fragment(each) for each in rows]
    return orjson.dumps({"version": 1, "nodes": nodes, "gone": gone, "waiting": waiting, "term": term})


def _node(node: NodeInfo) -> MapNode:
    cards = [_card(each) for each in cards_of(node)[:MAX_CARDS]]
    stranded = {name: _amount(milli) for name, milli in largest(stranded_by(node)).items()}
    closed = _text(why_closed(node), MAX_TEXT)
    view: MapNode = {"name": node.name, "closed": closed, "cards": cards, "stranded": stranded}
    if node.unnamed:
        view["unnamed"] = _amount(node.unnamed)
    if node.undescribed:
        view["undescribed"] = _text(node.undescribed, MAX_TEXT)
    return view


def _card(card: CardView) -> MapCard:
    return {
        "uuid": _text(card["uuid"], MAX_NAME),
        "index": card["index"],
        "model": _text(card["model"], MAX_NAME),
        "memory_mib": _amount(card["memory_mib"]),
        "healthy": card["healthy"],
        "cordoned": card["cordoned"],
        "used_share_milli": _amount(card["used_share_milli"]),
        "used_memory_mib": _amount(card["used_memory_mib"]),
        "pods": [
            {
                "namespace": pod["namespace"],
                "name": pod["name"],
                "uid": _text(pod["uid"], MAX_NAME),
                "share_milli": _amount(pod["share_milli"]),
                "memory_mib": _amount(pod["memory_mib"]),
                "held": pod["held"],
            }
            for pod in card["pods"][:MAX_PODS]
        ],
        "more_pods": max(0, len(card["pods"]) - MAX_PODS),
    }


def _waiting(pod: WaitingView, now_ms: int) -> MapWaitingPod:
    created_ms = int(1000 * datetime.datetime.fromisoformat(pod["created"]).timestamp())
    return {
        "namespace": pod["namespace"],
        "name": pod["name"],
        "uid": pod["uid"],
        "state": pod["state"],
        "standing": pod["standing"],
        "priority": pod["priority"],
        "age_ms": min(max(0, now_ms - created_ms), _MAX_AGE_MS),
        "reason": _text(waiting_reason(pod), MAX_TEXT),
    }


def _without_ages(waiting: MapWaiting | None) -> Any:
    if waiting is None:
        return None
    pods = [{name: value for name, value in each.items() if name != "age_ms"} for each in waiting["pods"]]
    return waiting["total"], pods, waiting.get("more")


def _amount(figure: int) -> int:
    return min(max(0, figure), _MAX_AMOUNT)


def _text(text: str, most: int) -> str:
    """As the timekeeper takes it: short and printable."""
    return only_printable(text[:most])
