"""A small API server for tests: pods, nodes, watches, Bindings and status patches over real HTTP, with faults
on order.

It keeps the rules that the extender relies on: one growing resource version, watches from any of them,
Bindings and patches that honour UID and resource version, annotations of a Binding copied onto the pod.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlsplit

from tests.scheduler_ext.store import Fault, Store
from tests.support.api_server import Json, ObjectsHandler
from tests.support.http_server import Served

__all__ = ["ApiServer", "Fault", "Store", "api_server"]


class ApiServer(Store):
    """The store behind a port on loopback."""

    def __init__(self) -> None:
        super().__init__()
        self._server = Served(type("Handler", (_Handler,), {"held": self}))
        self.url = self._server.url

    def stop(self) -> None:
        """End, and cut every connection; a second time does nothing more."""
        self.end()
        self._server.end()


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """A running server."""
    server = ApiServer()
    try:
        yield server
    finally:
        server.stop()


class _CutError(ConnectionError):
    pass


class _Handler(ObjectsHandler):
    held: Store

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query, kind = dict(parse_qsl(url.query)), url.path.rpartition("/")[2]
        if "sendInitialEvents" in query:
            self._act({}, lambda _status, listed: self.initial_events(listed))
        elif "watch" in query:
            self.watch(kind, int(query["resourceVersion"]))
        else:
            self._act({}, self.answer)

    def do_POST(self) -> None:
        self._act(self.body(), self.answer)

    do_DELETE = do_PUT = do_PATCH = do_POST

    def _act(self, body: Json, answer: Callable[[int, Json], object]) -> None:
        verb, sent, do = self.held.route(self.command, self.path, body)
        fault = self.held.begin(verb, sent, do)
        if fault is None:
            answer(*do())
            return
        if fault.how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            raise _CutError
        if fault.how == "silent":
            self.held.ended.wait()
            raise _CutError
        self.answer(*fault.answer)
