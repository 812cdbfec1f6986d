"""Follows one collection of the API server as values. The pure half is `timekeeper.core.kube.reflector`.

Each object becomes a value as its line or page arrives: the JSON of a hundred thousand objects at once would
take gigabytes.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

import orjson

from timekeeper.core.json_values import Json
from timekeeper.core.kube.initial_events import KnownVersions, NotStreamedError
from timekeeper.core.kube.reflector import (
    ObjectChanged,
    ObjectsListed,
    WatchFailed,
    WatchOpened,
    reflect,
)
from timekeeper.runtime.api_server import ANSWER_S, WATCH_S, Api, Reply, is_served
from timekeeper.runtime.clock import now_ms

V = TypeVar("V")

AGAIN_MS = 300_000  # between two looks for an API that is not served
_SOON_MS = 2_000  # after one that failed


@dataclass(frozen=True, slots=True)
class ValuesListed(Generic[V]):
    """All values of the collection at ``at_ms``, when the list was requested. A value that is not among them
    is gone."""

    at_ms: int
    values: tuple[V, ...]


@dataclass(frozen=True, slots=True)
class ValueChanged(Generic[V]):
    """One value is new, changed, or ``deleted``."""

    at_ms: int
    value: V
    deleted: bool


@dataclass(frozen=True, slots=True)
class NothingChanged:
    """All changes up to ``at_ms`` have been seen, and none of them concerned a value."""

    at_ms: int


InformerEvent = ValuesListed[V] | ValueChanged[V] | NothingChanged | WatchFailed | WatchOpened


def inform(
    api: Api,
    path: str,
    read: Callable[[Json], V | None],
    wait_ms: Callable[[int], None],
    watch_s: int = WATCH_S,
    clock: Callable[[], int] = now_ms,
    not_streamed: Callable[[str], None] | None = None,
) -> Iterator[InformerEvent[V]]:
    """The events of the collection at ``path``, in order, without end. ``read`` makes a value of an object,
    None where the object does not matter. ``watch_s``: how long one watch lasts. ``not_streamed``: with it,
    lists are streamed, and objects of a known version are not read again. It is called once with the reason
    if the API server refuses; then lists come in pages."""
    requested_ms, streams = 0, not_streamed is not None
    known = KnownVersions(read, orjson.loads)

    def list_all() -> tuple[tuple[V, ...], str]:
        nonlocal requested_ms, streams
        requested_ms = clock()
        if streams and not_streamed is not None:
            try:
                with closing(api.initial_events(path, watch_s)) as lines:
                    return known.listed(lines)
            except NotStreamedError as error:
                streams = False
                known.by_uid.clear()
                not_streamed(str(error))
        values: list[V] = []
        version = ""
        for page, version in api.pages(path):  # noqa: B007 the last page's version is used
            values += [value for value in map(read, page) if value is not None]
        return tuple(values), version

    def current(item: Json, deleted: bool) -> V | None:
        return known.changed(item, deleted) if streams else read(item)

    for event in reflect(list_all, lambda version: api.watch(path, version, watch_s), wait_ms):
        match event:
            case ObjectsListed(items):
                yield ValuesListed(requested_ms, items)
            case ObjectChanged(item, deleted) if (value := current(item, deleted)) is not None:
                yield ValueChanged(clock(), value, deleted)
            case WatchFailed() | WatchOpened():
                yield event
            case _:
                yield NothingChanged(clock())


def await_served(
    call: Callable[..., Reply],
    path: str,
    wait_ms: Callable[[int], None],
    failed: Callable[[str], None] = lambda _sentence: None,
    absent: Callable[[], None] = lambda: None,
    again_ms: int = AGAIN_MS,
) -> None:
    """Returns once the API server serves the API at ``path``. ``failed`` is called with a sentence for each
    answer that does not say whether it does; ``absent`` for each that says that it does not."""
    while True:
        reply = call("GET", path, timeout_s=ANSWER_S)
        served = is_served(reply)
        if served:
            return
        if served is None:
            failed(reply.message)
        else:
            absent()
        wait_ms(_SOON_MS if served is None else again_ms)
