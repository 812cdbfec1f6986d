"""`kubectl bursar dashboard` without kubectl: a browser session over the server that the command starts."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.tls import Tls
from tests.timekeeper.dashboards import READER, filled
from tests.timekeeper.worlds import token
from timekeeper.cli.client import Client
from timekeeper.cli.loopback import Loopback, log_in
from timekeeper.cli.output import CommandError


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Of the pages, over TLS that it verifies."""
    made, tls = filled(tmp_path), Tls(tmp_path / "tls")
    with made.served(tls.server()) as url:
        yield Client(url, ca=tls.ca.bundle.decode())
    made.close()


@pytest.fixture
def server(client: Client) -> Iterator[Loopback]:
    with Loopback(client, log_in(client, READER), "/namespaces/team-a") as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_port_that_is_not_free_is_a_sentence(client: Client, server: Loopback) -> None:
    port = server.server_address[1]

    with pytest.raises(
        CommandError, match=f"^--port {port}: cannot listen there: Address already in use; 0: any"
    ):
        Loopback(client, [], "/", port)


def test_a_browser_that_leaves_is_no_error(server: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (BrokenPipeError(), ConnectionResetError(), ValueError("a defect")):
        try:
            raise error
        except (OSError, ValueError):
            server.handle_error(None, ("127.0.0.1", 1))

    assert capsys.readouterr().err.count("Traceback") == 1


def asked(
    server: Loopback, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=LONGEST_S)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


def test_the_address_logs_one_browser_in_and_no_other_address_does(server: Loopback) -> None:
    path = server.address.removeprefix(server.origin)
    assert asked(server, "/open/other")[0] == 410
    assert asked(server, "/namespaces/team-a")[1]["Location"].startswith("/login")

    status, headers, _ = asked(server, path)

    assert (status, headers["Location"]) == (303, "/namespaces/team-a")
    set_cookies = headers.get_all("Set-Cookie", [])
    assert [each.partition("=")[0] for each in set_cookies] == ["bursar-forms", "bursar-session"]
    assert all("HttpOnly" in each and "SameSite=Strict" in each for each in set_cookies)
    assert not any("Secure" in each for each in set_cookies)  # the browser speaks HTTP, on loopback
    assert asked(server, path)[0] == 410

    cookie = "; ".join(each.partition(";")[0] for each in set_cookies)
    status, headers, page = asked(server, "/namespaces/team-a", Cookie=f"other=\xe9; {cookie}")
    assert (status, "train-7" in page) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    form = "form_token=" + page.split('name="form_token" value="')[1].split('"')[0]
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    assert asked(server, "/logout", "POST", form, **sent)[1]["Location"] == "/login"


def test_a_timekeeper_that_went_away_leaves_a_page_that_says_so_and_loads_itself_again(
    server: Loopback,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server.client = Client(f"http://127.0.0.1:{closed.getsockname()[1]}")
    server.explain = lambda error: CommandError(f"away: {type(error).__name__}\n<since>")

    status, headers, page = asked(server, "/")

    assert (status, headers["Content-Type"]) == (502, "text/html; charset=utf-8")
    assert "<p>Away: AwayError</p>\n<p>&lt;since&gt;</p>" in page
    assert '<meta http-equiv="refresh" content="5">' in page


def test_a_timekeeper_that_hangs_is_told_long_before_a_report_may_take(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timekeeper.cli.client._CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}")

        status, _, page = asked(server, "/")

    assert status == 502
    assert f"No answer from {server.client.url} within 0.3 s" in page


def test_the_server_gives_nothing_to_a_site_of_another_name_and_adds_no_token(server: Loopback) -> None:
    path = server.address.removeprefix(server.origin)

    assert asked(server, "/login", Host="evil.test")[0] == 421
    assert asked(server, path, Host=f"evil.test:{server.server_address[1]}")[0] == 410
    assert asked(server, "/v1/budgets")[0] == 401
    assert asked(server, path)[0] == 303


def test_a_token_that_is_refused_is_an_error_with_a_sentence(client: Client) -> None:
    with pytest.raises(CommandError, match="did not accept the token"):
        log_in(client, token("unknown"))
