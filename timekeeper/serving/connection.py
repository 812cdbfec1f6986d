"""A client's connection: what it has sent that is not answered yet, and until when it may take its time."""

import re
import selectors
import ssl
import time
from dataclasses import dataclass
from typing import Any

from gunicorn import http
from gunicorn.workers.gthread import TConn

from timekeeper.api.http.body import LARGEST_BODY
from timekeeper.api.resources.heartbeats import PATH

FIRST_WORD_S = 10.0  # for a handshake and the head of the first request
WHOLE_REQUEST_S = 15.0  # for the rest of a request that has begun

_MOST_HEAD_BYTES = 64 * 1024
_BEATS = f"POST {PATH} HTTP/1.1\r\n".encode()
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*0*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_HAS_LENGTH = re.compile(rb"\r\ncontent-length", re.IGNORECASE)
_BY_THREAD = re.compile(rb"\r\n(?:transfer-encoding|expect):", re.IGNORECASE)


class BoundedSocket(ssl.SSLSocket):
    """TLS over which a thread waits for nobody for ever: however slowly a request drips, it must be whole by
    ``until``, and what is sent must be taken."""

    until = 0.0

    def setblocking(self, flag: bool) -> None:
        """A thread begins with a request, or leaves the socket to the loop."""
        self.until = time.monotonic() + WHOLE_REQUEST_S
        self.settimeout(WHOLE_REQUEST_S if flag else 0.0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Raises TimeoutError where the request took too long."""
        given_s = self.gettimeout()
        if given_s != 0.0:
            left_s = self.until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the request takes too long")
            self.settimeout(left_s if given_s is None else min(given_s, left_s))
        return super().recv(buflen, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Raises TimeoutError where nothing of it is taken."""
        if self.gettimeout() != 0.0:
            self.settimeout(WHOLE_REQUEST_S)
        super().sendall(data, flags)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request of ``length`` bytes with its body, as far as the loop has to gather it.

    ``authorization``: the header of a post of heartbeats, that the loop answers; None: a thread's part.
    """

    text: bytes
    length: int
    authorization: str | None = None
    closes: bool = False


class Connection(TConn):  # type: ignore[misc]
    """gunicorn's, with what the loop knows of it. ``head``: of the request that the inbox begins with, and
    the last one once it is answered: a sidecar sends the same with each post."""

    def __init__(self, cfg: Any, sock: ssl.SSLSocket, client: Any, server: Any) -> None:
        super().__init__(cfg, sock, client, server)
        self.initialized = True  # the loop does the handshake
        self.parser = http.get_parser(cfg, sock, client)
        self.until = time.monotonic() + FIRST_WORD_S
        self.greeted = False
        self.busy = False  # a heartbeat is being answered
        self.threaded = False  # a thread has the connection
        self.closes = False  # and is the last one
        self.began = 0.0  # when it came
        self.ending = False  # nothing more is answered
        self.said_all = False  # and the last answer is sent
        self.closed = False
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.head: Head | None = None
        self.wants = selectors.EVENT_READ

    def allow(self, seconds: float) -> None:
        """Until when the next thing must have happened."""
        self.until = time.monotonic() + seconds

    def whole(self) -> Head | None:
        """The head of the request that the inbox begins with, once all of it is there that the loop waits
        for."""
        if self.head is None or not self.inbox.startswith(self.head.text):
            self.head = self._read_head()
        return self.head if self.head and len(self.inbox) >= self.head.length else None

    def take(self, head: Head) -> bytes:
        """The request's body; the inbox begins with what follows."""
        body = bytes(memoryview(self.inbox)[len(head.text) : head.length])
        del self.inbox[: head.length]
        return body

    def _read_head(self) -> Head | None:
        end = self.inbox.find(b"\r\n\r\n")
        if end < 0:
            too_long = len(self.inbox) > _MOST_HEAD_BYTES
            return Head(bytes(self.inbox), 0) if too_long else None
        text = bytes(self.inbox[: end + 4])
        told = _LENGTH.search(text)
        length = int(told[1]) if told else 0
        is_unclear = len(_HAS_LENGTH.findall(text)) != bool(told)
        if is_unclear or length > LARGEST_BODY or _BY_THREAD.search(text):
            return Head(text, 0)  # a thread reads it, or says what is wrong with it
        whole = len(text) + length
        return (self._heartbeats(text, whole) if text.startswith(_BEATS) else None) or Head(text, whole)

    def _heartbeats(self, text: bytes, whole: int) -> Head | None:
        """By gunicorn's own parser; None where a thread is to say what is wrong."""
        try:
            request = next(http.get_parser(self.cfg, [text], self.client))
        except Exception:  # the thread's parser finds the same, and answers
            return None
        named = [value for name, value in request.headers if name == "AUTHORIZATION"]
        if len(named) != 1 or request.path != PATH:
            return None
        return Head(text, whole, named[0], bool(request.should_close()))
