"""Polls one path of the timekeeper over a kept connection. Each answer is bounded in size, and as a whole in
time."""

import http.client
import io
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from timekeeper.edge.log_events import EventLog
from timekeeper.edge.outbox import REFUSED, NotDelivered
from timekeeper.runtime.tls import client_context

T = TypeVar("T")
E = TypeVar("E", bound=str)

POLL_EVERY_S = 1.0
TIMEOUT_S = 2.0  # also for an answer as a whole
MAX_BYTES = 64 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_BROKEN = (http.client.HTTPException, zlib.error)


class TimekeeperError(Exception):
    """The timekeeper gave no usable answer; the text says why."""


class PostRefusedError(TimekeeperError):
    """The timekeeper will never take this body."""


FAILURES = (TimekeeperError, OSError, ValueError, *_BROKEN)
"""What `TimekeeperClient.get` raises."""


class TimekeeperAnswer(NamedTuple):
    """A 200, or a 304 to the ETag that was sent (``is_new`` False, ``body`` empty)."""

    is_new: bool
    etag: str
    body: bytes


class Polled(Protocol):
    """What a `TimekeeperPoller` polls."""

    def get(self, etag: str) -> TimekeeperAnswer:
        """The answer; it is not new if it still has this ETag. Raises one of `FAILURES`."""

    def close(self) -> None:
        """Closes the connection; the next request opens another."""


class TimekeeperClient:
    """``path`` of the timekeeper at ``url``. ``ca`` gives the PEM text of the CA bundle, None for none.
    Token file and CA are read before each request, for both are renewed. For one thread."""

    def __init__(self, url: str, path: str, token_file: Path, ca: Callable[[], str | None]) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 443
        self._path = address.path.rstrip("/") + path
        self._token_file, self._ca = token_file, ca
        self._connection: http.client.HTTPSConnection | None = None
        self._trusted = ""

    def get(self, etag: str) -> TimekeeperAnswer:
        """The answer; it is not new if it still has this ETag. Raises one of `FAILURES`, TimeoutError if the
        whole answer has not arrived within TIMEOUT_S; the connection is then closed."""
        try:
            return self._got(etag)
        except FAILURES:
            self.close()
            raise

    def post(self, body: bytes) -> None:
        """Posts the body; a 200 is success. Raises one of `FAILURES`, PostRefusedError where the same body
        would be refused again; the connection is then closed."""
        try:
            status, _, _ = self._again("POST", {"Content-Type": "application/json"}, body)
            if status in REFUSED:
                raise PostRefusedError(f"the timekeeper answered {status}")
            if status != http.client.OK:
                raise TimekeeperError(f"the timekeeper answered {status}")
        except FAILURES:
            self.close()
            raise

    def deliver(self, body: bytes) -> NotDelivered | None:
        """Posts the body, as `post`; None: it is acknowledged."""
        try:
            self.post(body)
        except PostRefusedError as error:
            return NotDelivered(str(error), True)
        except FAILURES as error:
            return NotDelivered(f"{type(error).__name__}: {error}", False)
        return None

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _got(self, etag: str) -> TimekeeperAnswer:
        status, new_etag, body = self._again("GET", {"If-None-Match": etag} if etag else {})
        if status == http.client.NOT_MODIFIED and etag:
            return TimekeeperAnswer(False, etag, b"")
        if status != http.client.OK:
            raise TimekeeperError(f"the timekeeper answered {status}")
        return TimekeeperAnswer(True, new_etag, body)

    def _again(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, str, bytes]:
        reused = self._connection is not None
        try:
            return self._answer(method, headers, body)
        except (*_BROKEN, ConnectionError):
            if not reused:
                raise
            self.close()  # the server may close a kept connection at any time: no failure
            return self._answer(method, headers, body)

    def _answer(self, method: str, headers: Mapping[str, str], sent: bytes | None) -> tuple[int, str, bytes]:
        connection = self._connected()
        own = {"Authorization": f"Bearer {self._token()}", "Accept-Encoding": "gzip"}
        if connection.sock is not None:
            connection.sock.settimeout(TIMEOUT_S)
        connection.request(method, self._path, body=sent, headers={**own, **headers})
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES + 1)
        if answer.headers.get("Content-Encoding") == "gzip" and body:
            body = zlib.decompressobj(_GZIP).decompress(body, MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise TimekeeperError("the answer is too large")
        return answer.status, answer.headers.get("ETag", ""), body

    def _token(self) -> str:
        token = self._token_file.read_text(encoding="ascii").strip()
        if not token or not token.isprintable():
            raise TimekeeperError(f"{self._token_file} holds no token")
        return token

    def _connected(self) -> http.client.HTTPSConnection:
        trusted = self._ca()
        if trusted is None:
            raise TimekeeperError("no CA bundle to verify the timekeeper with")
        if trusted != self._trusted:
            self.close()
        if self._connection is None:
            context = client_context(trusted)
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
            self._connection.response_class = _BoundedResponse
            self._trusted = trusted
        return self._connection


class TimekeeperPoller(Generic[T, E]):
    """Polls and keeps the last good value; a failure leaves it, and it ages.

    ``take`` makes the value of an answer and the last value, and raises ValueError for an answer that it
    cannot decode. ``now_ms``: a monotonic clock. ``events``: the names in the log for a poll that succeeds
    after a failure, and for one that fails after a success. ``polled`` is called after each poll with
    ``heard`` or ``failed``.
    """

    def __init__(
        self,
        client: Polled,
        take: Callable[[TimekeeperAnswer, T | None], T],
        now_ms: Callable[[], int],
        log: EventLog[E],
        events: tuple[E, E],
        polled: Callable[[str], None],
    ) -> None:
        self._client, self._take, self._now_ms = client, take, now_ms
        self._log, self._events, self._polled = log, events, polled
        self._etag = ""
        self._last_error: str | None = None  # "" after a success, None before the first poll
        self.value: T | None = None
        self.confirmed_ms: int | None = None  # when the timekeeper last answered with the value or a 304
        self.was_polled = False

    def run(self, stop: threading.Event, every_s: float = POLL_EVERY_S) -> None:
        """Polls until ``stop``."""
        while not stop.is_set():
            self.poll()
            stop.wait(every_s)
        self.close()

    def poll(self) -> None:
        """Polls once."""
        error_text = ""
        try:
            answer = self._client.get(self._etag)
            self.value = self._take(answer, self.value)
            self._etag, self.confirmed_ms = answer.etag, self._now_ms()
        except FAILURES as error:
            error_text = f"{type(error).__name__}: {error}"
            self.close()
        if error_text and error_text != self._last_error:
            self._log(self._events[1], level="warning", error=error_text)
        elif not error_text and self._last_error != "":
            self._log(self._events[0])
        self._last_error, self.was_polled = error_text, True
        self._polled("failed" if error_text else "heard")

    def close(self) -> None:
        """Closes the connection; the next poll opens another."""
        self._client.close()


class _InTime(io.RawIOBase):
    """Reads a socket until a moment, then raises TimeoutError: a peer that drips bytes gains no time."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock, self._until_s = sock, until_s

    def readable(self) -> bool:
        """Called by io."""
        return True

    def readinto(self, into: Any) -> int:
        """Called by io."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the answer has not arrived within {TIMEOUT_S} s")
        self._sock.settimeout(left_s)
        return self._sock.recv_into(into)


class _BoundedResponse(http.client.HTTPResponse):
    """A response whose head and body must arrive within TIMEOUT_S together."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_InTime(sock, time.monotonic() + TIMEOUT_S))
