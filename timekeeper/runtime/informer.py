"""Follows one collection of the API server as values. The pure half is `timekeeper.core.kube.reflector`.

Each object becomes a value as its line or page arrives: the JSON of a hundred thousand objects at once would
take gigabytes.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import orjson

from timekeeper.core.json_values import Json
from timekeeper.core.kube.initial_events import KnownVersions, NotStreamedError
from timekeeper.core.kube.reflector import ObjectsListed, WatchEvent, reflect
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.api_server import ANSWER_S, WATCH_S, Api, Reply, is_served

V = TypeVar("V")

AGAIN_MS = 300_000  # between two looks for an API that is not served
_SOON_MS = 2_000  # after one that failed


def inform(
    api: Api,
    path: str,
    read: Callable[[Json], V | None],
    wait_ms: Callable[[int], None],
    watch_s: int = WATCH_S,
    clock: Callable[[], int] = now_ms,
    not_streamed: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, WatchEvent[V]]]:
    """The events of the collection at ``path``, in order, without end, each with the moment from which it is
    true: of a list when it was requested. ``read`` makes a value of an object,
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

    for event in reflect(list_all, lambda version: api.watch(path, version, watch_s), wait_ms, current):
        yield (requested_ms if isinstance(event, ObjectsListed) else clock()), event


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
