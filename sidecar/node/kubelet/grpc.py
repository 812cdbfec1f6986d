"""A unary gRPC call over a Unix socket: the part of HTTP/2 (RFC 9113) and of gRPC's protocol that it takes.

hpack reads and writes the headers. grpcio would double the agent's memory (docs/decisions/0020), and
h2 takes more than it gives (0109). A connection carries one call, which is bounded in time and size.
"""

from __future__ import annotations

import socket
import time

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpack import Decoder

MAX_MESSAGE = 4 << 20  # bytes; gRPC's own default

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM = 1
# types of frames
_DATA, _HEADERS, _RESET, _SETTINGS, _PUSH, _PING, _AWAY, _CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 9
# flags; in SETTINGS and PING the first marks an acknowledgement
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
# our settings: no pushes, a window for the whole answer
_ENABLE_PUSH, _WINDOW_SIZE = 2, 4
_DEFAULT_WINDOW = 65_535
_WINDOW_UPDATE = 8
_MAX_FRAME = 16_384  # the default, which a peer may send without another setting
_MAX_HEADERS = 16_384
_PREFIX = 5  # bytes before a message: whether it is compressed, its length
_MAX_TEXT = 200  # characters of the server's grpc-message, or of what hpack says


class CallFailed(Exception):
    """There is no answer. The text gives the reason, for a log line. ``status``: gRPC's code if the server
    sent one, else None."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


def call(path: str, method: str, message: bytes = b"", timeout_s: float = 5.0) -> bytes:
    """Calls ``method`` (``/package.Service/Name``) of the service behind the socket at ``path`` with a small
    ``message``, and returns the answer. Takes at most ``timeout_s``; raises `CallFailed`."""
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:

        def remaining() -> float:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            return remaining_s

        def read(count: int) -> bytes:
            taken = bytearray()
            while len(taken) < count:
                peer.settimeout(remaining())
                got = peer.recv(count - len(taken))
                if not got:
                    raise ConnectionError("the connection was closed before the answer was whole")
                taken += got
            return bytes(taken)

        try:
            peer.settimeout(remaining())
            peer.connect(path)
            return exchange(read, peer.sendall, method, message)
        except TimeoutError:
            raise CallFailed(f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise CallFailed(error.strerror or str(error)) from error


def exchange(
    read: Callable[[int], bytes], send: Callable[[bytes], object], method: str, message: bytes
) -> bytes:
    """The call over a new connection. ``read`` returns exactly that number of bytes, ``send`` sends all.
    Raises `CallFailed`, and what these two raise."""
    # memory that an agent need not spend on a node without a device plugin and claims
    from hpack import Decoder, Encoder, HPACKError

    headers = Encoder().encode(
        (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    body = b"\0" + len(message).to_bytes(4) + message
    request = _frame(_HEADERS, _END_HEADERS, _STREAM, headers) + _frame(_DATA, _END_STREAM, _STREAM, body)
    send(_PREFACE + _opening() + request)
    answer = _GrpcAnswer(send, Decoder(_MAX_HEADERS))
    while not answer.ended:
        head = read(9)
        length = int.from_bytes(head[:3])
        if length > _MAX_FRAME:
            raise CallFailed("the server does not speak HTTP/2, or ignores our settings")
        try:
            answer.take(head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF, read(length))
        except HPACKError as error:
            text = str(error)[:_MAX_TEXT]
            raise CallFailed(f"the answer's headers cannot be read: {text}") from error
    return answer.message()


def _opening() -> bytes:
    window = MAX_MESSAGE + _PREFIX
    settings = ((_ENABLE_PUSH, 0), (_WINDOW_SIZE, window))
    body = b"".join(number.to_bytes(2) + what.to_bytes(4) for number, what in settings)
    more = (window - _DEFAULT_WINDOW).to_bytes(4)
    return _frame(_SETTINGS, 0, 0, body) + _frame(_WINDOW_UPDATE, 0, 0, more)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


class _GrpcAnswer:
    """The part of the answer that has arrived. `take` raises `CallFailed`, and HPACKError for malformed
    headers."""

    def __init__(self, send: Callable[[bytes], object], decoder: Decoder) -> None:
        self._send, self._decoder = send, decoder
        self._headers: dict[str, str] = {}
        self._block = bytearray()
        self._body = bytearray()
        self._last = False
        self.ended = False

    def take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        """Handle the next frame. Unknown kinds are ignored, as the RFC requires."""
        if kind in (_SETTINGS, _PING):
            if not flags & _ACK:
                self._send(_frame(kind, _ACK, 0, body if kind == _PING else b""))
        elif kind == _AWAY:
            self._away(body)
        elif kind == _PUSH:
            raise CallFailed("the server pushes, although our settings disable it")
        elif stream == _STREAM:
            self._of_the_call(kind, flags, body)

    def message(self) -> bytes:
        """The message of the answer, once it has ended."""
        status = self._headers.get("grpc-status")
        if self._headers.get(":status") != "200" or status is None:
            raise CallFailed(f"no gRPC service answers there, but HTTP {self._headers.get(':status', '?')}")
        if status != "0":
            text = self._headers.get("grpc-message", "")[:_MAX_TEXT]
            raise CallFailed(text or f"gRPC status {status}", int(status) if status.isdecimal() else None)
        body = bytes(self._body)
        if len(body) < _PREFIX or body[0] or int.from_bytes(body[1:_PREFIX]) != len(body) - _PREFIX:
            raise CallFailed("the answer is not one plain message")
        return body[_PREFIX:]

    def _of_the_call(self, kind: int, flags: int, body: bytes) -> None:
        if kind == _DATA:
            self._take_data(_unpadded(flags, body))
            self.ended = bool(flags & _END_STREAM)
        elif kind == _HEADERS:
            self._last = bool(flags & _END_STREAM)
            body = _unpadded(flags, body)
            self._take_headers(flags, body[5:] if flags & _PRIORITY else body)
        elif kind == _CONTINUATION:
            self._take_headers(flags, body)
        elif kind == _RESET:
            raise CallFailed(f"the call was reset with HTTP/2 error {int.from_bytes(body)}")

    def _take_data(self, body: bytes) -> None:
        self._body += body
        # By the length in its prefix: our window takes no longer message, so it never arrives whole.
        if int.from_bytes(self._body[1:_PREFIX]) > MAX_MESSAGE or len(self._body) > MAX_MESSAGE + _PREFIX:
            raise CallFailed(f"the answer is longer than {MAX_MESSAGE} bytes")

    def _take_headers(self, flags: int, body: bytes) -> None:
        self._block += body
        if len(self._block) > _MAX_HEADERS:
            raise CallFailed("the answer's headers are too long")
        if not flags & _END_HEADERS:
            return
        for name, text in self._decoder.decode(bytes(self._block), raw=True):
            self._headers[name.decode("latin-1")] = text.decode("latin-1")
        self._block.clear()
        self.ended = self._last

    def _away(self, body: bytes) -> None:
        """GOAWAY: the server still answers the streams up to the one that it names."""
        last_stream, code = int.from_bytes(body[:4]) & 0x7FFFFFFF, int.from_bytes(body[4:8])
        if last_stream < _STREAM or code:
            raise CallFailed(f"the server closes the connection, with HTTP/2 error {code}")


def _unpadded(flags: int, body: bytes) -> bytes:
    if not flags & _PADDED:
        return body
    if not body or body[0] >= len(body):
        raise CallFailed("the server does not speak HTTP/2: a frame is all padding")
    return body[1 : len(body) - body[0]]
