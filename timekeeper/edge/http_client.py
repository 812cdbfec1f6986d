"""Calls of one server over HTTP/1.1: verified TLS, kept connections, one time limit for a whole answer.

A caller learns what became of a call that failed. `NotConnected`: the server got nothing of it. Any other
error: it may have been done. A kept connection that the server closed in the meantime is no failure: the call
goes over another connection, if nothing was sent, or if a repeat does no harm.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import time
from collections import deque

from timekeeper.edge import http1
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Connect = Callable[["Server", float], socket.socket]

MAX_TOKEN = 65_536
MAX_BUNDLE = 1 << 20
TOLERATED_S = 0.1  # of a time limit: to set it takes a call of the kernel for each piece that arrives
PEM = "-----BEGIN CERTIFICATE-----"
# A server that is gone is noticed within 30 s, also while it has nothing to say.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class NotConnected(OSError):
    """No request was sent. The text gives the reason, without the contents of any file."""


FAILURES = (OSError, http1.NotHTTP)
"""What a call raises. `sentence` makes text of it."""


@value
class Server:
    """Where a server is."""

    host: str
    port: int
    authority: str  # host and port as in the URL
    prefix: str  # the URL's path without a trailing slash
    is_tls: bool


def server_of(url: str) -> Server:
    """The server at an http or https URL. Raises ValueError."""
    scheme, mark, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    host, _, port = authority.rpartition("]") if "]" in authority else authority.partition(":")
    host, port = host.strip("[]"), port.removeprefix(":")
    is_tls = scheme.lower() == "https"
    if scheme.lower() not in ("http", "https") or not mark or not host or not (port or "1").isdigit():
        raise ValueError("it is no http or https URL of a host")
    number = int(port) if port else 443 if is_tls else 80
    if not 0 < number < 65_536:
        raise ValueError("its port is not from 1 to 65535")
    return Server(host, number, authority, f"/{path}".rstrip("/"), is_tls)


def server_and_path(url: str) -> tuple[Server, str]:
    """The server at an http or https URL, and what to ask it for. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    return server_of(f"{scheme}://{authority}"), f"/{path}"


class HttpClient:
    """One server. Threads may share it; ``keep``: how many connections stay open between calls. ``connect``:
    opens a connection within a number of seconds, and raises OSError or ValueError."""

    def __init__(
        self, server: Server, connect: Connect, keep: int = 1, connect_s: float | None = None
    ) -> None:
        """``connect_s``: the most for opening a connection; None: as long as for the answer."""
        self.server = server
        self._connect, self._keep, self._connect_s = connect, keep, connect_s
        self._idle: deque[_Connection] = deque()  # whose ends are safe to use from any thread

    def call(
        self,
        method: str,
        path: str,
        headers: http1.RequestHeaders,
        body: bytes | Callable[[], bytes] | None = None,
        *,
        within_s: float,
        repeat: bool,
        most: int = http1.MAX_BODY,
    ) -> http1.HttpResponse:
        """One call. ``body``: may be made once the connection stands. ``within_s``: for the connection, and
        again for the answer as a whole. ``repeat``: doing it twice does no harm. Raises `FAILURES`."""
        connection = self._kept()
        if connection is not None:
            try:
                return self._exchanged(connection, method, path, headers, body, within_s, most)
            except ConnectionError:
                if not repeat:
                    raise
        connection = self._opened(within_s)
        return self._exchanged(connection, method, path, headers, body, within_s, most)

    def stream(self, path: str, headers: http1.RequestHeaders, *, silence_s: float) -> HttpStream:
        """An answer that goes on for long, over a connection of its own. Raises `FAILURES`, TimeoutError
        after ``silence_s`` without a line; so does reading it."""
        connection = self._opened(silence_s)
        try:
            head = connection.answered(self._request("GET", path, headers, None), silence_s)
        except BaseException:
            connection.close()
            raise
        return HttpStream(connection, head, silence_s)

    def close(self) -> None:
        """Close the connections that are idle. The next call opens another."""
        while connection := self._kept():
            connection.close()

    def _kept(self) -> _Connection | None:
        """An idle connection that is still open; those that are not are closed."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.is_silent():
                return connection
            connection.close()
        return None

    def _opened(self, within_s: float) -> _Connection:
        within_s = min(within_s, self._connect_s or within_s)
        try:
            opened = self._connect(self.server, within_s)
        except (OSError, ValueError) as error:
            raise NotConnected(sentence(error, within_s)) from error
        return _Connection(opened)

    def _request(self, method: str, path: str, headers: http1.RequestHeaders, body: bytes | None) -> bytes:
        """Raises NotConnected for a letter that no head may hold."""
        try:
            return http1.request(method, self.server.authority, self.server.prefix + path, headers, body)
        except ValueError as error:
            raise NotConnected(str(error)) from None

    def _exchanged(
        self,
        connection: _Connection,
        method: str,
        path: str,
        headers: http1.RequestHeaders,
        body: bytes | Callable[[], bytes] | None,
        within_s: float,
        most: int,
    ) -> http1.HttpResponse:
        try:
            text = body() if callable(body) else body
            head = connection.answered(self._request(method, path, headers, text), within_s)
            whole = http1.body(connection.reader, head, most)
        except BaseException:
            connection.close()
            raise
        if head.keep and len(self._idle) < self._keep:
            self._idle.append(connection)
        else:
            connection.close()
        return http1.HttpResponse(head.status, head.headers, whole)


class _Connection:
    """A connection and what was read of it ahead."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.source = _Source(opened)
        self.reader: http1.Stream = io.BufferedReader(self.source, 65_536)

    def is_silent(self) -> bool:
        """Whether the server has neither ended the connection nor sent more than was asked for."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        self.source.until_s = 0.0  # so that a look into the buffer reads no more
        try:
            ahead = bool(self.reader.peek(1))
        except TimeoutError:
            ahead = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        return not ahead and not waiting.poll(0)

    def answered(self, request: bytes, within_s: float) -> http1.ResponseHead:
        """Sends the request, and reads the head of the answer. What is read from now on until the next
        request must come within these seconds."""
        self.source.until_s = time.monotonic() + within_s
        self._socket.settimeout(within_s)
        try:
            self._socket.sendall(request)
            return http1.head(self.reader)
        except ssl.SSLEOFError as error:
            raise http1.ConnectionClosed("the connection was closed without an answer") from error

    def close(self) -> None:
        self.reader.close()
        self._socket.close()


class HttpStream:
    """An answer that goes on for long."""

    def __init__(self, connection: _Connection, head: http1.ResponseHead, silence_s: float) -> None:
        self._connection, self._head, self._silence_s = connection, head, silence_s
        self.status, self.headers = head.status, head.headers

    def lines(self) -> Iterator[bytes]:
        """The lines that are not empty, as they arrive, each within ``silence_s``. Raises `FAILURES`."""
        source = self._connection.source
        source.until_s = time.monotonic() + self._silence_s
        for line in http1.lines(self._connection.reader, self._head):
            yield line
            source.until_s = time.monotonic() + self._silence_s

    def body(self) -> bytes:
        """The whole, where it is short: within ``silence_s``. Raises `FAILURES`."""
        return http1.body(self._connection.reader, self._head)

    def close(self) -> None:
        """Ends it."""
        self._connection.close()


class _Source(io.RawIOBase):
    """Reads a connection until a moment of the monotonic clock. With a time limit for each read alone, a
    server that sends a byte now and then could hold us for days."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.until_s, self._within_s = 0.0, -1.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer has not arrived in time")
        if abs(left_s - self._within_s) > TOLERATED_S:
            self._socket.settimeout(left_s)
            self._within_s = left_s
        return self._socket.recv_into(buffer)


def connecting(context: Callable[[], ssl.SSLContext], name: str = "") -> Connect:
    """Connects, by TLS unless the URL is http. Each connection has a new context, for CAs are renewed.
    ``name``: as `tls`."""

    def connect(server: Server, within_s: float) -> socket.socket:
        return tls(context(), server, within_s, name) if server.is_tls else tcp(server, within_s)

    return connect


def tls(context: ssl.SSLContext, server: Server, within_s: float, name: str = "") -> ssl.SSLSocket:
    """Connects, and verifies the server by the context. ``name``: what its certificate names; "": the URL's
    host. Raises OSError or ValueError."""
    return secured(tcp(server, within_s), context, name or server.host)


def secured(raw: socket.socket, context: ssl.SSLContext, name: str) -> ssl.SSLSocket:
    """TLS over this connection, which is closed if that fails; ``name``: what the certificate names. Raises
    OSError or ValueError."""
    try:  # as bytes: a str would load the idna codec, whose tables take 0.4 MiB
        return context.wrap_socket(raw, server_hostname=name.encode("ascii"))
    except BaseException:
        raw.close()
        raise


def tcp(server: Server, within_s: float) -> socket.socket:
    """Connects without TLS. Raises OSError or ValueError."""
    address = server.host.encode("ascii"), server.port
    opened = socket.create_connection(address, within_s)  # type: ignore[arg-type] # getaddrinfo takes bytes
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, number in _KEEP_ALIVE:
            opened.setsockopt(socket.IPPROTO_TCP, option, number)
    except BaseException:
        opened.close()
        raise
    return opened


def tunnel(proxy: socket.socket, server: Server, headers: http1.RequestHeaders, within_s: float) -> None:
    """Has an HTTP proxy lead this connection to the server. Raises `FAILURES`."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    place = f"{host}:{server.port}"
    source = _Source(proxy)
    source.until_s = time.monotonic() + within_s
    proxy.sendall(http1.request("CONNECT", place, place, headers, None))
    head = http1.head(io.BufferedReader(source, 1))  # reads nothing beyond the head
    if head.status != 200:
        raise NotConnected(f"the proxy answers {head.status}")


def trusting(bundle: str) -> ssl.SSLContext:
    """Verifies servers whose certificate one of these CAs (PEM) has signed, by TLS 1.2 or newer. Raises
    NotConnected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks chain and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Comments between the certificates may be in any language; certificates are ASCII.
        context.load_verify_locations(cadata=bundle.encode("ascii", "ignore").decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise NotConnected("the CA bundle holds no readable certificate") from None
    return context


def system_context() -> ssl.SSLContext:
    """Verifies servers whose certificate a CA of this machine has signed, by TLS 1.2 or newer."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def read_bundle(path: str) -> str:
    """The text of a file of certificates. Raises NotConnected."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BUNDLE)
    except (OSError, ValueError) as error:
        raise NotConnected(f"the CA file {path} cannot be read ({_cause(error)})") from None


def read_token(path: str) -> str:
    """The token in a file, for one call: it may be another at the next. Raises NotConnected."""
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(MAX_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise NotConnected(f"the token file {path} cannot be read ({_cause(error)})") from None
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise NotConnected(f"the token file {path} holds no token")
    return token


def sentence(error: Exception, within_s: float) -> str:
    """What went wrong, for people, never with the contents of a header."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"no answer within {within_s:g} s"
    if isinstance(error, UnicodeError):
        return "not ASCII"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _cause(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "not ASCII"
