"""The thread that keeps the table of standings a second old, so that no review waits for the timekeeper."""

import http.client
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from timekeeper.runtime.log import Log
from webhook.metrics import Metrics
from webhook.reloaded import client_context
from webhook.standings.table import StandingsTable, UndecodableStandingsError, confirmed, decode

PATH = "/v1/standings"
POLL_EVERY_S = 1.0
TIMEOUT_S = 2.0
MOST_BYTES = 64 * 1024 * 1024
GZIP = 16 + zlib.MAX_WBITS
BROKEN = (http.client.HTTPException, zlib.error)


class UnheardError(Exception):
    """The timekeeper did not answer with a table; the text says what happened."""


class Standings:
    """Polls ``GET /v1/standings`` and holds the last good table, whatever happens to the timekeeper.

    ``ca`` gives the PEM text to verify the timekeeper by, None while there is none; the token file is read
    before each poll, for the kubelet renews it.
    """

    def __init__(
        self,
        url: str,
        token_file: Path,
        ca: Callable[[], str | None],
        now_ms: Callable[[], int],
        log: Log,
        metrics: Metrics,
    ) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 443
        self._path = address.path.rstrip("/") + PATH
        self._token_file, self._ca, self._now_ms = token_file, ca, now_ms
        self._log, self._metrics = log, metrics
        self._table: StandingsTable | None = None
        self._asked = False
        self._connection: http.client.HTTPSConnection | None = None
        self._trusted = ""
        self._last_trouble: str | None = None
        self._ended = threading.Event()

    def table(self) -> StandingsTable | None:
        """The last good table; None before the first."""
        return self._table

    def asked(self) -> bool:
        """True once the timekeeper has been asked, whether it answered or not."""
        return self._asked

    def start(self) -> None:
        """Starts polling; in a worker, after the fork, for threads do not survive one."""
        threading.Thread(target=self._run, name="standings", daemon=True).start()

    def end(self) -> None:
        """Asks the thread to end after the poll that it is at."""
        self._ended.set()

    def poll(self) -> None:
        """Asks once. A failure leaves the table as it is, which then ages."""
        try:
            self._table = self._ask()
            trouble = ""
        except (UnheardError, UndecodableStandingsError, OSError, ValueError, *BROKEN) as error:
            self._drop()
            trouble = f"{type(error).__name__}: {error}"
        if trouble != self._last_trouble:
            if trouble:
                self._log("standings-unheard", level="warning", error=trouble)
            else:
                self._log("standings-heard")
        self._last_trouble = trouble
        self._asked = True
        age_s = -1.0 if self._table is None else (self._now_ms() - self._table.confirmed_ms) / 1000
        self._metrics.polled("failed" if trouble else "heard", age_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.poll()
            self._ended.wait(POLL_EVERY_S)
        self._drop()

    def _ask(self) -> StandingsTable:
        reused = self._connection is not None
        try:
            status, etag, body = self._get()
        except (http.client.HTTPException, ConnectionError):
            if not reused:
                raise
            self._drop()  # a kept-alive connection that the server had closed: that says nothing about it
            status, etag, body = self._get()
        if status == http.client.NOT_MODIFIED and self._table is not None:
            return confirmed(self._table, self._now_ms())
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
            body = zlib.decompressobj(GZIP).decompress(body, MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise UnheardError("the table of standings is too large")
        return answer.status, answer.headers.get("ETag", ""), body

    def _token(self) -> str:
        token = self._token_file.read_text(encoding="ascii").strip()
        if not token or not token.isprintable():
            raise UnheardError(f"{self._token_file} holds no token")
        return token

    def _connected(self) -> http.client.HTTPSConnection:
        ca = self._ca()
        if ca is None:
            raise UnheardError("no CA bundle to verify the timekeeper by")
        if ca != self._trusted:
            self._drop()
        if self._connection is None:
            context = client_context(ca)
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
            self._trusted = ca
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
