"""Where a request begins and ends: the bounds of HTTP/1.1 heads and bodies, and the rules against request
smuggling (RFC 9112, sections 6 and 11.2), for the servers of webhook, extender and timekeeper.

Heads are parsed by gunicorn's own parser. A client repeats its head with each request, so each connection
remembers the last few heads, whatever their Content-Length. kube-scheduler keeps two connections of many, so
heads without a secret are also remembered beyond the connection.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

from gunicorn import http
from gunicorn.config import Config
from gunicorn.http import errors

MAX_HEAD_BYTES = 64 * 1024

_REMEMBERED_HEADS = 8  # of one connection; kube-scheduler has about four
_LARGEST_REMEMBERED_BYTES = 4 * 1024

_HEAD_END = b"\r\n\r\n"
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
_LENGTH_FIELD = re.compile(rb"\r\n[ \t]*content-length[ \t]*:[ \t]*([^\r]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_TRANSFER_ENCODING = re.compile(rb"\r\n[ \t]*transfer-encoding[ \t]*:", re.IGNORECASE)
_SECRET = re.compile(rb"\r\n(?:authorization|cookie)", re.IGNORECASE)
_DECIMAL = re.compile(rb"[0-9]+")

_STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (errors.LimitRequestLine, HTTPStatus.REQUEST_URI_TOO_LONG),
    (errors.LimitRequestHeaders, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    (errors.ExpectationFailed, HTTPStatus.EXPECTATION_FAILED),
)

_PARSER_SETTINGS = Config()
_PARSER_SETTINGS.set("forwarded_allow_ips", "")  # a header says nothing of the client's address or scheme


class RejectedRequestError(Exception):
    """Bytes that are no request which can be answered. Where the next request begins is unknown, so the
    connection ends with the answer."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A parsed head. ``path`` is still percent-encoded; ``fields`` have upper-case names, and the values of a
    repeated field joined by commas. ``lines``: each field as it was sent; a value may have a comma."""

    method: str
    path: str
    query: str
    target: str
    version: tuple[int, int]
    fields: Mapping[str, str]
    lines: tuple[tuple[str, str], ...]
    closes: bool  # the client wants the connection to end with the answer
    expects_continue: bool


class RequestReader:
    """Cuts the bytes of one connection into whole requests."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self.buffer = bytearray()  # what the client has sent and `next` has not returned yet
        self._searched = 0  # where the search for the end of the head goes on
        self._head: RequestHead | None = None  # of the request that the bytes begin with, once it is whole
        self._head_bytes = 0
        self._request_bytes = 0
        self._heads: dict[bytes, RequestHead] = {}
        self.must_continue = False  # the client waits for "100 Continue" before it sends the body

    def clear(self) -> None:
        """Forgets what is not answered yet."""
        self.buffer.clear()
        self._head = None
        self._searched = 0

    def next(self) -> tuple[RequestHead, bytes] | None:
        """The next request with its body; None while it is not whole. Raises RejectedRequestError."""
        head = self._head or self._read_head()
        if head is None or len(self.buffer) < self._request_bytes:
            return None
        body = bytes(memoryview(self.buffer)[self._head_bytes : self._request_bytes])
        del self.buffer[: self._request_bytes]
        self._head = None
        self._searched = 0
        return head, body

    def _read_head(self) -> RequestHead | None:
        if not self.buffer:
            return None
        end = self.buffer.find(_HEAD_END, self._searched)
        if end < 0:
            _check_head(self.buffer, max(0, self._searched - 1))  # one with bare line ends would never end
            self._searched = max(0, len(self.buffer) - 3)
            return None
        text = bytes(self.buffer[: end + 4])
        length, key = 0, text
        if found := _LENGTH.search(text):
            length, key = int(found[1]), text[: found.start(1)] + b"0" + text[found.end(1) :]
        head = self._heads.get(key)
        if head is None:
            length = _body_length(text)
        if length > self._max_body_bytes:
            raise RejectedRequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {self._max_body_bytes} bytes at most"
            )
        if head is None:
            head = _parse(key)
            self._remember(key, head)
        self._head, self._head_bytes, self._request_bytes = head, end + 4, end + 4 + length
        self.must_continue = head.expects_continue
        return head

    def _remember(self, key: bytes, head: RequestHead) -> None:
        if len(key) > _LARGEST_REMEMBERED_BYTES:
            return
        if len(self._heads) >= _REMEMBERED_HEADS:
            self._heads.clear()
        self._heads[key] = head


def _check_head(text: bytes | bytearray, start: int = 0) -> None:
    if _BARE_LINE_END.search(text, start):
        raise _bad("a line of the head ends with a bare CR or LF; each must end with CRLF")
    if len(text) > MAX_HEAD_BYTES:
        raise RejectedRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head has more than {MAX_HEAD_BYTES} bytes"
        )


def _body_length(text: bytes) -> int:
    """The one length that the head gives its body, 0 without one. Raises RejectedRequestError."""
    _check_head(text)
    lengths = _LENGTH_FIELD.findall(text)
    if _TRANSFER_ENCODING.search(text):
        if lengths:
            raise _bad("the head has both Transfer-Encoding and Content-Length")
        raise RejectedRequestError(
            HTTPStatus.LENGTH_REQUIRED,
            "send the body with its Content-Length; Transfer-Encoding is not supported",
        )
    if len(lengths) > 1:
        raise _bad("Content-Length occurs more than once")
    if not lengths:
        return 0
    if not _DECIMAL.fullmatch(lengths[0]):
        raise _bad("Content-Length must be one decimal number, as in: 120")
    digits = lengths[0].lstrip(b"0")
    return int(digits[:15] or b"0") if len(digits) <= 15 else 10**15


def _parse(text: bytes) -> RequestHead:
    """The head, of which any client may have sent the same bytes before. Raises RejectedRequestError."""
    may_be_kept = len(text) <= _LARGEST_REMEMBERED_BYTES and not _SECRET.search(text)
    return _parsed_once(text) if may_be_kept else _parsed(text)


def _parsed(text: bytes) -> RequestHead:
    """The head as gunicorn's parser reads it. Raises RejectedRequestError."""
    try:
        request = next(http.get_parser(_PARSER_SETTINGS, [text], ("", 0)))
    except Exception as error:  # the parser also raises OSError and StopIteration
        status = next(
            (status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.BAD_REQUEST
        )
        raise RejectedRequestError(status, str(error) or "the head is empty") from error
    fields: dict[str, str] = {}
    for name, value in request.headers:
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    continues = request.version >= (1, 1) and fields.get("EXPECT", "").lower() == "100-continue"
    return RequestHead(
        request.method,
        request.path or "/",
        request.query or "",
        request.uri,
        request.version,
        fields,
        tuple(request.headers),
        bool(request.should_close()),
        continues,
    )


_parsed_once = lru_cache(maxsize=64)(_parsed)


def _bad(sentence: str) -> RejectedRequestError:
    return RejectedRequestError(HTTPStatus.BAD_REQUEST, sentence)
