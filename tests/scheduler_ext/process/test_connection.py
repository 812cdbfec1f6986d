"""Requests are taken whole off a caller's connection."""

import socket
import threading
from collections.abc import Iterator

import pytest

from scheduler_ext.serving.connection import WHOLE_REQUEST_S, Connection, RefusedError, Request

POST = b"POST /filter HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    """The caller's end, and the connection at ours, which takes bodies of 100 bytes."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        yield theirs, Connection(ours, ("127.0.0.1", 1), most_body_bytes=100)


def test_requests_that_come_together_are_taken_one_by_one(ends: tuple[socket.socket, Connection]) -> None:
    caller, connection = ends
    caller.sendall(POST + b"Content-Length: 2\r\n\r\n{}" + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    caller.shutdown(socket.SHUT_WR)

    first, second, third = (connection.request() for _ in range(3))

    assert first is not None
    assert (first.path, first.body) == ("/filter", b"{}")
    assert second is not None
    assert (second.path, second.body) == ("", b"")
    assert third is None


@pytest.mark.parametrize("line", [b"Connection: close", b"Upgrade: h2c"])
def test_what_is_not_plain_is_left_to_gunicorn(ends: tuple[socket.socket, Connection], line: bytes) -> None:
    caller, connection = ends
    caller.sendall(POST + line + b"\r\nContent-Length: 2\r\n\r\n{}")

    request = connection.request()

    assert request is not None
    assert (request.path, request.body) == ("", b"{}")


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", 400),
        (POST + b"Content-Length: +5\r\n\r\n", 400),
        (POST + b"Content-Length : 5\r\n\r\n", 400),
        (POST + b"Content-Length:\r\n\r\n", 400),
        (POST + b"Content-Length: 1000000000000\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\nContent-Length: 2x\r\n\r\n{}", 400),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n", 411),
        (POST + b"Expect: money\r\nContent-Length: 2\r\n\r\n", 417),
        (POST + b"Content-Length: 101\r\n\r\n", 413),
        (POST + b"X: " + b"x" * 70_000, 431),
    ],
)
def test_what_cannot_be_taken_is_refused(
    ends: tuple[socket.socket, Connection], head: bytes, code: int
) -> None:
    caller, connection = ends
    caller.sendall(head)

    with pytest.raises(RefusedError) as refused:
        connection.request()

    assert refused.value.args[0] == code
    assert connection.sock.gettimeout() == WHOLE_REQUEST_S


def test_a_caller_that_waits_to_be_told_to_send_its_body_is_told(
    ends: tuple[socket.socket, Connection],
) -> None:
    caller, connection = ends
    caller.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    caller.settimeout(4.0)
    taken: list[Request | None] = []
    ours = threading.Thread(target=lambda: taken.append(connection.request()))
    ours.start()

    assert caller.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.sendall(b"{}")
    ours.join()

    (request,) = taken
    assert request is not None
    assert (request.path, request.body) == ("/filter", b"{}")
    assert b"xpect" not in request.head


def test_the_answer_has_its_own_time_however_little_the_request_left(
    ends: tuple[socket.socket, Connection],
) -> None:
    caller, connection = ends
    caller.sendall(POST + b"Content-Length: 2\r\n\r\n{}")

    assert connection.request() is not None

    assert connection.sock.gettimeout() == WHOLE_REQUEST_S


def test_a_caller_who_leaves_in_the_middle_is_no_error(ends: tuple[socket.socket, Connection]) -> None:
    caller, connection = ends
    caller.sendall(POST + b"Content-Length: 20\r\n\r\n{")
    caller.close()

    assert connection.request() is None
