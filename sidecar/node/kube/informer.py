"""The whole of a list at each of its changes, as the main loop takes it."""

from __future__ import annotations

import time

from sidecar.node.kube.api import NodeLists
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchFailed, WatchProgress
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sidecar.node.kube.api import NodeApi
    from timekeeper.edge.source_health import SourceHealth

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SLOWER = 3  # than other roles between two calls, for each node has an agent
PAGE = 10  # objects: any user's pod may have a megabyte of metadata


def follow(
    api: NodeApi,
    path: str,
    accept: str,
    changed: Callable[[dict[str, Any]], None],
    failed: Callable[[str], None],
    health: SourceHealth,
    check: Callable[[dict[str, Any]], object],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Forever: call ``changed`` with all objects by UID whenever one changes, and when the API server sends
    changes again after a failure; call ``failed`` with the reason of each failure, our own defects included.
    ``path`` has a query; ``accept`` has ``{}`` for the word "List". An object that ``check`` raises for is
    skipped."""

    def wait_ms(ms: int) -> None:
        pause(max(FIRST_PAUSE_S, SLOWER * ms / 1000))

    def read(raw: Mapping[str, Any]) -> dict[str, Any]:
        item = dict(raw)
        check(item)
        return item

    pause_s = FIRST_PAUSE_S
    while True:
        objects: dict[str, Any] = {}
        try:
            for event in inform(NodeLists(api, accept), path, read, wait_ms, health, limit=PAGE):
                if isinstance(event, WatchFailed):
                    failed(event.sentence)
                    continue
                if isinstance(event, WatchProgress):
                    continue
                if isinstance(event, ObjectsListed):
                    objects = {item["metadata"]["uid"]: item for item in event.items}
                elif isinstance(event, ObjectChanged):
                    objects.pop(event.item["metadata"]["uid"], None)
                    if not event.deleted:
                        objects[event.item["metadata"]["uid"]] = event.item
                changed(dict(objects))
                pause_s = FIRST_PAUSE_S
        except Exception as error:  # of an object that has no UID, or of the listener: the list is read anew
            failed(f"{type(error).__name__}: {error}")
            pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
