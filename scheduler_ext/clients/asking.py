"""One question to the timekeeper, asked again and again over a connection that is kept."""

import http.client
import io
import socket
import ssl
import time
import zlib
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scheduler_ext.settings import Timekeeper

TIMEOUT_S = 2.0  # also for an answer as a whole
MOST_BYTES = 64 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_BROKEN = (http.client.HTTPException, zlib.error)


class UnheardError(Exception):
    """The timekeeper did not answer with what was asked for; the text says what happened."""


FAILURES = (UnheardError, OSError, ValueError, *_BROKEN)
"""What `Asking.get` raises."""


class Reply(NamedTuple):
    """A 200, or a 304 to the ETag that was sent."""

    is_new: bool
    etag: str
    body: bytes


class Asking:
    """``GET path`` of the timekeeper. The files of the token and of the CA are read before each question, for
    others renew them. To be used by one thread."""

    def __init__(self, timekeeper: Timekeeper, path: str) -> None:
        address = urlsplit(timekeeper.url)
        self._host, self._port = address.hostname or "", address.port or 443
        self._path = address.path.rstrip("/") + path
        self._settings = timekeeper
        self._connection: http.client.HTTPSConnection | None = None
        self._trusted = ""

    def get(self, etag: str) -> Reply:
        """The answer, which is not new where it still has this ETag. Raises one of `FAILURES`, TimeoutError
        where the whole of it has not come within TIMEOUT_S; the connection is then closed."""
        try:
            return self._get_again(etag)
        except FAILURES:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the connection; the next question opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get_again(self, etag: str) -> Reply:
        reused = self._connection is not None
        try:
            status, new_etag, body = self._get(etag)
        except (*_BROKEN, ConnectionError):
            if not reused:
                raise
            self.close()  # a kept-alive connection that the server had closed: that says nothing about it
            status, new_etag, body = self._get(etag)
        if status == http.client.NOT_MODIFIED and etag:
            return Reply(False, etag, b"")
        if status != http.client.OK:
            raise UnheardError(f"the timekeeper answered {status}")
        return Reply(True, new_etag, body)

    def _get(self, etag: str) -> tuple[int, str, bytes]:
        connection = self._connected()
        headers = {"Authorization": f"Bearer {self._token()}", "Accept-Encoding": "gzip"}
        if etag:
            headers["If-None-Match"] = etag
        if connection.sock is not None:
            connection.sock.settimeout(TIMEOUT_S)
        connection.request("GET", self._path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES + 1)
        if answer.headers.get("Content-Encoding") == "gzip" and body:
            body = zlib.decompressobj(_GZIP).decompress(body, MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise UnheardError("the answer is too large")
        return answer.status, answer.headers.get("ETag", ""), body

    def _token(self) -> str:
        token = self._settings.token_file.read_text(encoding="ascii").strip()
        if not token or not token.isprintable():
            raise UnheardError(f"{self._settings.token_file} holds no token")
        return token

    def _connected(self) -> http.client.HTTPSConnection:
        trusted = self._settings.ca.read_text(encoding="ascii")
        if trusted != self._trusted:
            self.close()
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
