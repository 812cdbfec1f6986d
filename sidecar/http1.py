"""One HTTP/1.1 request and response over a stream of bytes (RFC 9112), without redirects and upgrades.

``http.client`` would import the ``email`` package: 2 MiB in every GPU pod, a tenth of all that the sidecar
may take.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from typing import BinaryIO

MAX_HEADERS = 64
MAX_LINE = 8_192
MAX_BODY = 262_144


class NotHTTP(ValueError):
    """The response is not HTTP/1.1 or exceeds a bound; the text says which."""


class ConnectionClosed(ConnectionError):
    """The server closed the connection before it answered."""


@value
class HttpResponse:
    """A response that was read whole."""

    status: int
    body: bytes
    keep: bool  # the connection may carry another request


def request(authority: str, path: str, token: str, body: bytes) -> bytes:
    """The bytes of a ``POST`` of JSON with a bearer token."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def response(stream: BinaryIO) -> HttpResponse:
    """Reads the next final response. Raises `ConnectionClosed` or `NotHTTP`."""
    status = 100
    while 100 <= status < 200:
        version, status = _status(_line(stream))
        headers = _headers(stream)
    body, framed = _body(stream, status, headers)
    keep = framed and version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return HttpResponse(status, body, keep)


def _line(stream: BinaryIO) -> str:
    line = stream.readline(MAX_LINE)
    if not line:
        raise ConnectionClosed("the connection was closed without an answer")
    if not line.endswith(b"\n"):
        raise NotHTTP("a line of the answer is cut off or too long")
    return line.decode("latin-1").rstrip("\r\n")


def _status(line: str) -> tuple[str, int]:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.0", "HTTP/1.1") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise NotHTTP("the server does not speak HTTP/1.1")
    return version, int(code)


def _headers(stream: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = _line(stream)
        if not line:
            return headers
        name, _, text = line.partition(":")
        headers[name.strip().lower()] = text.strip()
    raise NotHTTP("the answer has too many headers")


def _body(stream: BinaryIO, status: int, headers: dict[str, str]) -> tuple[bytes, bool]:
    """The body, and whether the headers marked its end (rather than the end of the connection)."""
    if status in (204, 304):
        return b"", True
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _chunks(stream), True
    if "content-length" in headers:
        return _exactly(stream, _length(headers["content-length"], 10)), True
    body = stream.read(MAX_BODY + 1)
    _check_size(body)
    return body, False


def _chunks(stream: BinaryIO) -> bytes:
    body = bytearray()  # appending bytes would copy the body for each chunk
    while size := _length(_line(stream).partition(";")[0], 16):
        body += _exactly(stream, size)
        _check_size(body)
        _line(stream)
    _headers(stream)
    return bytes(body)


def _length(text: str, base: int) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        raise NotHTTP("the answer has no readable length") from None


def _exactly(stream: BinaryIO, size: int) -> bytes:
    if not 0 <= size <= MAX_BODY:
        raise NotHTTP("the answer is too long")
    body = stream.read(size)
    if len(body) < size:
        raise NotHTTP("the answer is cut off")
    return body


def _check_size(body: bytes | bytearray) -> None:
    if len(body) > MAX_BODY:
        raise NotHTTP("the answer is too long")
