"""Follows a list of the API server: read whole, then by a watch; begun anew where that breaks."""

from __future__ import annotations

import time
from urllib.parse import quote

from sidecar.node.kube.api import ApiUnreachable
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.kube.api import NodeApi

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LISTS = "List"
PAGE = 10  # objects: somebody else's pod may have a megabyte of metadata


def follow(
    api: NodeApi,
    path: str,
    accept: str,
    heard: Callable[[dict[str, Any]], None],
    failed: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """For ever: give ``heard`` all objects by UID each time that one of them changes. ``path`` has a query
    already; ``accept`` a ``{}`` in the place of "List". ``failed`` is told each failure, also of ours:
    whatever comes must not end this for good."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            _log_once(api, path, accept, heard, pause)
            pause_s = FIRST_PAUSE_S
        except Exception as error:
            failed(str(error) if isinstance(error, ApiUnreachable) else f"{type(error).__name__}: {error}")
            pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _log_once(
    api: NodeApi,
    path: str,
    accept: str,
    heard: Callable[[dict[str, Any]], None],
    pause: Callable[[float], None],
) -> None:
    """One reading of the list, and watches from there until one is told to begin anew."""
    objects, version = _listed(api, path, accept.format(LISTS))
    heard(dict(objects))
    while version:
        version = _watched(api, path, accept, version, objects, heard)
        pause(FIRST_PAUSE_S)  # a server that ends each watch at once is not asked without a breath


def _listed(api: NodeApi, path: str, accept: str) -> tuple[dict[str, Any], str]:
    """The objects by UID, read in pages that are all of one version, and that version."""
    objects: dict[str, Any] = {}
    page = f"{path}&limit={PAGE}"
    more = ""
    while True:
        answer = api.call("GET", f"{page}&continue={quote(more, safe='')}" if more else page, accept=accept)
        if answer.status != 200:
            raise ApiUnreachable(f"{answer.status} {answer.said}".strip())
        about = answer.body["metadata"]
        objects |= {each["metadata"]["uid"]: each for each in answer.body.get("items") or ()}
        more = about.get("continue", "")
        if not more:
            return objects, about["resourceVersion"]


def _watched(
    api: NodeApi,
    path: str,
    accept: str,
    version: str,
    objects: dict[str, Any],
    heard: Callable[[dict[str, Any]], None],
) -> str:
    """Watch from ``version``; from where to go on, or empty where the list must be read again."""
    query = f"&watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={version}"
    for event in api.watch(path + query, accept.format("")):
        kind, about = event.get("type"), event.get("object") or {}
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return ""  # as a rule: the version is too old
        version = about["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            continue
        uid = about["metadata"]["uid"]
        if kind == "DELETED":
            objects.pop(uid, None)
        else:
            objects[uid] = about
        heard(dict(objects))
    return version
