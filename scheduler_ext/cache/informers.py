"""The kinds of objects that the extender follows, how each is read, and how lists and events of a watch come
into the snapshot."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.log import Log
from scheduler_ext.model.labels import Packed, labels_of
from scheduler_ext.model.leader_mark import LeaderMark, read_leader_mark
from scheduler_ext.model.node import ModelNames, Node, read_node
from scheduler_ext.model.pod import NonGPUPod, Pod, read_any
from scheduler_ext.snapshot.immutable_map import Map
from timekeeper.core.json_values import Json, mapping
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchEvent, WatchFailed
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime.api_server import Api

V = TypeVar("V")

PODS, NODES, NAMESPACES = "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces"


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """A kind of object to watch: its path, its reader (None: irrelevant), and the callbacks."""

    path: str
    read: Callable[[Json], V | None]
    listed: Callable[[list[V]], None]
    seen: Callable[[V], None]
    gone: Callable[[V], None]


class Hearing(Protocol):
    """Receives the replicas' leader marks, in the order in which the watch of the pods shows them."""

    def heard(self, mark: LeaderMark) -> None:
        """The watch shows this mark; all earlier events are in the cache."""

    def listing(self, marks: Iterable[LeaderMark], book: Callable[[], None]) -> None:
        """A list shows these marks; ``book`` puts it into the books."""


def kinds(
    cache: ClusterCache,
    most_grace_ms: int,
    hearing: Hearing,
    namespace: str,
    lockable: Collection[str] = (),
    model_names: ModelNames = (),
) -> tuple[Kind[Pod | NonGPUPod | LeaderMark], Kind[Node]]:
    """Pods and nodes. ``namespace``: where the pods of the replicas are. ``lockable`` and ``model_names``: as
    `read_node`."""

    def read(raw: Json) -> Pod | NonGPUPod | LeaderMark:
        value = read_any(raw, most_grace_ms)
        return (isinstance(value, NonGPUPod) and read_leader_mark(raw, namespace, value)) or value

    def listed(values: list[Pod | NonGPUPod | LeaderMark]) -> None:
        marks = [each for each in values if isinstance(each, LeaderMark)]
        hearing.listing(marks, lambda: cache.pods_listed(map(_pod, values)))

    def seen(value: Pod | NonGPUPod | LeaderMark) -> None:
        cache.pod_updated(_pod(value))
        if isinstance(value, LeaderMark):
            hearing.heard(value)

    pods: Kind[Pod | NonGPUPod | LeaderMark] = Kind(
        PODS, read, listed, seen, lambda value: cache.pod_deleted(_pod(value))
    )
    nodes: Kind[Node] = Kind(
        NODES,
        lambda raw: read_node(raw, lockable, model_names),
        cache.nodes_listed,
        cache.node_updated,
        lambda node_object: cache.node_deleted(node_object.name),
    )
    return pods, nodes


def namespaces(cache: ClusterCache) -> Kind[tuple[str, Packed]]:
    """Namespaces, for the selectors of pods that select them: their names and labels."""
    return Kind(
        NAMESPACES,
        lambda raw: (str(mapping(raw.get("metadata")).get("name", "")), labels_of(raw)),
        lambda listed: cache.namespaces_changed(lambda _: Map(dict(listed))),
        lambda seen: cache.namespaces_changed(lambda known: known.set(*seen)),
        lambda gone: cache.namespaces_changed(lambda known: known.without(gone[0])),
    )


def _pod(value: Pod | NonGPUPod | LeaderMark) -> Pod | NonGPUPod:
    return value.pod if isinstance(value, LeaderMark) else value


def follow(
    api: Api,
    kind: Kind[V],
    api_server_seen: Callable[[], None],
    log: Log,
    wait_ms: Callable[[int], object],
    health: SourceHealth,
) -> Iterator[None]:
    """Follows one kind until ``wait_ms`` is true: each step puts one event into the cache.
    ``api_server_seen`` is called at each sign of life of the API server."""

    for event in inform(api, kind.path, kind.read, wait_ms, health):
        apply(kind, event, api_server_seen, log)
        yield


def apply(
    kind: Kind[V],
    event: WatchEvent[V],
    api_server_seen: Callable[[], None],
    log: Log,
) -> None:
    """Puts one event into the cache."""
    if isinstance(event, WatchFailed):
        log("unheard", level="warning", path=kind.path, error=event.sentence)
        return
    api_server_seen()
    if isinstance(event, ObjectsListed):
        kind.listed(list(event.items))
        log("listed", path=kind.path, kept=len(event.items))
    elif isinstance(event, ObjectChanged):
        (kind.gone if event.deleted else kind.seen)(event.item)
