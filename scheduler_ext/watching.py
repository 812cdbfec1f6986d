"""Follows the API server's pods and nodes into the books, each in a thread of its own."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from scheduler_ext.api import Api
from scheduler_ext.books import Books
from scheduler_ext.facts import Facts, read_node
from scheduler_ext.log import Log
from scheduler_ext.pods import Pod, read_pod
from timekeeper.core.reflect import Changed, Failed, Json, Listed, reflect

V = TypeVar("V")

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
_SLIM = "slim"


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """What is followed: where, how it is read (None: of no interest), and what is told to whom."""

    path: str
    read: Callable[[Json], V | None]
    listed: Callable[[list[V]], None]
    seen: Callable[[V], None]
    gone: Callable[[V], None]


def kinds(books: Books, most_grace_ms: int) -> tuple[Kind[Pod], Kind[Facts]]:
    """Pods and nodes."""
    pods: Kind[Pod] = Kind(
        PODS, lambda raw: read_pod(raw, most_grace_ms), books.pods_listed, books.pod_seen, books.pod_gone
    )
    nodes: Kind[Facts] = Kind(
        NODES, read_node, books.nodes_listed, books.node_seen, lambda facts: books.node_gone(facts.name)
    )
    return pods, nodes


def follow(api: Api, kind: Kind[V], heard: Callable[[], None], log: Log, stop: threading.Event) -> None:
    """Follows one kind until ``stop``; ``heard`` is called at each sign of life of the API server."""

    def list_all() -> tuple[tuple[Json, ...], str]:
        # Each page is slimmed as it comes: tens of thousands of whole pods at once would be gigabytes.
        slim: list[Json] = []
        version = ""
        for items, at_version in api.pages(kind.path):
            version = at_version
            slim += [{_SLIM: value} for value in map(kind.read, items) if value is not None]
        return tuple(slim), version

    def watch(version: str) -> Iterator[Json]:
        return api.watch(kind.path, version)

    for event in reflect(list_all, watch, lambda ms: _wait(stop, ms)):
        if stop.is_set():
            return
        if isinstance(event, Failed):
            log("unheard", path=kind.path, error=event.sentence)
            continue
        heard()
        if isinstance(event, Listed):
            kind.listed([each[_SLIM] for each in event.items])
            log("listed", path=kind.path, kept=len(event.items))
        elif isinstance(event, Changed):
            value = kind.read(event.item)
            if value is not None:
                (kind.gone if event.deleted else kind.seen)(value)


def _wait(stop: threading.Event, ms: int) -> None:
    stop.wait(ms / 1000)
