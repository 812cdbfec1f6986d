"""Lists of objects as large as an object may be: one at a time is in memory, in whatever way they come."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from sidecar.node.kube.api import METADATA, NodeApi, NodeLists
from tests.support.http_server import JsonHandler, Served
from tests.support.sources import unnoted
from timekeeper.edge.http1 import MAX_BODY
from timekeeper.edge.http_client import connecting, system_context
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectsListed
from timekeeper.runtime.api_server import Api

SIZE = 1_450_000  # of a text of `<`, which JSON has as six bytes each
COUNT = 12  # together longer than what is read of an answer
TEXT = rb"\u003c" * SIZE


def item(at: int) -> bytes:
    metadata = b'"metadata":{"name":"p-%d","uid":"%d","resourceVersion":"5"}' % (at, at)
    return b'{"kind":"Pod","apiVersion":"v1",%b,"spec":{"containers":[{"name":"c","args":["%b"]}]}}' % (
        metadata,
        TEXT,
    )


class Large(JsonHandler):
    """Lists them, in a stream unless the path says that there is none."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = dict(parse_qsl(query))
        if "sendInitialEvents" not in asked:
            return self.page(int(asked.get("continue", "0")), int(asked["limit"]))
        if path == "/paged":
            return self.answer(422, {"message": "no initial events"})
        self.begin_stream()
        for at in range(COUNT):
            self.chunk(b'{"type":"ADDED","object":%b}\n' % item(at))
        end = {"k8s.io/initial-events-end": "true"}
        self.event({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9", "annotations": end}}})
        self.chunk(b"")

    def page(self, begin: int, limit: int) -> None:
        end = min(COUNT, begin + limit)
        metadata = b'"metadata":{"resourceVersion":"9","continue":"%b"}' % (
            b"%d" % end if end < COUNT else b""
        )
        self.begin_stream()
        self.chunk(b'{%b,"items":[' % metadata)
        for at in range(begin, end):
            try:
                self.chunk(b",%b" % item(at) if at > begin else item(at))
            except OSError:  # it has read enough
                return
        self.chunk(b"]}")
        self.chunk(b"")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Served(Large) as server:
        yield server.url


@contextmanager
def of_roles(url: str, _folder: Path) -> Iterator[Any]:
    with closing(Api(url, connecting(system_context), dict)) as api:
        yield api


@contextmanager
def of_node_agent(url: str, folder: Path) -> Iterator[Any]:
    (folder / "token").write_text("t")
    with closing(NodeApi(url, "", str(folder / "token"))) as api:
        yield NodeLists(api, METADATA)


@pytest.mark.parametrize("path", ["/streamed", "/paged"])
@pytest.mark.parametrize("lister", [of_roles, of_node_agent])
def test_objects_of_the_largest_size_are_listed_one_by_one(
    url: str, tmp_path: Path, lister: Callable[[str, Path], AbstractContextManager[Any]], path: str
) -> None:
    assert COUNT * len(item(0)) > MAX_BODY

    def name(raw: Any) -> str:
        return str(raw["metadata"]["name"])

    with lister(url, tmp_path) as api:
        tracemalloc.start()
        listed = next(inform(api, path, name, lambda _: True, unnoted(), limit=8))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert listed == ObjectsListed(tuple(f"p-{at}" for at in range(COUNT)))
    assert peak < 512 << 20
