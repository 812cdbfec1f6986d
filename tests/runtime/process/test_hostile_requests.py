"""Hostile and broken requests against the three servers and the extender's read-only port, over TLS.

Each case is answered with a status and a sentence, the connection ends, a client that behaves is answered
meanwhile, and no connection is held afterwards. Twelve hostile clients are connected at a time, which is more
than a server has threads: a request that held a thread would keep the other client waiting.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from deploy.local.limits import LONGEST_S
from tests.runtime.servers import ROLES, Server, all_of
from tests.support.waiting import eventually

AT_ONCE = 12
HELD_KIB = 96  # of memory for a connection in its handshake; about 40 were seen


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(role(tmp_path_factory.mktemp(name))) for name, role in ROLES.items()}


@pytest.fixture(params=ROLES)
def server(servers: dict[str, Server], request: pytest.FixtureRequest) -> Server:
    """Each, for what its settings decide: how many connections it takes, how large a body."""
    return servers[request.param]


@pytest.fixture
def one_server(servers: dict[str, Server]) -> Server:
    """The timekeeper, for what the loop that all have in common does."""
    return servers["timekeeper"]


POST = b"POST PATH HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
HUGE = b"9" * 30

REJECTED: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "an empty head": (b"\r\n\r\n\r\n", 400),
    "another version": (b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "the same length twice": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a length and an odd one": (POST + b"Content-Length: 2\r\nContent-Length: 2x\r\n\r\n{}", 400),
    "a list of lengths": (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n{}", 400),
    "a length with a sign": (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "a hexadecimal length": (POST + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "an empty length": (POST + b"Content-Length:\r\n\r\n{}", 400),
    "a blank before the colon": (POST + b"Content-Length : 2\r\n\r\n{}", 400),
    "a length in a folded line": (POST + b"X: y\r\n Content-Length: 2\r\n\r\n{}", 400),
    "a huge length": (POST + b"Content-Length: " + HUGE + b"\r\n\r\n{}", 413),
    "a length beyond what Python reads": (POST + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n{}", 413),
    "a length beyond the bound": (POST + b"Content-Length: TOOMUCH\r\n\r\n{}", 413),
    "the same, to be confirmed": (POST + b"Expect: 100-continue\r\nContent-Length: TOOMUCH\r\n\r\n", 413),
    "chunked": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    "chunked with length": (
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        400,
    ),
    "length with chunked": (
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        400,
    ),
    "another coding": (POST + b"Transfer-Encoding: dance\r\n\r\n", 411),
    "a coding with a blank before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n", 411),
    "bare LF": (b"GET /livez HTTP/1.1\nHost: x\n\n", 400),
    "bare CR": (b"GET /livez HTTP/1.1\rHost: x\r\r", 400),
    "a bare LF in a head": (GET + b"X: y\nContent-Length: 2\r\n\r\n", 400),
    "a bare CR in a head": (GET + b"X: y\rContent-Length: 2\r\n\r\n", 400),
    "a NUL in a head": (GET + b"X: \0\r\n\r\n", 400),
    "a folded line": (GET + b"X: y\r\n z\r\n\r\n", 400),
    "no colon": (GET + b"X\r\n\r\n", 400),
    "many fields": (GET + b"X: y\r\n" * 300 + b"\r\n", 431),
    "a long field": (GET + b"X: " + b"y" * 20_000 + b"\r\n\r\n", 431),
    "a head without an end": (GET + b"A: b\r\n" * 20_000, 431),
    "a line without an end": (b"GET /" + b"a" * 100_000, 431),
    "a long path": (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "another expectation": (POST + b"Expect: cake\r\nContent-Length: 2\r\n\r\n{}", 417),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_is_no_request_is_answered_once_with_a_sentence_and_holds_nothing(
    one_server: Server, case: str
) -> None:
    server = one_server
    sent, status = REJECTED[case]
    sent = sent.replace(b"PATH", server.path).replace(b"TOOMUCH", b"%d" % (server.largest_body + 1))
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(AT_ONCE)]
        for client in clients:
            client.sendall(sent)
        assert server.answers_well_behaved_clients()
        answers = {all_of(client).partition(b"\r\n\r\n")[::2] for client in clients}

    for head, body in answers:
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        assert b"\r\nConnection: close" in head
        assert len(body) > 10
        assert b"HTTP/1.1 " not in body  # a second answer
    eventually(lambda: server.connections() == 0, "the connections to be closed")


UNFINISHED: dict[str, Callable[[Server], socket.socket]] = {
    "a silent connection": lambda server: socket.create_connection(("127.0.0.1", server.port)),
    "half a handshake": lambda server: sending(
        socket.create_connection(("127.0.0.1", server.port)), b"\x16\x03\x01\x02\x00\x01"
    ),
    "TLS without a request": lambda server: server.connect(),
    "half a request line": lambda server: sending(server.connect(), POST[:6]),
    "half a head": lambda server: sending(server.connect(), GET),
    "half a body": lambda server: sending(
        server.connect(), POST.replace(b"PATH", server.path) + b"Content-Length: 100\r\n\r\n{"
    ),
    "a body but for its end": lambda server: sending(
        server.connect(),
        POST.replace(b"PATH", server.path) + b"Content-Length: 60000\r\n\r\n" + b" " * 59_999,
    ),
    "half a body of the application": lambda server: sending(
        server.connect(), b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    ),
    "a body that waits to be asked for": lambda server: sending(
        server.connect(),
        POST.replace(b"PATH", server.path) + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
    ),
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_an_unfinished_request_keeps_no_client_waiting_and_leaves_nothing_behind(
    one_server: Server, case: str
) -> None:
    server = one_server
    with ExitStack() as stack:
        for _ in range(AT_ONCE):
            stack.enter_context(UNFINISHED[case](server))

        assert server.answers_well_behaved_clients()
        eventually(lambda: server.connections() >= AT_ONCE, "the clients to be accepted")
    eventually(lambda: server.connections() == 0, "the connections to be closed")


def test_unfinished_requests_are_ended_by_the_server(servers: dict[str, Server]) -> None:
    """Also where each byte comes a moment after the last: a drip does not begin the wait anew."""
    began = time.monotonic()
    with ExitStack() as stack:
        drips = []
        for server in servers.values():
            for open_unfinished in UNFINISHED.values():
                stack.enter_context(open_unfinished(server))
            drips.append(stack.enter_context(sending(server.connect(), GET + b"X: ")))
            drips.append(stack.enter_context(server.connect()))
            drips[-1].sendall(POST.replace(b"PATH", server.path) + b"Content-Length: 1000\r\n\r\n")
        while any(server.connections() for server in servers.values()):
            assert time.monotonic() - began < LONGEST_S
            for drip in drips:
                with contextlib.suppress(OSError):
                    drip.sendall(b"x")
            time.sleep(0.1)

        assert all(server.answers_well_behaved_clients() for server in servers.values())


def test_a_flood_of_half_done_handshakes_keeps_no_client_waiting_and_holds_little_memory(
    server: Server,
) -> None:
    """More than fit in, but for the timekeeper's. A third are silent, a third have sent a ClientHello but for
    its last byte, and to a third the server has answered."""
    hello = client_hello()
    clients = min(1200, server.most_connections * 6 // 5)
    held = min(clients, server.most_connections)
    before_kib = server.resident_kib()
    with ExitStack() as stack:
        regular = stack.enter_context(sending(server.connect(), GET + b"\r\n"))
        assert regular.recv(65_536).startswith(b"HTTP/1.1 200 ")
        for number in range(clients):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LONGEST_S))
            with contextlib.suppress(ConnectionError):
                raw.sendall((b"", hello[:-1], hello)[number % 3])

        assert server.answers_well_behaved_clients()
        eventually(lambda: server.connections() >= held - 1, "the server to be full")
        assert server.connections() <= server.most_connections
        assert server.resident_kib() - before_kib < HELD_KIB * held
        sending(regular, GET + b"\r\n")
        assert regular.recv(65_536).startswith(b"HTTP/1.1 200 ")
    eventually(lambda: server.connections() == 0, "the connections to be closed")


def client_hello() -> bytes:
    """The first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_request_that_comes_byte_by_byte_is_answered(server: Server) -> None:
    request = POST.replace(b"PATH", server.path) + b"Content-Length: %d\r\n\r\n" % len(server.body)
    with server.connect() as client:
        for byte in request:
            client.sendall(bytes([byte]))
        client.sendall(server.body)

        assert client.recv(65_536).startswith(b"HTTP/1.1 %d " % server.status)


def test_a_body_beyond_the_bound_can_be_sent_to_its_end_before_the_answer_is_read(server: Server) -> None:
    """A connection that is reset meanwhile would take the answer with it."""
    length = server.largest_body + 1
    with server.connect() as client:
        client.sendall(POST.replace(b"PATH", server.path) + b"Content-Length: %d\r\n\r\n" % length)
        for _ in range(64):
            client.sendall(b" " * 16_384)

        answer = all_of(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body may have %d bytes at most" % server.largest_body in answer


def sending(client: socket.socket, data: bytes) -> socket.socket:
    """The client, after it has sent this."""
    client.sendall(data)
    return client
