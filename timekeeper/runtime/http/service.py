"""What a role gives `loop` to serve: its routes, its WSGI application for all other paths, and its
bounds."""

import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from timekeeper.runtime.http.framing import RequestHead

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


# After such a head a client reads the next answer.
WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class HttpAnswer(NamedTuple):
    """An answer. ``body``: all of it, or pieces that a thread of the pool sends one by one.

    The worker adds Date, Connection, and Content-Length where ``headers`` has none."""

    status: HTTPStatus
    content_type: str
    body: bytes | Iterable[bytes]
    headers: Sequence[tuple[str, str]] = ()


@dataclass(slots=True)
class HttpRequest:
    """A whole request. ``reply`` may be called by any thread, once, if the handler has returned None."""

    head: RequestHead
    body: bytes
    client: tuple[str, int]
    server: tuple[str, int]
    reply: Callable[[HttpAnswer], None]
    is_verified: bool = False  # the client has shown a certificate of the client CA


# Returns the answer; or a handler, which a thread of the application's pool then calls; or None, and calls
# the request's `reply` later.
Handler = Callable[[HttpRequest], "HttpAnswer | Handler | None"]


PostCall = Callable[[bytes], HttpAnswer]  # of a posted body


@dataclass(frozen=True, slots=True)
class Route:
    """``threads``: 0 if the loop itself calls the handler, which must then never wait; else how many threads
    of its own the route has."""

    method: str
    path: str
    handler: Handler
    threads: int = 0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of one worker."""

    body_bytes: int
    connections: int = 1_000
    unanswered_bytes: int = 64 * 1024 * 1024  # of all clients together; the same of answers not taken
    keep_alive_s: float = 120.0  # longer than the clients keep an idle connection: they close it, not we
    first_request_s: float = 10.0  # for the TLS handshake and the first byte of a request
    request_s: float = 15.0  # from the first byte of a request to its last


def plain_text(status: HTTPStatus, sentence: str) -> HttpAnswer:
    """A sentence for people."""
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class HttpService:
    """What one worker serves."""

    app: "WSGIApplication"  # answers what no route does, in ``app_threads`` threads
    app_threads: int
    limits: HttpLimits
    routes: Sequence[Route] = field(default=())
    # The TLS context for the next connection; None while there is none yet. Absent: plain HTTP.
    tls: Callable[[], ssl.SSLContext | None] | None = None
    # Writes the answer to a request that no handler has answered: one that cannot be read, or a failure.
    refusal: Callable[[HTTPStatus, str], HttpAnswer] = plain_text
    # Whether clients should come back on a new connection, which may lead them to another replica.
    ends_connections: Callable[[], bool] = lambda: False
    # Whether the client with this certificate, of the client CA (`ssl.SSLSocket.getpeercert`), is verified.
    is_known: Callable[[Any], bool] = bool
    # Further services of the same process, each with bounds and a listener of its own (`worker`).
    beside: "Sequence[HttpService]" = field(default=())
