"""Calls a WSGI application (PEP 3333) for a request that is whole, in a thread of the worker's pool."""

import io
import sys
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from timekeeper.runtime.http.service import WITHOUT_BODY, Handler, HttpAnswer, HttpRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

REQUEST = "bursar.request"  # in the environment: the `HttpRequest`


def wsgi_handler(app: "WSGIApplication", scheme: str) -> Handler:
    """The application as a handler of requests."""

    def handle(request: HttpRequest) -> HttpAnswer:
        started: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started[:] = status, headers

        pieces = app(environ(request, scheme), start_response)
        body = _Pieces(pieces, iter(pieces))
        status, headers = started
        code = HTTPStatus(int(status[:3]))
        kind, more, is_whole = "", [], not pieces or code in WITHOUT_BODY
        for name, value in headers:
            if name.lower() == "content-type":
                kind = value
            elif name.lower() != "date":  # the worker writes it
                more.append((name, value))
                is_whole |= name.lower() == "content-length"
        return HttpAnswer(code, kind, body.joined() if is_whole else body, more)

    return handle


def environ(request: HttpRequest, scheme: str) -> dict[str, Any]:
    """The request as PEP 3333 wants it, and itself as `REQUEST`."""
    head = request.head
    made = {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1"),
        "QUERY_STRING": head.query,
        "RAW_URI": head.target,
        "SERVER_NAME": request.server[0],
        "SERVER_PORT": str(request.server[1]),
        "SERVER_PROTOCOL": "HTTP/{}.{}".format(*head.version),
        "REMOTE_ADDR": request.client[0],
        "REMOTE_PORT": str(request.client[1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        REQUEST: request,
    }
    for name, value in head.fields.items():
        made["HTTP_" + name.replace("-", "_")] = value
    made["CONTENT_TYPE"] = made.pop("HTTP_CONTENT_TYPE", "")
    made.pop("HTTP_CONTENT_LENGTH", None)
    made["CONTENT_LENGTH"] = str(len(request.body))
    return made


class _Pieces:
    """What the application returns, begun: it may call ``start_response`` as late as with its first piece."""

    def __init__(self, pieces: Iterable[bytes], rest: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, rest
        try:
            self._first = next(rest, b"")
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        yield from self._rest

    def close(self) -> None:
        """Ends the application's work on this answer."""
        if hasattr(self._pieces, "close"):
            self._pieces.close()

    def joined(self) -> bytes:
        """All pieces."""
        try:
            return b"".join(self)
        finally:
            self.close()
