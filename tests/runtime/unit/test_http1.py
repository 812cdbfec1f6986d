"""One HTTP exchange. Answers of hostile servers: `tests.runtime.hostile_servers`."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.edge import http1
from timekeeper.edge.http1 import ConnectionClosed, NotHTTP
from timekeeper.edge.http_client import Server, server_of


def read(text: bytes) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection may be kept."""
    stream = io.BufferedReader(io.BytesIO(text))
    head = http1.head(stream)
    return head.status, http1.body(stream, head, 300_000), head.keep


def test_a_request_is_one_piece_with_its_length_and_headers() -> None:
    headers = {"Authorization": "Bearer a.b.c"}

    assert http1.request("POST", "host:8444", "/v1/heartbeats", headers, b"{}") == (
        b"POST /v1/heartbeats HTTP/1.1\r\nHost: host:8444\r\nAuthorization: Bearer a.b.c\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    several = {"Impersonate-Group": ("a", "b"), "X": ()}
    assert http1.request("GET", "host", "/", several, None) == (
        b"GET / HTTP/1.1\r\nHost: host\r\nImpersonate-Group: a\r\nImpersonate-Group: b\r\n\r\n"
    )
    assert http1.request("GET", "host", "/", {}, None) == b"GET / HTTP/1.1\r\nHost: host\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "header"),
    [
        *(("/a b", "x"), ("/a\r\nX: y", "x"), ("/", "x\r\nY: z"), ("/", "x\0"), ("/\u00fc", "x")),
        ("/", ("a", "x\r\nY: z")),
    ],
)
def test_a_head_that_would_break_its_line_is_not_sent(path: str, header: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^a path or a header holds a letter that it may not$"):
        http1.request("GET", "host", path, {"X": header}, None)


@pytest.mark.parametrize(
    ("text", "response"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}left", (200, b"{}", True)),
        (b"HTTP/1.1 503 No\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", (503, b"", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}", False)),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", (200, b"to the end", False)),
        (b"HTTP/1.1 204 None\r\n\r\n", (204, b"", True)),
        (b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", (304, b"", True)),
    ],
)
def test_answers_are_read_to_their_end_and_no_further(text: bytes, response: tuple[int, bytes, bool]) -> None:
    assert read(text) == response


def test_lines_of_one_header_are_joined_but_cookies_have_commas_of_their_own() -> None:
    text = (
        b"HTTP/1.1 204 X\r\nVary: a\r\nSet-Cookie: a=1; Expires=Thu, 1\r\nset-cookie: b=2\r\nvary: b\r\n\r\n"
    )

    headers = http1.head(io.BufferedReader(io.BytesIO(text))).headers

    assert headers == {"vary": "a, b", "set-cookie": "a=1; Expires=Thu, 1\nb=2"}


@pytest.mark.parametrize("framing", [b"Content-Length: 300001", b"X: y", b"Transfer-Encoding: chunked"])
def test_a_body_above_the_bound_is_refused(framing: bytes) -> None:
    body = (b"20000\r\n" + b"x" * 0x20000 + b"\r\n") * 3 if b"chunked" in framing else b"x" * 300_001
    with pytest.raises(NotHTTP, match="too long"):
        read(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + body)


def test_lines_come_whole_however_they_are_cut() -> None:
    pieces = (b'{"a"', b": 1}\n\n{", b'"b": 2}\nthe rest')
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    stream = io.BufferedReader(io.BytesIO(text))

    assert list(http1.lines(stream, http1.head(stream))) == [b'{"a": 1}', b'{"b": 2}']


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://host", Server("host", 443, "host", "", True)),
        ("HTTP://10.0.0.1:80/a/b/", Server("10.0.0.1", 80, "10.0.0.1:80", "/a/b", False)),
        ("https://[fd00::1]:8444", Server("fd00::1", 8444, "[fd00::1]:8444", "", True)),
        ("https://[fd00::1]", Server("fd00::1", 443, "[fd00::1]", "", True)),
    ],
)
def test_a_url_names_a_server(url: str, server: Server) -> None:
    assert server_of(url) == server


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "ftp://host",
        "https://",
        "https://:1",
        "https://host:x",
        "https://h:0",
        "https://[]:1",
        "https://[::1",
    ],
)
def test_what_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"it is no http or https URL|its port is not from 1 to 65535"):
        server_of(url)


@given(st.binary() | st.binary().map(lambda tail: b"HTTP/1.1 200 OK\r\n" + tail))
def test_any_bytes_are_an_answer_or_one_of_two_errors(text: bytes) -> None:
    try:
        status, _, _ = read(text)
    except (NotHTTP, ConnectionClosed):
        return
    assert 200 <= status <= 999
