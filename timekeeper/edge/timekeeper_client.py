"""Polls one path of the timekeeper, or posts to it, over a kept connection. Each answer is bounded in size,
and as a whole in time."""

import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from timekeeper.edge import http_client
from timekeeper.edge.http1 import HttpResponse
from timekeeper.edge.http_client import HttpClient, Server, server_of
from timekeeper.edge.log_events import EventLog
from timekeeper.edge.outbox import REFUSED, NotDelivered

T = TypeVar("T")
E = TypeVar("E", bound=str)

POLL_EVERY_S = 1.0
TIMEOUT_S = 2.0  # also for an answer as a whole
_OK, _NOT_MODIFIED = 200, 304


class TimekeeperError(Exception):
    """The timekeeper gave no usable answer; the text says why."""


class PostRefusedError(TimekeeperError):
    """The timekeeper will never take this body."""


FAILURES = (TimekeeperError, OSError, ValueError)
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

    def __init__(
        self,
        url: str,
        path: str,
        token_file: Path,
        ca: Callable[[], str | None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._path, self._token_file, self._ca, self._timeout_s = path, str(token_file), ca, timeout_s
        self._client = HttpClient(server_of(url), self._connect)
        self._trusted = ""

    def get(self, etag: str) -> TimekeeperAnswer:
        """The answer; it is not new if it still has this ETag. Raises one of `FAILURES`, TimeoutError if the
        whole answer has not arrived within ``timeout_s``."""
        answer = self._called("GET", {"If-None-Match": etag} if etag else {})
        if answer.status == _NOT_MODIFIED and etag:
            return TimekeeperAnswer(False, etag, b"")
        if answer.status != _OK:
            raise TimekeeperError(f"the timekeeper answered {answer.status}")
        return TimekeeperAnswer(True, answer.headers.get("etag", ""), answer.body)

    def post(self, body: bytes) -> None:
        """Posts the body; a 200 is success. Raises one of `FAILURES`, PostRefusedError where the same body
        would be refused again."""
        answer = self._called("POST", {"Content-Type": "application/json"}, body)
        if answer.status in REFUSED:
            raise PostRefusedError(f"the timekeeper answered {answer.status}")
        if answer.status != _OK:
            raise TimekeeperError(f"the timekeeper answered {answer.status}")

    def deliver(self, body: bytes) -> NotDelivered | None:
        """Posts the body, as `post`; None: it is acknowledged."""
        try:
            self.post(body)
        except PostRefusedError as error:
            return NotDelivered(str(error), True)
        except FAILURES as error:
            reason = http_client.sentence(error, self._timeout_s)
            return NotDelivered(f"{type(error).__name__}: {reason}", False)
        return None

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        self._client.close()

    def _called(self, method: str, headers: Mapping[str, str], body: bytes | None = None) -> HttpResponse:
        trusted = self._ca()
        if trusted is None:
            raise TimekeeperError("no CA bundle to verify the timekeeper with")
        if trusted != self._trusted:
            self.close()
            self._trusted = trusted
        token = http_client.read_token(self._token_file)
        own = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip", **headers}
        return self._client.call(method, self._path, own, body, within_s=self._timeout_s, repeat=True)

    def _connect(self, server: Server, within_s: float) -> ssl.SSLSocket:
        return http_client.tls(http_client.trusting(self._trusted), server, within_s)


class TimekeeperPoller(Generic[T, E]):
    """Polls and keeps the last good value. No answer, or one that cannot be decoded, leaves it, and it ages.

    ``decode`` makes the value of a new body with its ETag at this moment, and raises ValueError;
    ``confirmed`` makes it of a value that is still the timekeeper's. ``now_ms``: a monotonic clock.
    ``events``: the names in the log for a poll that succeeds after a failure, and for one that fails
    otherwise than the one before. ``polled`` is called after each poll with ``heard`` or ``failed``.
    """

    def __init__(
        self,
        client: Polled,
        decode: Callable[[bytes, str, int], T],
        confirmed: Callable[[T, int], T],
        now_ms: Callable[[], int],
        log: EventLog[E],
        events: tuple[E, E],
        polled: Callable[[str], None],
    ) -> None:
        self._client, self._decode, self._confirmed, self._now_ms = client, decode, confirmed, now_ms
        self._log, self._events, self._polled = log, events, polled
        self._etag = ""
        self._last_error: str | None = None  # "" after a success, None before the first poll
        self.value: T | None = None
        self._confirmed_ms: int | None = None  # when the timekeeper last answered with the value or a 304
        self.was_polled = False

    def is_older_than(self, age_ms: int) -> bool:
        """Whether there is no value, or none that was confirmed within this time."""
        confirmed_ms = self._confirmed_ms
        return confirmed_ms is None or self._now_ms() - confirmed_ms > age_ms

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
            now_ms = self._now_ms()
            if answer.is_new:
                self.value = self._decode(answer.body, answer.etag, now_ms)
            elif self.value is not None:
                self.value = self._confirmed(self.value, now_ms)
            self._etag, self._confirmed_ms = answer.etag, now_ms
        except FAILURES as error:
            error_text = f"{type(error).__name__}: {http_client.sentence(error, TIMEOUT_S)}"
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
