"""Heads and bodies are cut out of what a connection has sent; the processes' side is in
``tests/runtime/process/test_hostile_requests.py``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.runtime.http.framing import (
    MAX_HEAD_BYTES,
    RejectedRequestError,
    RequestHead,
    RequestReader,
    _parsed_once,
)

POST = b"POST /filter?a=b HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def reader_of(sent: bytes) -> RequestReader:
    """A reader that takes bodies of 100 bytes, after a client has sent this."""
    reader = RequestReader(100)
    reader.buffer += sent
    return reader


def read_all(reader: RequestReader) -> list[tuple[str, str, bytes]]:
    """Method, path and body of the whole requests."""
    found = []
    while request := reader.next():
        head, body = request
        found.append((head.method, head.path, body))
    return found


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n", "Content-Length occurs more than once"),
        (POST + b"Content-Length: 2\r\ncontent-length: 3\r\n", "Content-Length occurs more than once"),
        (POST + b"Content-Length: +2\r\n", "must be one decimal number"),
        (POST + b"Content-Length: 2,2\r\n", "must be one decimal number"),
        (POST + b"Content-Length: 101\r\n", "the body may have 100 bytes at most"),
        (POST + b"Content-Length: %s\r\n" % (b"9" * 5_000), "the body may have 100 bytes at most"),
        (POST + b"Transfer-Encoding: chunked\r\n", "send the body with its Content-Length"),
        (
            POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            "both Transfer-Encoding and Content-Length",
        ),
        (POST + b"X: y\nZ: 1\r\n", "each must end with CRLF"),
        (POST + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\n", "the head has more than 65536 bytes"),
    ],
)
def test_what_is_wrong_with_a_head_is_one_sentence(head: bytes, sentence: str) -> None:
    with pytest.raises(RejectedRequestError, match=sentence):
        reader_of(head + b"\r\n{}").next()


def test_a_length_of_a_head_that_is_remembered_is_checked_too() -> None:
    reader = reader_of(POST + b"Content-Length: 2\r\n\r\n{}" + POST + b"Content-Length: 101\r\n\r\n{}")

    assert reader.next() is not None
    with pytest.raises(RejectedRequestError, match="the body may have 100 bytes at most"):
        reader.next()


def test_fields_are_found_by_their_upper_case_names_and_repeated_ones_are_joined() -> None:
    found = reader_of(b"GET /a%20b?q=1 HTTP/1.0\r\nX-One: 1\r\nx-one: 2\r\nConnection: close\r\n\r\n").next()

    assert found is not None
    head, body = found
    assert (head.path, head.query, head.target, head.version) == ("/a%20b", "q=1", "/a%20b?q=1", (1, 0))
    assert (head.fields["X-ONE"], head.closes, body) == ("1,2", True, b"")


def head_of(sent: bytes) -> RequestHead:
    found = reader_of(sent).next()
    assert found is not None
    return found[0]


def test_a_head_is_parsed_once_for_all_connections_whatever_its_length() -> None:
    first, second, other = (
        head_of(POST + b"X-Of: %b\r\nContent-Length: %d\r\n\r\n%b" % (name, len(body), body))
        for name, body in ((b"all", b"a"), (b"all", b"bc"), (b"one", b"a"))
    )

    assert first is second
    assert (first.fields["X-OF"], other.fields["X-OF"]) == ("all", "one")


@pytest.mark.parametrize(
    "secret", [b"Authorization: Bearer x", b"cookie: session=x", b"X-Long: " + 5_000 * b"x"]
)
def test_a_head_with_a_secret_and_a_long_one_are_forgotten_with_their_connection(secret: bytes) -> None:
    _parsed_once.cache_clear()

    assert head_of(POST + secret + b"\r\n\r\n") == head_of(POST + secret + b"\r\n\r\n")
    assert _parsed_once.cache_info().currsize == 0
    assert head_of(POST + b"X-Secret: " + secret[:3] + b"\r\n\r\n").fields["X-SECRET"] == secret[:3].decode()
    assert _parsed_once.cache_info().currsize == 1


def test_a_body_that_waits_for_100_continue_is_announced_once() -> None:
    reader = reader_of(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")

    assert reader.next() is None
    assert reader.must_continue
    reader.must_continue = False
    reader.buffer += b"{}"
    assert reader.next() is not None
    assert not reader.must_continue


def request(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@given(st.lists(st.binary(max_size=100), max_size=6), st.data())
def test_requests_are_the_same_in_whatever_pieces_they_come(bodies: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(request(body) + GET for body in bodies)
    reader, found = RequestReader(100), []
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        reader.buffer += sent[:size]
        sent = sent[size:]
        found += read_all(reader)

    expected = [each for body in bodies for each in (("POST", "/filter", body), ("GET", "/livez", b""))]
    assert found == expected
    assert not reader.buffer


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda tail: POST + tail + b"\r\n\r\n"))
def test_arbitrary_bytes_are_requests_or_rejected(sent: bytes) -> None:
    rejection = None
    try:
        read_all(reader_of(sent))
    except RejectedRequestError as error:
        rejection = error

    assert rejection is None or (400 <= rejection.status < 500 and str(rejection))
