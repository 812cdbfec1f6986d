"""Keeps a list of the API server up to date: reads it, then watches it, and starts again if the watch
breaks."""

from __future__ import annotations

import time
from urllib.parse import quote

from sidecar.node.kube.api import ApiUnreachable
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.kube.api import NodeApi

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LISTS = "List"
PAGE = 10  # objects: any user's pod may have a megabyte of metadata


def follow(
    api: NodeApi,
    path: str,
    accept: str,
    changed: Callable[[dict[str, Any]], None],
    failed: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Forever: call ``changed`` with all objects by UID whenever one changes, and ``failed`` with the reason
    of each failure, our own defects included. ``path`` has a query; ``accept`` has ``{}`` for the word
    "List"."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            _list_and_watch(api, path, accept, changed, pause)
            pause_s = FIRST_PAUSE_S
        except Exception as error:
            failed(str(error) if isinstance(error, ApiUnreachable) else f"{type(error).__name__}: {error}")
            pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _list_and_watch(
    api: NodeApi,
    path: str,
    accept: str,
    changed: Callable[[dict[str, Any]], None],
    pause: Callable[[float], None],
) -> None:
    """Read the list once, then watch it until the server requires a new list."""
    objects, version = _list(api, path, accept.format(LISTS))
    changed(dict(objects))
    while version:
        version = _watch(api, path, accept, version, objects, changed)
        pause(FIRST_PAUSE_S)  # the server may end each watch at once


def _list(api: NodeApi, path: str, accept: str) -> tuple[dict[str, Any], str]:
    """The objects by UID, read in pages of one resource version, and that version."""
    objects: dict[str, Any] = {}
    page = f"{path}&limit={PAGE}"
    more = ""
    while True:
        answer = api.call("GET", f"{page}&continue={quote(more, safe='')}" if more else page, accept=accept)
        if answer.status != 200:
            raise ApiUnreachable(f"{answer.status} {answer.message}".strip())
        metadata = answer.body["metadata"]
        objects |= {each["metadata"]["uid"]: each for each in answer.body.get("items") or ()}
        more = metadata.get("continue", "")
        if not more:
            return objects, metadata["resourceVersion"]


def _watch(
    api: NodeApi,
    path: str,
    accept: str,
    version: str,
    objects: dict[str, Any],
    changed: Callable[[dict[str, Any]], None],
) -> str:
    """Watch from ``version``. Returns the version to continue from, or empty if the list must be read
    again."""
    query = f"&watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={version}"
    for event in api.watch(path + query, accept.format("")):
        kind, item = event.get("type"), event.get("object") or {}
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return ""  # an ERROR, as a rule because the version is too old
        version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            continue
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            objects.pop(uid, None)
        else:
            objects[uid] = item
        changed(dict(objects))
    return version
