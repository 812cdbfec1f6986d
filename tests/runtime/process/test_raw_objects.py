"""Objects with whatever the API server stores: each client of ours reads them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from sidecar.node.kube.api import NodeApi
from tests.support.http_server import JsonHandler, Served
from tests.support.raw_values import VALUES
from timekeeper.cli.completion import answer
from timekeeper.cli.kubectl import Kubectl
from timekeeper.edge.http_client import connecting, system_context
from timekeeper.runtime.api_server import Answered, Api

METADATA = b'{"name":"a","labels":{},"annotations":{"x":%b}}'


def _list(value: bytes) -> bytes:
    return b'{"metadata":{},"items":[{"metadata":%b}]}' % (METADATA % value)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that lists one object for each odd value."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, _list([*VALUES.values()][int(self.path.rpartition("/")[2])]))

    with Served(Handler) as server:
        yield server.url


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Makes a kubectl that prints this list."""

    def make(value: bytes) -> None:
        (tmp_path / "list").write_bytes(_list(value))
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\ncat {tmp_path}/list\n")
        (tmp_path / "kubectl").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


def _name(listed: Any) -> str:
    return str(listed["items"][0]["metadata"]["name"])


@pytest.mark.parametrize("value", VALUES)
def test_each_client_reads_them(
    url: str, tmp_path: Path, kubectl: Callable[[bytes], None], value: str
) -> None:
    (tmp_path / "token").write_text("t")
    path = f"/{[*VALUES].index(value)}"
    api = Api(url, connecting(system_context), dict)
    node_api = NodeApi(url, "", str(tmp_path / "token"))
    kubectl(VALUES[value])

    reply = api.call("GET", path, timeout_s=LONGEST_S)
    of_node = node_api.call("GET", path)

    assert isinstance(reply, Answered)
    assert [*map(_name, (reply.body, api.page(path), of_node.body, Kubectl().get("pods")))] == ["a"] * 4
    assert [line.partition("\t")[0] for line in answer(["waiting", ""])][:1] == ["a"]
    api.close()
    node_api.close()
