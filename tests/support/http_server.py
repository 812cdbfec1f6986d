"""A simulated server on loopback: a handler that answers in JSON, and the server around it."""

import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON on connections that stay open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> Any:
        """The request's body, decoded."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, body: object, headers: Iterable[tuple[str, str]] = ()) -> None:
        """One whole answer; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        """The head of an answer whose body follows in chunks."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        """One chunk; an empty one ends the body."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, event: object) -> None:
        """One event of a watch, as a chunk of its own."""
        self.chunk(json.dumps(event).encode() + b"\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests look at what was asked."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # a caller that is not let in at once waits for a second

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent about a client that does not trust this server or that leaves: tests do both on purpose."""
        if not isinstance(sys.exc_info()[1], ssl.SSLError | ConnectionError):
            super().handle_error(request, client_address)


class Served:
    """A handler served on loopback in threads of this process, over TLS where there is a context. As a
    context manager it ends at the exit."""

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self._server = _Server(port, handler)
        self.port = self._server.server_port
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        if context:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop listening, and cut every connection. A second time does nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self.cut()
        self._thread.join()

    def cut(self) -> None:
        """End the connections that clients keep alive."""
        for each in list(self._server.open):
            with suppress(OSError):  # it may have ended by itself
                each.shutdown(socket.SHUT_RDWR)
