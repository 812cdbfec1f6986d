"""What is kept of the API server's answers, however much tenants write into their objects."""

import http.client
import http.server
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.node.kube import trimmed_json
from sidecar.node.kube.api import NodeApi

DEVICES = "bursar.dev/devices"
MANY = 46_000


def pod(uid: str, **annotations: str) -> dict[str, Any]:
    """A pod's metadata with more in it than the agent reads."""
    return {
        "metadata": {
            "uid": uid,
            "name": uid,
            "namespace": "team",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {DEVICES: "{}", "bursar.dev/other": "x", **annotations},
            "labels": {"app": "x"},
            "managedFields": [{"fieldsV1": {"f:metadata": {}}}],
        }
    }


def kept(uid: str) -> dict[str, Any]:
    metadata = {"uid": uid, "name": uid, "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**metadata, "annotations": {DEVICES: "{}"}}}


def written(whole: object) -> bytes:
    """As the API server writes it."""
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


ABOUT = {"resourceVersion": "7", "continue": "x"}


@pytest.mark.parametrize("write", [written, lambda whole: json.dumps(whole, indent=1).encode()])
@pytest.mark.parametrize("uids", ["", "a", "abc"])
def test_of_each_object_only_what_the_agent_reads_is_kept(write: Any, uids: str) -> None:
    whole = {"kind": "PodList", "metadata": ABOUT, "items": [pod(uid) for uid in uids]}

    assert trimmed_json.loads(write(whole)) == {**whole, "items": [kept(uid) for uid in uids]}
    assert trimmed_json.loads(write(pod("a"))) == kept("a")
    assert trimmed_json.loads(write({"items": None, "metadata": ABOUT})) == {"items": None, "metadata": ABOUT}


@pytest.mark.parametrize(
    "text", ["", '{"items":[', '{"items":[]', '{"items":[{}{}]}x', '{"items":[1]}}', '"']
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated"):
        trimmed_json.loads(text.encode())


def test_a_text_of_somebodys_that_looks_like_a_list_changes_nothing() -> None:
    sly = pod("a") | {"note": '"items":[{}]}', "spec": {"items": [1, 2], "x": 1}}

    assert trimmed_json.loads(written(sly)) == sly | kept("a")


class Plain(NodeApi):
    """Without TLS."""

    def __init__(self, port: int, token: Path) -> None:
        super().__init__("https://127.0.0.1", "", str(token))
        self.port = port

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)


@pytest.fixture(scope="module")
def large() -> list[dict[str, Any]]:
    """Four pods, each with as many annotations as it may have, none like another's."""
    return [pod(uid, **{f"{uid}{at:x}": "" for at in range(MANY)}) for uid in "abcd"]


@pytest.fixture
def api(tmp_path: Path, large: list[dict[str, Any]]) -> Iterator[NodeApi]:
    """A server that lists the large pods, and tells of each where it is watched."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            if "watch" in self.path:
                for each in large:
                    self.wfile.write(written({"type": "ADDED", "object": each}))
            else:
                self.wfile.write(written({"metadata": ABOUT, "items": large}))

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    (tmp_path / "token").write_text("t")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Plain(server.server_address[1], tmp_path / "token")
        server.shutdown()
        thread.join()


def test_pods_full_of_annotations_take_no_room_in_the_agent(api: NodeApi) -> None:
    tracemalloc.start()
    listed = api.call("GET", "/list").body
    told = list(api.watch("/watch"))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert listed["items"] == [each["object"] for each in told] == [kept(uid) for uid in "abcd"]
    assert taken < 1 << 20


def test_only_one_of_a_page_is_read_in_full_at_a_time(large: list[dict[str, Any]]) -> None:
    def peak_of(pods: list[dict[str, Any]]) -> int:
        text = written({"metadata": ABOUT, "items": pods})
        tracemalloc.start()
        trimmed_json.loads(text)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak - 2 * len(text)  # as text, whole and without its head

    assert peak_of(large) < 1.2 * peak_of(large[:1])
