"""What the client says where no answer comes, and its calls over a Unix socket."""

import socket
import threading
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.runtime.hostile_servers import sized
from tests.support.http_server import JsonHandler, Served
from timekeeper.cli.client import Client
from timekeeper.cli.output import AwayError, CommandError

URL = "http://localhost/apis/x"


def test_a_call_over_a_socket_has_the_path_of_the_url(tmp_path: Path) -> None:
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(LONGEST_S)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(sized())

        thread = threading.Thread(target=serve)
        thread.start()
        answer = Client(URL, path=tmp_path / "s").get("/v1/budgets", namespace="a b")
        thread.join(LONGEST_S)

    assert answer["version"] == 1
    assert asked[0].startswith(b"GET /apis/x/v1/budgets?namespace=a+b HTTP/1.1\r\nHost: localhost\r\n")


def test_a_failure_is_a_sentence_without_objects(tmp_path: Path) -> None:
    missing = Client(URL, path=tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = Client(f"http://127.0.0.1:{closed.getsockname()[1]}/")

    with pytest.raises(AwayError, match=f"^no answer from {URL}: No such file or directory: {tmp_path}/s$"):
        missing.get("/v1/budgets")
    with pytest.raises(AwayError, match=f"^no answer from {away.url}: Connection refused$"):
        away.get("/v1/budgets")


def test_a_client_without_a_server_or_with_a_ca_that_is_none_is_not_made() -> None:
    with pytest.raises(CommandError, match=r"^https://a:99999 is no address of a server: its port is not"):
        Client("https://a:99999")
    with pytest.raises(CommandError, match=r"^the CA contains no readable certificate; --ca-file names"):
        Client("https://a", ca="none")


def test_a_read_that_is_refused_is_tried_with_the_next_token() -> None:
    class Answers(JsonHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer more"
            self.answer(200 if allowed else 403, {"version": 1, "detail": "not allowed"})

    with Served(Answers) as server:
        client = Client(server.url, "less")
        client.others = iter(["little", "more"])
        alone = Client(server.url, "less")

        assert client.get("/v1/budgets")["version"] == 1
        assert list(client.others) == []
        with pytest.raises(CommandError, match="403: not allowed"):
            alone.get("/v1/budgets")
