"""Asks the timekeeper for the standings each second, so that no decision waits for it."""

import http.client
import io
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scheduler_ext.log import Log
from scheduler_ext.settings import Timekeeper
from scheduler_ext.standing import UNHEARD, Standings
from scheduler_ext.standing_table import Table, UndecodableTableError, decode, standings_at, still_good

PATH = "/v1/standings"
POLL_EVERY_S = 1.0
TIMEOUT_S = 2.0  # also for an answer as a whole
MOST_BYTES = 64 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_BROKEN = (http.client.HTTPException, zlib.error)


class UnheardError(Exception):
    """The timekeeper did not answer with a table; the text says what happened."""


class _InTime(io.RawIOBase):
    """What a socket gives until a moment; TimeoutError after it, however steadily a little more comes."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock, self._until_s = sock, until_s

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: Any) -> int:
        """As soon as there is anything."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the answer has not come within {TIMEOUT_S} s")
        self._sock.settimeout(left_s)
        return self._sock.recv_into(into)


class _Answer(http.client.HTTPResponse):
    """One whose head and body have to come within TIMEOUT_S together."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_InTime(sock, time.monotonic() + TIMEOUT_S))


class _Said(NamedTuple):
    """What a table says, and until when it does."""

    table: Table | None
    standings: Standings
    until_ms: float


class Poller:
    """Polls ``GET /v1/standings`` and holds the last good table, whatever happens to the timekeeper.

    The files of the token and of the CA are read before each poll, for others renew them. ``now_ms``: a
    monotonic clock; ``polled`` is told of each poll: ``heard`` or ``failed``, and the table's age in seconds,
    -1 before the first.
    """

    def __init__(
        self,
        timekeeper: Timekeeper,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str, float], None],
    ) -> None:
        address = urlsplit(timekeeper.url)
        self._host, self._port = address.hostname or "", address.port or 443
        self._path = address.path.rstrip("/") + PATH
        self._settings, self._now_ms, self._log, self._polled = timekeeper, now_ms, log, polled
        self._table: Table | None = None
        self._said = _Said(None, UNHEARD, inf)
        self._aging = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None
        self._trusted = ""
        self._last_trouble: str | None = None

    def standings(self) -> Standings:
        """What the last good table says now, however long a poll takes; the same object while that is the
        same."""
        said = self._said
        if said.table is self._table and self._now_ms() < said.until_ms:
            return said.standings
        with self._aging:
            table, now_ms, stale_ms = self._table, self._now_ms(), self._settings.stale_after_ms
            says = standings_at(table, now_ms, stale_ms)
            if says == self._said.standings:
                says = self._said.standings
            self._said = _Said(table, says, _until_ms(table, now_ms, stale_ms))
            return says

    def run(self, stop: threading.Event) -> None:
        """Polls until ``stop``."""
        while not stop.is_set():
            self.poll()
            stop.wait(POLL_EVERY_S)
        self._drop()

    def poll(self) -> None:
        """Asks once. A failure leaves the table as it is, which then ages."""
        try:
            trouble = ""
            self._table = self._ask()
        except (UnheardError, UndecodableTableError, OSError, ValueError, *_BROKEN) as error:
            self._drop()
            trouble = f"{type(error).__name__}: {error}"
        if trouble != self._last_trouble:
            self._log("standings-unheard" if trouble else "standings-heard", error=trouble or "none")
        self._last_trouble = trouble
        age_s = -1.0 if self._table is None else (self._now_ms() - self._table.heard_ms) / 1000
        self._polled("failed" if trouble else "heard", age_s)

    def _ask(self) -> Table:
        """Raises TimeoutError where the whole answer has not come within TIMEOUT_S."""
        reused = self._connection is not None
        try:
            status, etag, body = self._get()
        except (*_BROKEN, ConnectionError):
            if not reused:
                raise
            self._drop()  # a kept-alive connection that the server had closed: that says nothing about it
            status, etag, body = self._get()
        if status == http.client.NOT_MODIFIED and self._table is not None:
            return still_good(self._table, self._now_ms())
        if status != http.client.OK:
            raise UnheardError(f"the timekeeper answered {status}")
        return decode(body, etag, self._now_ms())

    def _get(self) -> tuple[int, str, bytes]:
        connection = self._connected()
        headers = {"Authorization": f"Bearer {self._token()}", "Accept-Encoding": "gzip"}
        if self._table is not None and self._table.etag:
            headers["If-None-Match"] = self._table.etag
        if connection.sock is not None:
            connection.sock.settimeout(TIMEOUT_S)
        connection.request("GET", self._path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES + 1)
        if answer.headers.get("Content-Encoding") == "gzip" and body:
            body = zlib.decompressobj(_GZIP).decompress(body, MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise UnheardError("the table of standings is too large")
        return answer.status, answer.headers.get("ETag", ""), body

    def _token(self) -> str:
        token = self._settings.token_file.read_text(encoding="ascii").strip()
        if not token or not token.isprintable():
            raise UnheardError(f"{self._settings.token_file} holds no token")
        return token

    def _connected(self) -> http.client.HTTPSConnection:
        trusted = self._settings.ca.read_text(encoding="ascii")
        if trusted != self._trusted:
            self._drop()
        if self._connection is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_verify_locations(cadata=trusted)
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
            self._connection.response_class = _Answer
            self._trusted = trusted
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _until_ms(table: Table | None, now_ms: int, stale_after_ms: int) -> float:
    """When what the table says may change by the clock alone: as it gets stale, at each end of an entry."""
    if table is None:
        return inf
    entries = (table.default, *table.namespaces.values())
    ahead_ms = table.read_ms - table.generated_ms
    ends = (each.valid_until_ms + ahead_ms for each in entries if each.valid_until_ms is not None)
    return min((at for at in (table.heard_ms + stale_after_ms + 1, *ends) if at > now_ms), default=inf)
