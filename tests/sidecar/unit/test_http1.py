"""One HTTP exchange: what is read, and what is refused without a hang or a surprise."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import http1
from sidecar.http1 import ConnectionClosed, HttpResponse, NotHTTP


def read(text: bytes) -> HttpResponse:
    return http1.response(io.BytesIO(text))


def test_a_request_is_one_piece_with_its_length_and_token() -> None:
    assert http1.request("host:8444", "/v1/heartbeats", "a.b.c", b"{}") == (
        b"POST /v1/heartbeats HTTP/1.1\r\nHost: host:8444\r\nAuthorization: Bearer a.b.c\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize(
    ("text", "response"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}left", HttpResponse(200, b"{}", True)),
        (b"HTTP/1.1 200\r\ncontent-LENGTH:2\r\n\r\n{}", HttpResponse(200, b"{}", True)),
        (b"HTTP/1.1 503 No\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", HttpResponse(503, b"", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", HttpResponse(200, b"{}", False)),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", HttpResponse(200, b"to the end", False)),
        (b"HTTP/1.1 204 None\r\n\r\n", HttpResponse(204, b"", True)),
        (
            b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
            HttpResponse(401, b"", True),
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n"
            b"Trailer: t\r\n\r\n",
            HttpResponse(200, b"abc0123456789", True),
        ),
    ],
)
def test_answers_are_read_to_their_end_and_no_further(text: bytes, response: HttpResponse) -> None:
    assert read(text) == response


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK", "cut off or too long"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000, "cut off or too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 65, "too many headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}", "no readable length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", "too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n{}", "too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", "cut off"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 300_000, "too long"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"20000\r\n" + b"x" * 0x20000 + b"\r\n") * 3,
            "too long",
        ),
    ],
)
def test_what_is_no_answer_is_named(text: bytes, odd: str) -> None:
    with pytest.raises(NotHTTP, match=odd):
        read(text)


def test_a_connection_that_ends_before_the_answer_is_gone() -> None:
    with pytest.raises(ConnectionClosed):
        read(b"")


@given(st.binary() | st.binary().map(lambda tail: b"HTTP/1.1 200 OK\r\n" + tail))
def test_any_bytes_are_an_answer_or_one_of_two_errors(text: bytes) -> None:
    try:
        answer = read(text)
    except (NotHTTP, ConnectionClosed):
        return
    assert 200 <= answer.status <= 999
