"""A server over TLS that answers as a table says, byte by byte, and the table.

Every client of ours calls it (`tests/runtime/process/test_hostile_servers.py`), and takes ``BODY``. Every
list-and-watch of ours follows it (`tests/runtime/process/test_hostile_watches.py`).
"""

import gzip
import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

BODY = b'{"version":1,"interval_ms":5000,"in_budget":true}'
CLOSE = "close"  # the end of the connection
MOST_BYTES = 64 << 20  # the most that any client of ours takes

Answer = tuple[bytes | float | str, ...]
"""Bytes are sent as they are, seconds are waited for, `CLOSE` ends the connection."""


def ending(body: bytes, first: bytes = b"HTTP/1.1 200 OK") -> "Answer":
    """An answer that ends the connection."""
    return (sized(body, first, b"Connection: close"), CLOSE)


def sized(body: bytes = BODY, first: bytes = b"HTTP/1.1 200 OK", *more: bytes) -> bytes:
    """An answer with its length and more lines in its head."""
    lines = (first, *more, b"Content-Length: %d" % len(body), b"", b"")
    return b"\r\n".join(lines) + body


def headed(*lines: bytes, body: bytes = b"") -> bytes:
    """A 200 with these lines in its head."""
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"", b"")) + body


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked answer."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return headed(b"Transfer-Encoding: chunked", body=body + end)


def status(code: int, *more: bytes) -> Answer:
    """An answer with this status and ``BODY``."""
    return (sized(BODY, b"HTTP/1.1 %d Said" % code, *more),)


GOOD: Answer = (sized(),)
FAILS = "fails"

# One call on a new connection: what the server sends, and what comes of it: a status, or `FAILS`.
ANSWERS: dict[str, tuple[Answer, str]] = {
    "a length": (GOOD, "200"),
    "no reason": (
        (b"HTTP/1.1 200\r\ncontent-LENGTH:%d\r\n\r\n%s" % (len(BODY), BODY),),
        "200",
    ),
    "letters in four pieces": (tuple(sized()[at : at + 30] for at in range(0, 120, 30)), "200"),
    "1xx first": ((b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n", sized()), "200"),
    "chunks": ((chunks(BODY[:7], BODY[7:]),), "200"),
    "chunks with extensions and a trailer": (
        (
            headed(
                b"Transfer-Encoding: chunked",
                body=b"%X;x=y\r\n%s\r\n0\r\nTrailer: t\r\n\r\n" % (len(BODY), BODY),
            ),
        ),
        "200",
    ),
    "no length, to the end": ((headed(body=BODY), CLOSE), "200"),
    "HTTP/1.0": ((b"HTTP/1.0 200 OK\r\n\r\n" + BODY, CLOSE), "200"),
    "the end announced": ((sized(BODY, b"HTTP/1.1 200 OK", b"Connection: Close"), CLOSE), "200"),
    "elsewhere": (status(302, b"Location: https://127.0.0.1:1/"), "302"),
    "elsewhere for good": (status(308, b"Location: /other"), "308"),
    **{str(code): (status(code), str(code)) for code in (400, 401, 403, 404, 409, 410, 413, 422, 500, 503)},
    "busy": (status(429, b"Retry-After: 1"), "429"),
    "away for a while": (status(503, b"Retry-After: Wed, 21 Oct 2099 07:28:00 GMT"), "503"),
    "no HTTP": ((b"SSH-2.0-OpenSSH\r\n", CLOSE), FAILS),
    "another version": ((b"HTTP/2 200\r\n\r\n", CLOSE), FAILS),
    "a status that is none": ((b"HTTP/1.1 2x0 OK\r\n\r\n", CLOSE), FAILS),
    "a status line cut": ((b"HTTP/1.1 200 OK", CLOSE), FAILS),
    "a head cut": ((b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE), FAILS),
    "a line without end": ((b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", CLOSE), FAILS),
    "headers without end": ((b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", CLOSE), FAILS),
    "a length in words": ((headed(b"Content-Length: two", body=BODY), CLOSE), FAILS),
    "a negative length": ((headed(b"Content-Length: -2", body=BODY), CLOSE), FAILS),
    "a length with a sign": ((headed(b"Content-Length: +49", body=BODY), CLOSE), FAILS),
    "two lengths": ((headed(b"Content-Length: 49", b"Content-Length: 2", body=BODY), CLOSE), FAILS),
    "too large a length": ((headed(b"Content-Length: 1099511627776", body=BODY), CLOSE), FAILS),
    "a body cut": ((headed(b"Content-Length: 60", body=BODY), CLOSE), FAILS),
    "a chunk's length in words": ((chunks(end=b"two\r\n" + BODY), CLOSE), FAILS),
    "a chunk of negative length": ((chunks(end=b"-5\r\n" + BODY), CLOSE), FAILS),
    "a chunk that is longer than it says": ((chunks(end=b"5\r\n%s\r\n0\r\n\r\n" % BODY), CLOSE), FAILS),
    "a chunk cut": ((chunks(end=b"40\r\n" + BODY), CLOSE), FAILS),
    "chunks without the last": ((chunks(BODY, end=b""), CLOSE), FAILS),
    "packed, but it is not": ((sized(BODY, b"HTTP/1.1 200 OK", b"Content-Encoding: gzip"),), FAILS),
    "packed and cut": (
        (sized(gzip.compress(BODY)[:30], b"HTTP/1.1 200 OK", b"Content-Encoding: gzip"),),
        FAILS,
    ),
    "packed, and huge": (
        (sized(gzip.compress(bytes(MOST_BYTES + 1), 1), b"HTTP/1.1 200 OK", b"Content-Encoding: gzip"),),
        FAILS,
    ),
    "hung up": ((CLOSE,), FAILS),
}

# The same, of servers that take longer than a client waits.
SLOW: dict[str, Answer] = {
    "silence": (6.0,),
    "a head letter by letter": tuple(part for _ in range(120) for part in (b"H", 0.05)),
    "a body letter by letter": (
        headed(b"Content-Length: 121"),
        *(part for _ in range(120) for part in (b" ", 0.05)),
    ),
    "chunks letter by letter": (
        headed(b"Transfer-Encoding: chunked"),
        *(part for _ in range(120) for part in (b"1\r\n \r\n", 0.05)),
    ),
    "as if it were about to answer": tuple(
        part for _ in range(1_200) for part in (b"HTTP/1.1 100 Go on\r\n\r\n", 0.005)
    ),
}

Connections = tuple[tuple[Answer, ...], ...]
"""What a server answers on each connection, in order. After the last one it ends the connection."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Two calls in a row. ``requests``: how many the server read."""

    connections: Connections
    second: str  # what comes of the second call
    requests: int


# What becomes of a connection that a client keeps.
KEPT: dict[str, Kept] = {
    "kept": Kept(((GOOD, GOOD),), "200", 2),
    "closed while it was idle": Kept((((sized(), CLOSE),), (GOOD,)), "200", 2),
    "closed as announced": Kept(
        (((sized(BODY, b"HTTP/1.1 200 OK", b"Connection: close"), 60.0),), (GOOD,)), "200", 2
    ),
    "closed once the request was read": Kept(((GOOD, (CLOSE,)), (GOOD,)), "200", 3),
    "closed twice": Kept(((GOOD, (CLOSE,)), ((CLOSE,),)), FAILS, 3),
    "closed in the middle of the answer": Kept(((GOOD, (sized()[:50], CLOSE)), (GOOD,)), FAILS, 2),
    "one answer too many": Kept((((sized() + sized(b"{}", b"HTTP/1.1 500 No"),),), (GOOD,)), "200", 2),
}


def event(kind: str, name: str, version: int | str) -> bytes:
    """A line of a watch."""
    metadata = {"name": name, "uid": name, "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": metadata}}).encode() + b"\n"


def streamed(*lines: bytes) -> Answer:
    """A watch that sends these and ends in order."""
    return (chunks(*lines),)


def broken(*lines: bytes) -> Answer:
    """A watch that sends these, and is cut off."""
    return chunks(*lines, end=b""), CLOSE


@dataclass(frozen=True, slots=True)
class Listed:
    """A list with these items at this version."""

    version: str
    items: tuple[Any, ...] = ({"metadata": {"name": "a", "uid": "a", "resourceVersion": "1"}},)
    more: str = ""  # where it goes on

    def paged(self) -> Answer:
        """As one page."""
        metadata = {"resourceVersion": self.version} | ({"continue": self.more} if self.more else {})
        body = json.dumps({"metadata": metadata, "items": self.items}, separators=(",", ":")).encode()
        return ending(body)

    def streamed(self) -> Answer:
        """As a watch sends it."""
        marks = {"k8s.io/initial-events-end": "true"}
        end = {"metadata": {"resourceVersion": self.version, "annotations": marks}}
        events = [*(("ADDED", item) for item in self.items), ("BOOKMARK", end)]
        lines = (json.dumps({"type": kind, "object": item}).encode() + b"\n" for kind, item in events)
        return streamed(*lines)


@dataclass(frozen=True, slots=True)
class Watched:
    """What a server answers to each call of a list-and-watch, on a connection of its own. ``events``: what
    comes of it; ``calls``: a list, or the version from which a watch is asked for."""

    answers: tuple[Listed | Answer, ...]
    events: str
    calls: str
    paged_only: bool = False


FIRST, B, C = Listed("10"), event("ADDED", "b", 11), event("ADDED", "c", 13)
LATER = event("ADDED", "c", 23)
VERSION = FIRST.paged()  # to who asks for the version, after a watch that could not be opened
GONE = b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n'
EXPIRED = ending(BODY, b"HTTP/1.1 410 Gone")
CUT: Answer = (headed(b"Content-Length: 60", body=BODY), CLOSE)


def goes_on(*second: bytes) -> Watched:
    """A watch that fails in the middle of this goes on from the last whole event."""
    return Watched((FIRST, broken(B, *second), streamed(C)), "list +b failed opened +c", "list 10 11")


def passed_over(line: bytes) -> Watched:
    """A watch whose line says nothing goes on."""
    return Watched((FIRST, streamed(B, line), streamed(C)), "list +b progress +c", "list 10 11")


def listed_again(answer: Answer) -> Watched:
    """A list that fails is asked for again."""
    return Watched((answer, FIRST, streamed(B)), "failed list opened +b", "list list 10")


WATCHES: dict[str, Watched] = {
    "closed": Watched(
        (FIRST, streamed(B, event("DELETED", "a", 12)), streamed(C)),
        "list +b -a progress +c progress",
        "list 10 12",
    ),
    "a bookmark": Watched(
        (FIRST, streamed(event("BOOKMARK", "", 90)), streamed()),
        "list progress progress progress",
        "list 10 90",
    ),
    "an event with an older version": Watched(
        (FIRST, streamed(B, event("ADDED", "c", 9)), Listed("12").paged(), streamed(event("ADDED", "d", 12))),
        "list +b +c progress +d",
        "list 10 list 9",
    ),
    "a bookmark without a version": Watched(
        (FIRST, streamed(B, b'{"type":"BOOKMARK","object":{}}\n'), streamed(C)),
        "list +b progress progress +c",
        "list 10 11",
    ),
    "cut between two events": goes_on(),
    "cut in the middle of an event": goes_on(b'{"type": "ADDED", "obj'),
    "ended in the middle of an event": passed_over(b'{"type": "ADDED", "obj'),
    "no JSON": goes_on(b"garbage\n"),
    "no UTF-8": goes_on(b"\xff\xfe\n"),
    "no JSON twice": Watched(
        (FIRST, streamed(B, b"garbage\n"), streamed(b"garbage\n"), Listed("20"), streamed(LATER)),
        "list +b failed opened failed list opened +c",
        "list 10 11 list 20",
    ),
    "no JSON, no answer, no JSON at a version of its own": Watched(
        (FIRST, streamed(b"garbage\n"), status(500), VERSION, streamed(B, b"garbage\n"), streamed(C)),
        "list failed failed opened +b failed opened +c",
        "list 10 10 list 10 11",
    ),
    "JSON without end": goes_on(b"[" * 100_000 + b"\n"),
    "a number": goes_on(b"7\n"),
    "null": goes_on(b"null\n"),
    "an array": goes_on(b"[]\n"),
    "an event without an object": passed_over(b'{"type": "ADDED"}\n'),
    "an event without a type": passed_over(b'{"object": 7}\n'),
    "an empty line": passed_over(b"\n\n"),
    "an error": goes_on(b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n'),
    "an error without an object": goes_on(b'{"type":"ERROR"}\n'),
    "a line without end": Watched(
        (FIRST, (chunks(B, end=b""), *[b"100000\r\n%s\r\n" % bytes(1 << 20)] * 65, CLOSE), streamed(C)),
        "list +b failed opened +c",
        "list 10 11",
    ),
    "expired in the middle": Watched(
        (FIRST, streamed(B, GONE), Listed("20"), streamed(LATER)), "list +b list +c", "list 10 list 20"
    ),
    "expired": Watched(
        (FIRST, status(410), Listed("20"), streamed(LATER)), "list list +c", "list 10 list 20"
    ),
    **{
        f"refused by {code}": Watched(
            (FIRST, *(status(code), VERSION) * 2, streamed(B)),
            "list failed failed opened +b",
            "list 10 list 10 list 10",
        )
        for code in (401, 403, 404, 429, 500, 503)
    },
    "no HTTP": Watched(
        (FIRST, (b"SSH-2.0-OpenSSH\r\n", CLOSE), VERSION, streamed(B)),
        "list failed opened +b",
        "list 10 list 10",
    ),
    "packed": Watched(
        (FIRST, (headed(b"Content-Encoding: gzip", body=gzip.compress(B)), CLOSE), streamed(B)),
        "list failed opened +b",
        "list 10 10",
    ),
    "a list that is cut": listed_again(CUT),
    "a list that is no JSON": listed_again(ending(b"garbage\n")),
    "a list that is null": listed_again(ending(b"null\n")),
    "a list that is refused": listed_again(ending(BODY, b"HTTP/1.1 403 No")),
    "a list without a version": Watched(
        (Listed(""), FIRST, streamed(B)), "failed list opened +b", "list list 10"
    ),
    "a list of a number": Watched(
        (Listed("9", (7,)), FIRST, streamed(B)), "failed list opened +b", "list list 10"
    ),
    "a list that expired": Watched(
        (EXPIRED, FIRST, streamed(B)),
        "list +b",
        "list list 10",
    ),
    "a list whose second page is cut": Watched(
        (Listed("10", more="x/+="), CUT, Listed("20"), streamed(LATER)),
        "failed list opened +c",
        "list list list 20",
        paged_only=True,
    ),
    "a list whose second page expired": Watched(
        (
            Listed("10", more="x"),
            EXPIRED,
            Listed("20"),
            streamed(LATER),
        ),
        "list +c",
        "list list list 20",
        paged_only=True,
    ),
}


class HostileServer:
    """Listens on loopback and answers by ``connections``. ``requests``: the head of each that it read."""

    def __init__(self, context: ssl.SSLContext | None, connections: Connections) -> None:
        self._context, self._script = context, list(connections)
        self._ended = threading.Event()
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> "HostileServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            answers = self._script[min(self.accepted, len(self._script) - 1)] if self._script else ()
            self.accepted += 1
            threading.Thread(target=self._serve, args=(raw, answers), daemon=True).start()

    def _serve(self, raw: socket.socket, answers: tuple[Answer, ...]) -> None:
        with suppress(OSError):
            connection = self._context.wrap_socket(raw, server_side=True) if self._context else raw
            self._open.append(connection)
            with connection:
                for answer in answers:
                    if not self._read(connection) or not self._answer(connection, answer):
                        return

    def _read(self, connection: socket.socket) -> bool:
        """Reads one request. False where the client has gone."""
        text = b""
        while b"\r\n\r\n" not in text:
            if not (more := connection.recv(65_536)):
                return False
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        while len(body) < int(length.partition(b"\r\n")[0] or b"0"):
            body += connection.recv(65_536)
        self.requests.append(head)
        return True

    def _answer(self, connection: socket.socket, answer: Answer) -> bool:
        """Sends one answer. False where it ends the connection."""
        for part in answer:
            if isinstance(part, bytes):
                connection.sendall(part)
            elif isinstance(part, float):
                if self._ended.wait(part):
                    return False
            else:
                if isinstance(connection, ssl.SSLSocket):
                    time.sleep(0.01)  # the end comes after what was sent
                return False
        return True
