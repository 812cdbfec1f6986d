"""How much memory the API server's answers take, however much tenants write into their objects."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from sidecar.node.kube import trimmed_json
from sidecar.node.kube.api import NodeApi, NodeLists
from tests.node.unit.test_trimmed_json import ABOUT, kept, pod, written
from tests.support.http_server import JsonHandler, Served
from timekeeper.edge.list_watch import watch

MANY = 46_000


@pytest.fixture(scope="module")
def large() -> list[dict[str, Any]]:
    """Four pods, each with as many annotations as it may have, none like another's."""
    return [pod(uid, **{f"{uid}{at:x}": "" for at in range(MANY)}) for uid in "abcd"]


def test_only_one_of_a_page_is_read_in_full_at_a_time(large: list[dict[str, Any]]) -> None:
    def peak_of(pods: list[dict[str, Any]]) -> int:
        text = written({"metadata": ABOUT, "items": pods})
        tracemalloc.start()
        trimmed_json.loads(text)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak - 2 * len(text)  # as text, whole and without its head

    assert peak_of(large) < 1.2 * peak_of(large[:1])


@pytest.fixture
def api(tmp_path: Path, large: list[dict[str, Any]]) -> Iterator[NodeApi]:
    """A server that lists the large pods, and tells of each where it is watched."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            if "watch" not in self.path:
                return self.answer(200, written({"metadata": ABOUT, "items": large}))
            self.begin_stream()
            for each in large:
                self.chunk(written({"type": "ADDED", "object": each}))
            self.chunk(b"")

    (tmp_path / "token").write_text("t")
    with Served(Handler) as server:
        api = NodeApi(server.url, "", str(tmp_path / "token"))
        yield api
        api.close()


def test_pods_full_of_annotations_take_no_room_in_the_agent(api: NodeApi) -> None:
    tracemalloc.start()
    listed = api.call("GET", "/list", within_s=LONGEST_S).body
    told = [*watch(NodeLists(api, ""), "/watch", "1")][1:]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert listed["items"] == [each["object"] for each in told] == [kept(uid) for uid in "abcd"]
    assert taken < 1 << 20
