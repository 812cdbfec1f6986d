"""Servers whose lists and watches break: what each list-and-watch of ours makes of them.

One table for all (`tests.runtime.hostile_servers`): they go on where they were, and ask nothing in a tight
loop. How calls and streams are framed is in `test_hostile_servers`.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.node.kube.api import METADATA, NodeApi, NodeLists
from tests.runtime.hostile_servers import WATCHES, HostileServer, Listed, ending
from tests.support.sources import unnoted
from tests.support.tls import Tls
from tests.worlds import Json
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import (
    ObjectChanged,
    ObjectsListed,
    WatchEvent,
    WatchFailed,
    WatchOpened,
    WatchProgress,
)
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.connect import of_service_account

TOKEN = "secret-token-of-this-test"
WORDS = {ObjectsListed: "list", WatchProgress: "progress", WatchOpened: "opened", WatchFailed: "failed"}

Events = Iterator[WatchEvent[Json]]
Wait = Callable[[int], None]


def node_agent(folder: Path, url: str, wait_ms: Wait) -> Events:
    api = NodeApi(url, str(folder / "ca.crt"), str(folder / "token"))
    return inform(NodeLists(api, METADATA), "/api/v1/pods?fieldSelector=x", dict, wait_ms, unnoted())


def other_role(folder: Path, url: str, wait_ms: Wait) -> Events:
    """Of settler, webhook and extender."""
    return inform(_api(folder, url), "/api/v1/pods", dict, wait_ms, unnoted())


def _api(folder: Path, url: str) -> Api:
    host, _, port = url.removeprefix("https://").rpartition(":")
    where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return of_service_account(environment=where, folder=folder)


FOLLOWERS = {"node agent": node_agent, "paged": other_role, "streamed": other_role}
REFUSED = ending(b'{"message":"no initial events"}', b"HTTP/1.1 422 No")


def word(event: WatchEvent[Json]) -> str:
    """The event in short."""
    if isinstance(event, ObjectChanged):
        return f"{'-' if event.deleted else '+'}{event.item['metadata']['name']}"
    return WORDS[type(event)]


def asked(head: bytes) -> str:
    """What a request asks for: a list, or the version from which a watch begins."""
    _, _, query = head.decode().partition(" HTTP/1.1")[0].partition("?")
    fields = dict(field.split("=", 1) for field in query.split("&"))
    return fields["resourceVersion"] if "watch" in fields and "sendInitialEvents" not in fields else "list"


@pytest.mark.parametrize(
    ("follower", "row"),
    [
        (follower, row)
        for follower in FOLLOWERS
        for row in WATCHES
        if follower == "paged" or not WATCHES[row].paged_only
    ],
)
def test_a_list_and_watch_goes_on_where_it_was(tmp_path: Path, tls: Tls, follower: str, row: str) -> None:
    (tmp_path / "ca.crt").write_bytes(tls.ca.bundle)
    (tmp_path / "token").write_text(TOKEN + "\n")
    watched, waits = WATCHES[row], list[int]()
    lists = Listed.paged if follower == "paged" else Listed.streamed
    answers = [lists(answer) if isinstance(answer, Listed) else answer for answer in watched.answers]
    answers[:0] = [REFUSED] if follower == "paged" else []
    with HostileServer(tls.server(), tuple((answer,) for answer in answers)) as server:
        events = FOLLOWERS[follower](tmp_path, server.url, waits.append)
        heard = list(itertools.islice(events, len(watched.events.split())))

    assert " ".join(map(word, heard)) == watched.events
    assert " ".join(map(asked, server.requests)) == "list " * (follower == "paged") + watched.calls
    assert all(wait > 0 for wait in waits)
    assert not any(TOKEN in str(event) for event in heard)
