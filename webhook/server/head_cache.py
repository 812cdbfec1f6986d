"""The heads of requests and answers, by gunicorn's own code: what has been parsed once is known from then on,
for an API server sends the same head with each review."""

import re
import time
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

from gunicorn import http, util
from gunicorn.http import wsgi

from webhook.server.connection import Connection

_EXPECT = re.compile(rb"\r\nexpect:", re.IGNORECASE)
_STATUS_LINES = {each: f"{each.value} {each.phrase}" for each in HTTPStatus}
_MOST = 256  # that are known at a time, and
_LONGEST_BYTES = 4 * 1024  # what is longer comes from no API server


class Head(NamedTuple):
    """A request's head: gunicorn's request, the environ that is the same for all with this head, and whether
    the client wants the connection to end with the answer."""

    request: Any
    environ: dict[str, Any]
    ends: bool


class Heads:
    """What gunicorn, with this configuration, makes of heads."""

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._known: dict[bytes, Head] = {}

    def of(self, connection: Connection) -> Head:
        """What gunicorn makes of the head. It raises what gunicorn raises for a bad one."""
        known = self._known.get(connection.head)
        if known is None:
            request = next(http.get_parser(self._cfg, [connection.head], connection.client))
            _, environ = wsgi.create(request, connection, connection.client, connection.server, self._cfg)
            for each in ("gunicorn.socket", "wsgi.early_hints"):
                del environ[each]  # these are of one request
            known = Head(request, environ, request.should_close())
            self._remember(connection.head, known)
        return known

    def _remember(self, head: bytes, known: Head) -> None:
        if len(head) > _LONGEST_BYTES or _EXPECT.search(head):
            return  # to understand an Expect is to answer it, each time
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[head] = known


class Response(wsgi.Response):  # type: ignore[misc]
    """gunicorn's, which composes the date anew for each answer and tells what serves."""

    def default_headers(self) -> list[str]:
        """The lines that every answer begins with."""
        connection = "close" if self.should_close() else "keep-alive"
        first = f"HTTP/1.1 {self.status}\r\nDate: {_date(int(time.time()))}\r\nConnection: {connection}\r\n"
        return [first, "Transfer-Encoding: chunked\r\n"] if self.chunked else [first]


def of_answer(status: HTTPStatus, kind: str, length: int, ends: bool) -> bytes:
    """The head of a whole answer, as `Response` would write it. The words are ours, so nothing in them is
    checked."""
    connection = "close" if ends else "keep-alive"
    return (
        f"HTTP/1.1 {_STATUS_LINES[status]}\r\n"
        f"Date: {_date(int(time.time()))}\r\nConnection: {connection}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("ascii")


@lru_cache(maxsize=1)
def _date(_second: int) -> str:
    return str(util.http_date())
