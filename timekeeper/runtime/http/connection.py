"""One client's connection: its socket, what it has sent, and what it is still to be sent."""

import fcntl
import select
import selectors
import socket
import ssl
import sys
import termios
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from gunicorn import util

from timekeeper.runtime.http.framing import RequestReader
from timekeeper.runtime.http.service import WITHOUT_BODY, HttpAnswer

WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)

_TLS_RECORD_BYTES = 16 * 1024
_PLAIN_RECEIVE_BYTES = 256 * 1024
_UNSENT_BYTES = 256 * 1024  # of an answer in pieces; before the next piece the client must take some
_ALERT_BYTES = 64  # of TLS, at the end of a connection: not of an answer
KEPT_WAITING_S = 600.0  # by all pieces of an answer: the database may keep a snapshot open for it
_LOOK_S = 1.0  # whether the client still may keep them waiting

# For how long, as of now, a client may keep the pieces waiting that this thread sends.
PATIENCE_S: ContextVar[Callable[[], float]] = ContextVar("PATIENCE_S")

_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n" for each in HTTPStatus}


class HttpConnection:
    """A client's connection. While it is ``busy``, a thread or a later reply has it, and the loop leaves its
    socket alone."""

    def __init__(
        self,
        sock: socket.socket,
        client: Any,
        max_body_bytes: int,
        until: float,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sock, self.client, self._seconds = sock, client, seconds
        self.server = sock.getsockname()[:2]
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self.reader = RequestReader(max_body_bytes)
        self.outbox = bytearray()  # composed and not sent yet
        self.rest = memoryview(b"")  # of a body that other connections may be sending too; it follows
        self.until = until  # when it is closed if the next thing has not happened
        self.is_ready = not self.is_tls  # the handshake is done
        self.is_verified = False  # the client has shown a certificate of the client CA
        self.answered_at = 0.0
        self.busy = False  # a request is being answered
        self.busy_bytes = 0  # the size of its body
        self.ending = False  # no further request is answered
        self.closed = False
        self.failed = False  # a thread could not send its answer
        self.events = selectors.EVENT_READ  # what the loop waits for; 0: for nothing

    def send(self) -> None:
        """Sends what the socket takes. Raises SSLError or BlockingIOError if that is not all."""
        while self.outbox:
            sent = self.sock.send(self.outbox)
            del self.outbox[:sent]
            if not self.outbox:
                self._fill()

    def _fill(self) -> None:
        self.outbox += self.rest[:_UNSENT_BYTES]
        self.rest = self.rest[_UNSENT_BYTES:] or memoryview(b"")  # an empty part would keep the whole body

    def untaken(self) -> int:
        """How many bytes of answers the client has not acknowledged: in the outbox and in the kernel."""
        queued = fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4))
        return len(self.outbox) + max(0, int.from_bytes(queued, sys.byteorder) - _ALERT_BYTES)

    def receive(self) -> tuple[bytes, bool]:
        """What has arrived, and whether more may wait. Raises EOFError at the end."""
        most = _TLS_RECORD_BYTES if self.is_tls else _PLAIN_RECEIVE_BYTES
        received = self.sock.recv(most)
        if not received:
            raise EOFError
        return received, len(received) == most

    def compose(self, answer: HttpAnswer, closes: bool) -> None:
        """Puts a whole answer into the outbox."""
        body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        self.outbox += _head(answer, closes, len(body))
        self.rest = memoryview(body)
        self._fill()

    def send_pieces(self, answer: HttpAnswer, pieces: Iterable[bytes], closes: bool, chunked: bool) -> None:
        """In a thread: sends an answer while it is made. Raises TimeoutError if the client keeps its pieces
        waiting for longer than PATIENCE_S, and OSError if it has left, or takes nothing (`acceptor`)."""
        waited_s = 0.0
        try:
            self.outbox += _head(answer, closes, None, chunked)
            for piece in pieces:
                self.outbox += b"%x\r\n%b\r\n" % (len(piece), piece) if chunked and piece else piece
                waited_s = self._send_most(waited_s)
            self.outbox += b"0\r\n\r\n" if chunked else b""
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    def _send_most(self, waited_s: float) -> float:
        """For how many seconds the client has kept it waiting, beside those before."""
        began_s = self._seconds() - waited_s
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        while True:
            with suppress(*WOULD_BLOCK):
                self.send()
            waited_s = self._seconds() - began_s
            if waited_s > PATIENCE_S.get(lambda: KEPT_WAITING_S)():
                raise TimeoutError("the client takes the answer too slowly")
            if len(self.outbox) <= _UNSENT_BYTES:
                return waited_s
            poll.poll(1000 * _LOOK_S)


def _head(answer: HttpAnswer, closes: bool, length: int | None, chunked: bool = False) -> bytes:
    lines = (
        f"{_STATUS_LINES[answer.status]}Date: {_date(int(time.time()))}\r\n"
        f"Connection: {'close' if closes else 'keep-alive'}\r\n"
    )
    if answer.content_type:
        lines += f"Content-Type: {answer.content_type}\r\n"
    for name, value in answer.headers:
        lines += f"{name}: {value}\r\n"
        if name.lower() == "content-length":
            length = None
    if length is not None and answer.status not in WITHOUT_BODY:
        lines += f"Content-Length: {length}\r\n"
    if chunked:
        lines += "Transfer-Encoding: chunked\r\n"
    return f"{lines}\r\n".encode("latin-1")


@lru_cache(maxsize=1)
def _date(_second: int) -> str:
    return str(util.http_date())
