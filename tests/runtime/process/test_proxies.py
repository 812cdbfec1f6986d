"""Posts and logins where only a proxy leads out of the cluster."""

import socket
import threading
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.tls import Tls
from timekeeper.edge.http_client import HttpClient, NotConnected, Server, server_of
from timekeeper.runtime.proxies import connecting_out, goes_direct

SHOWN = b"Proxy-Authorization: Basic YnVyc2FyOnNAY3JldA==\r\n"


class Proxy:
    """It answers as the server itself, once it was asked for the way. ``asked``: the heads that it got."""

    def __init__(self, tls: Tls) -> None:
        self.asked: list[bytes] = []
        self._tls, self._listener = tls, socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LONGEST_S)
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        raw, _ = self._listener.accept()
        raw.settimeout(LONGEST_S)
        self.asked.append(raw.recv(4096))
        raw.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
        with self._tls.server().wrap_socket(raw, server_side=True) as through:
            through.recv(4096)
            through.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def end(self) -> None:
        self._thread.join(LONGEST_S)
        self._listener.close()


def call(tls: Tls, url: str, **environment: str) -> bytes:
    client = HttpClient(server_of(url), connecting_out(tls.client, environment), keep=0)
    return client.call("GET", "/", {}, within_s=LONGEST_S, repeat=False).body


@pytest.mark.parametrize(
    ("login", "shown"),
    [
        ("", b""),
        ("http://", b""),
        ("http://bursar:s%40cret@", b"Proxy-Authorization: Basic YnVyc2FyOnNAY3JldA==\r\n"),
    ],
)
def test_a_server_outside_is_reached_through_the_proxy(tmp_path: Path, login: str, shown: bytes) -> None:
    tls = Tls(tmp_path, names=("hooks.example",))
    proxy = Proxy(tls)

    answer = call(tls, "https://hooks.example/x", HTTPS_PROXY=login + proxy.place, NO_PROXY="10.0.0.0/8,.svc")

    proxy.end()
    assert answer == b"ok"
    head = b"CONNECT hooks.example:443 HTTP/1.1\r\nHost: hooks.example:443\r\n"
    assert proxy.asked == [head + shown + b"\r\n"]


@pytest.mark.parametrize(
    "url", ["https://user:s3cret@proxy:3128", "socks5://u:s3cret@proxy:1", "http://u:s3cret@:x"]
)
def test_a_proxy_that_is_none_is_named_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(NotConnected, match="HTTPS_PROXY is no http:// URL") as failure:
        call(Tls(tmp_path), "https://hooks.example", https_proxy=url)

    assert "s3cret" not in str(failure.value)


@pytest.mark.parametrize(
    ("host", "port", "spared", "is_direct"),
    [
        ("hooks.example", 443, "", False),
        ("hooks.example", 443, "example", True),
        ("hooks.example", 443, "hooks.example", True),
        ("HOOKS.example.", 443, "a.b, Hooks.Example", True),
        ("hooks.example", 443, ".hooks.example", False),
        ("a.hooks.example", 443, ".hooks.example", True),
        ("a.hooks.example", 443, "*.hooks.example", True),
        ("myhooks.example", 443, "hooks.example", False),
        ("hooks.example", 443, "hooks.example:8443", False),
        ("hooks.example", 8443, "hooks.example:8443", True),
        ("hooks.example", 443, "*", True),
        ("10.1.2.3", 443, "10.0.0.0/8", True),
        ("10.1.2.3", 443, "10.1.2.3", True),
        ("10.1.2.3", 443, "10.1.2.4,10.1.2.0/99,/", False),
        ("fd00::7", 443, "fd00::/8", True),
        ("fd00::7", 443, "[fd00::7]:443", True),
        ("hooks.example", 443, "10.0.0.0/8", False),
        ("localhost", 443, "", True),
        ("127.0.0.9", 443, "", True),
        ("::1", 443, "", True),
    ],
)
def test_what_no_proxy_names_is_reached_directly(host: str, port: int, spared: str, is_direct: bool) -> None:
    assert goes_direct(Server(host, port, host, "", True), spared) is is_direct


def test_without_tls_and_without_a_proxy_nothing_changes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        opened = connecting_out(Tls(tmp_path).client, {"HTTPS_PROXY": "http://proxy.invalid:1"})(
            server_of(url), 5
        )
        opened.close()
