"""The socket of a server: the workers of a predecessor that was killed may hold its port for a moment."""

import contextlib
import errno
import socket
import urllib.request
from threading import Timer

import pytest

from sidecar.node.metrics import MetricsPage, serve
from tests.support.kernel_sockets import untaken
from tests.support.waiting import eventually
from timekeeper.edge.families import families
from timekeeper.runtime.http import server
from timekeeper.runtime.http.server import CannotListenError, listening_socket


def test_a_port_that_is_given_up_soon_is_waited_for() -> None:
    before = listening_socket("127.0.0.1", 0)
    port = before.getsockname()[1]
    Timer(0.3, before.close).start()

    with contextlib.closing(listening_socket("127.0.0.1", port)) as after:
        assert after.getsockname()[1] == port


def test_a_port_that_stays_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.2)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]

        with pytest.raises(CannotListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            listening_socket("127.0.0.1", port)


LOOPBACKS = ("127.0.0.1", "::1")


def test_both_address_families_reach_a_server_that_listens_on_both() -> None:
    with contextlib.closing(listening_socket("::", 0)) as listener:
        for loopback in LOOPBACKS:
            socket.create_connection((loopback, listener.getsockname()[1])).close()
    assert families("::") == ("IPv4", "IPv6")
    assert (families("::1"), families("127.0.0.1")) == (("IPv6",), ("IPv4",))


def test_both_reach_the_metrics_of_an_agent_that_listens_on_both() -> None:
    page = MetricsPage(lambda: 0)
    with serve(page, "::", 0) as agent:
        port = agent.server_address[1]
        for loopback in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{loopback}:{port}/metrics") as answer:
                assert answer.status == 200
        agent.shutdown()


def test_of_an_agents_page_the_kernel_keeps_nothing_for_a_client_that_does_not_read() -> None:
    page = MetricsPage(lambda: 0)
    page.show("x" * 300_000, True)
    with serve(page, "127.0.0.1", 0, request_s=0.2) as agent, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(agent.server_address)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        eventually(lambda: sum(untaken(agent.server_address[1])) > 0, "the page")
        eventually(lambda: not untaken(agent.server_address[1]), "the connection to be reset")
        agent.shutdown()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_where_the_machine_knows_no_ipv6_it_is_ipv4(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class OfIPv4(socket.socket):
        def bind(self, address: object) -> None:
            if self.family is socket.AF_INET6:
                raise OSError(number, "no IPv6")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr("timekeeper.edge.families.socket.socket", OfIPv4)

    with contextlib.closing(listening_socket("::", 0)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    assert families("::") == ("IPv4",)
