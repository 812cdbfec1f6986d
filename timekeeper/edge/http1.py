"""Requests and responses of HTTP/1.1 over a stream of bytes (RFC 9112), without redirects and upgrades.

``http.client`` would import the ``email`` package: 2 MiB in every GPU pod, a tenth of all that the sidecar
may take. What is not framed as the RFC says is an error, and so is what exceeds a bound.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from io import BufferedReader
    from typing import Any

    Stream = BufferedReader[Any]
    RequestHeaders = Mapping[str, str | tuple[str, ...]]  # of several texts each has a line of its own

MAX_HEADERS = 128
MAX_LINE = 16_384
MAX_BODY = 64 << 20  # of an answer, or of a line of a stream
PIECE = 1 << 18


class NotHTTP(ValueError):
    """The response is not HTTP/1.1 or exceeds a bound; the text says which."""


class TooLong(NotHTTP):
    """What the server sends exceeds the bound."""


class ConnectionClosed(ConnectionError):
    """The server closed the connection before it answered."""


@value
class ResponseHead:
    """What precedes the body. ``keep``: the connection may carry another request afterwards."""

    status: int
    headers: Mapping[str, str]  # names in small letters; lines of one name are joined by commas, cookies not
    keep: bool


@value
class HttpResponse:
    """A response that was read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(method: str, authority: str, path: str, headers: RequestHeaders, body: bytes | None) -> bytes:
    """The bytes of a request. Raises ValueError for a letter that no head may hold, without quoting any."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {authority}"]
    for name, texts in headers.items():
        lines += [f"{name}: {text}" for text in ((texts,) if isinstance(texts, str) else texts)]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if " " in path or not all(line.isascii() and line.isprintable() for line in lines):
        raise ValueError("a path or a header holds a letter that it may not")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


def head(stream: Stream) -> ResponseHead:
    """Reads up to the body of the next final response. Raises ConnectionClosed, NotHTTP or OSError."""
    status = 100
    while 100 <= status < 200:
        version, status = _status(_line(stream, is_first=True))
        headers = _headers(stream)
    framed = status in (204, 304) or "content-length" in headers or "transfer-encoding" in headers
    ends = version == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
    return ResponseHead(status, headers, framed and not ends)


def body(stream: Stream, head: ResponseHead, most: int = MAX_BODY) -> bytes:
    """The whole body, unpacked where the server packed it. Raises NotHTTP or OSError."""
    whole = bytearray()  # appending bytes would copy the body for each piece
    for piece in _unpacked(parts(stream, head, most), head, most):
        whole += piece
        if len(whole) > most:
            raise TooLong(f"the answer is too long: more than {most} bytes")
    return bytes(whole)


def lines(stream: Stream, head: ResponseHead) -> Iterator[bytes]:
    """The lines of a body that may go on for long, without their ends and without empty ones. What follows
    the last end of a line is not yielded. Raises NotHTTP or OSError."""
    if "content-encoding" in head.headers:
        raise NotHTTP("the answer is packed")
    rest = bytearray()
    for piece in parts(stream, head):
        if b"\n" in piece:
            *whole, last = (bytes(rest) + piece if rest else piece).split(b"\n")
            rest = bytearray(last)
            yield from filter(None, whole)
        else:
            rest += piece
        if len(rest) > MAX_BODY:
            raise TooLong("a line of the answer is too long")


def parts(stream: Stream, head: ResponseHead, most: int | None = None) -> Iterator[bytes]:
    """The body as it arrives. Raises NotHTTP or OSError; the first also where the server says that there is
    more than ``most``."""
    coding = head.headers.get("transfer-encoding")
    if head.status in (204, 304):
        return
    if coding is not None:
        if coding.lower() != "chunked" or "content-length" in head.headers:
            raise NotHTTP("the answer has no readable length")
        yield from _chunks(stream, most)
    elif "content-length" in head.headers:
        yield from _exactly(stream, _length(head.headers["content-length"], "0123456789", 10, most))
    else:
        while piece := stream.read1(PIECE):
            yield piece


def _line(stream: Stream, *, is_first: bool = False) -> str:
    line = stream.readline(MAX_LINE)
    if not line and is_first:
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


def _headers(stream: Stream) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = _line(stream)
        if not line:
            return headers
        name, _, text = line.partition(":")
        name, text = name.strip().lower(), text.strip()
        mark = "\n" if name == "set-cookie" else ", "  # a cookie may have commas of its own
        headers[name] = f"{headers[name]}{mark}{text}" if name in headers else text
    raise NotHTTP("the answer has too many headers")


def _chunks(stream: Stream, most: int | None) -> Iterator[bytes]:
    while size := _length(_line(stream).partition(";")[0].strip(), "0123456789abcdefABCDEF", 16, most):
        yield from _exactly(stream, size)
        if _line(stream):
            raise NotHTTP("a part of the answer is longer than it says")
    _headers(stream)


def _length(text: str, digits: str, base: int, most: int | None) -> int:
    if not text or text.strip(digits):
        raise NotHTTP("the answer has no readable length")
    if len(text) > 18 or (most is not None and int(text, base) > most):
        raise TooLong("the answer is too long" + ("" if most is None else f": more than {most} bytes"))
    return int(text, base)


def _exactly(stream: Stream, size: int) -> Iterator[bytes]:
    while size:
        piece = stream.read(min(size, PIECE))
        if len(piece) < min(size, PIECE):
            raise NotHTTP("the answer is cut off")
        size -= len(piece)
        yield piece


def _unpacked(pieces: Iterable[bytes], head: ResponseHead, most: int) -> Iterator[bytes]:
    if head.headers.get("content-encoding", "").lower() != "gzip":
        yield from pieces
        return
    import zlib  # 0.1 MiB; a sidecar asks for nothing packed

    packed = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for piece in pieces:
            yield packed.decompress(piece, most + 1)
        if not packed.eof and head.status not in (204, 304):
            raise NotHTTP("the packed answer is cut off")
    except zlib.error as error:
        raise NotHTTP(f"the packed answer cannot be read: {error}") from None
