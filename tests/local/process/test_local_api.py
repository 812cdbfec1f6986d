"""The client of the API server: which calls share a connection, and what becomes of one that has ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from deploy.local.api import AdminApi, forget
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from tests.support.waiting import at_once, eventually


@dataclass
class Asked:
    """The requests of each connection, in order, and how many connections have ended."""

    connections: list[list[str]] = field(default_factory=list)
    ended: int = 0


@pytest.fixture
def server(tls: Tls) -> Iterator[tuple[AdminApi, Asked]]:
    """A server that ends a connection behind its back once it has answered ``/last``."""
    asked = Asked()

    class Handler(JsonHandler):
        def setup(self) -> None:
            super().setup()
            self.mine: list[str] = []
            asked.connections.append(self.mine)

        def finish(self) -> None:
            super().finish()
            self.connection.close()
            asked.ended += 1

        def do_GET(self) -> None:
            self.mine.append(f"{self.command} {self.path}")
            warnings = ('299 - "spelt \\"b\\""', '299 - "and another"') if self.path == "/warned" else ()
            self.answer(200, {}, [("Warning", warning) for warning in warnings])
            self.close_connection = self.path == "/last"

        def do_POST(self) -> None:
            self.body()
            self.do_GET()

    with Served(Handler, tls.server()) as served:
        api = AdminApi(f"https://localhost:{served.port}", Path(tls.file("ca.crt")), "token")
        yield api, asked
        forget(api.url)


def test_calls_of_the_main_thread_share_a_connection_and_others_have_their_own(
    server: tuple[AdminApi, Asked],
) -> None:
    api, asked = server

    api.call("POST", "/made", {})
    api.call("GET", "/seen")
    at_once(lambda: api.call("GET", "/beside"), 2)

    assert asked.connections == [["POST /made", "GET /seen"], ["GET /beside"], ["GET /beside"]]


def test_what_is_written_after_the_server_has_ended_the_connection_goes_over_a_new_one(
    server: tuple[AdminApi, Asked],
) -> None:
    api, asked = server
    api.call("POST", "/last", {})
    eventually(lambda: asked.ended)

    api.call("POST", "/made", {})

    assert asked.connections == [["POST /last"], ["POST /made"]]


def test_the_warnings_of_an_answer_are_handed_to_who_wants_them(server: tuple[AdminApi, Asked]) -> None:
    api, asked = server
    heard: list[str] = []

    for path in ("/warned", "/plain"):
        replace(api, on_warning=heard.append).call("GET", path)
    api.call("GET", "/warned")

    assert heard == ['spelt "b"', "and another"]
    assert asked.connections == [["GET /warned", "GET /plain", "GET /warned"]]
