"""Asks the timekeeper for the standings each second, so that no decision waits for it."""

import http.client
import ssl
import threading
import zlib
from collections.abc import Callable
from urllib.parse import urlsplit

from scheduler_ext.log import Log
from scheduler_ext.settings import Timekeeper
from scheduler_ext.standing import UNHEARD, Standings
from scheduler_ext.standing_table import Table, UndecodableTableError, decode, standings_at, still_good

PATH = "/v1/standings"
POLL_EVERY_S = 1.0
TIMEOUT_S = 2.0
MOST_BYTES = 64 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_BROKEN = (http.client.HTTPException, zlib.error)


class UnheardError(Exception):
    """The timekeeper did not answer with a table; the text says what happened."""


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
        self._standings = UNHEARD
        self._connection: http.client.HTTPSConnection | None = None
        self._trusted = ""
        self._last_trouble: str | None = None

    def standings(self) -> Standings:
        """What the last good table says, as of the last poll; the same object while that says the same."""
        return self._standings

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
        now_ms = self._now_ms()
        says = standings_at(self._table, now_ms, self._settings.stale_after_ms)
        if says != self._standings:
            self._standings = says
        age_s = -1.0 if self._table is None else (now_ms - self._table.heard_ms) / 1000
        self._polled("failed" if trouble else "heard", age_s)

    def _ask(self) -> Table:
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
            self._trusted = trusted
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
