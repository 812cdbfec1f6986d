"""A caller's connection: whole requests are taken off it one after another, and nobody is waited for without
end."""

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

MOST_HEAD_BYTES = 64 * 1024
FIRST_WORD_S = 5.0  # a caller that stops in its handshake, or says nothing at all, does not keep its thread
WHOLE_REQUEST_S = 5.0  # from a request's first byte to its last
KEEP_ALIVE_S = 100.0  # longer than kube-scheduler keeps an idle connection: it must be the one who closes

_TAKE_BYTES = 256 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*(?=\r\n)", re.IGNORECASE)
_TELLS_LENGTH = re.compile(rb"[\r\n][ \t]*content-length(?![a-z0-9_-])", re.IGNORECASE)
_CHUNKED = re.compile(rb"[\r\n][ \t]*transfer-encoding(?![a-z0-9_-])", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_FIRST_LINE = re.compile(rb"POST (/[a-z]+) HTTP/1\.1\r\n")
_UNUSUAL = re.compile(rb"\r\n(?:connection|upgrade):", re.IGNORECASE)


class RefusedError(Exception):
    """A request that cannot be taken: code, reason and a sentence. The connection ends with it."""


class Said(NamedTuple):
    """A whole answer: its status, its content's type, and its body."""

    status: HTTPStatus
    kind: str
    body: bytes


# path -> what answers a body that is posted there
Calls = dict[str, Callable[[bytes], Said]]


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request. ``path``: of a plain POST that keeps the connection, "" for anything else."""

    head: bytes
    body: bytes
    path: str


class Connection:
    """``sock`` is the caller's, its TLS handshake still to come where it has one."""

    def __init__(self, sock: socket.socket, client: Any, most_body_bytes: int) -> None:
        self.sock, self.client = sock, client
        self._most_body_bytes = most_body_bytes
        self._taken = bytearray()
        self._patience_s = FIRST_WORD_S

    def request(self) -> Request | None:
        """The next request; None where the caller has left or says no more. Raises RefusedError."""
        try:
            return self._request()
        except OSError:  # it has gone, or time is up
            return None
        finally:
            self.sock.settimeout(WHOLE_REQUEST_S)  # the answer does not go by what the request has left

    def send(self, data: bytes) -> None:
        """Raises OSError where the caller does not take it in time."""
        self.sock.settimeout(WHOLE_REQUEST_S)
        self.sock.sendall(data)

    def _request(self) -> Request | None:
        until = time.monotonic() + (WHOLE_REQUEST_S if self._taken else self._patience_s)
        begun = bool(self._taken)
        while (end := self._taken.find(b"\r\n\r\n")) < 0:
            if len(self._taken) > MOST_HEAD_BYTES:
                raise RefusedError(431, "Request Header Fields Too Large", "the head is too long")
            if not self._take(until):
                return None
            if not begun:
                begun, until = True, time.monotonic() + WHOLE_REQUEST_S
        head = bytes(self._taken[: end + 2])
        whole = end + 4 + self._length(head)
        if len(self._taken) < whole:
            self._go_on(head)
        while len(self._taken) < whole:
            if not self._take(until):
                return None
        body = bytes(memoryview(self._taken)[end + 4 : whole])
        del self._taken[:whole]
        self._patience_s = KEEP_ALIVE_S
        head = _EXPECTS.sub(b"", head)  # it is met by now
        return Request(head + b"\r\n", body, _plain_path(head))

    def _go_on(self, head: bytes) -> None:
        """Tell a caller so that sends its body only once it is told to."""
        expected = _EXPECTS.search(head)
        if expected is None:
            return
        if expected[1].lower() != b"100-continue":
            raise RefusedError(417, "Expectation Failed", "of Expect only 100-continue is known")
        if head.partition(b"\r\n")[0].endswith(b"HTTP/1.1"):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take(self, until: float) -> bool:
        self.sock.settimeout(max(0.001, until - time.monotonic()))
        taken = self.sock.recv(_TAKE_BYTES)
        self._taken += taken
        return bool(taken)

    def _length(self, head: bytes) -> int:
        if _CHUNKED.search(head):
            raise RefusedError(411, "Length Required", "send the body with its Content-Length")
        lengths = _LENGTH.findall(head)
        if len(lengths) != len(_TELLS_LENGTH.findall(head)):  # the body would be taken for the next request
            raise RefusedError(400, "Bad Request", "Content-Length must be one decimal number, as in: 120")
        told = {int(each) for each in lengths}
        if len(told) > 1:
            raise RefusedError(400, "Bad Request", "the head tells two lengths")
        length = next(iter(told), 0)
        if length > self._most_body_bytes:
            raise RefusedError(413, "Content Too Large", f"a body may have {self._most_body_bytes} bytes")
        return length


def _plain_path(head: bytes) -> str:
    plain = _FIRST_LINE.match(head)
    return plain[1].decode() if plain and not _UNUSUAL.search(head) else ""
