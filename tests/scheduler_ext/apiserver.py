"""A small API server for tests: pods, nodes, watches, Bindings and status patches over real HTTP, with faults
on order.

It keeps the rules that the extender relies on: one growing resource version, watches from any of them,
Bindings and patches that honour UID and resource version, annotations of a Binding copied onto the pod.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.scheduler_ext.store import Fault, Store
from tests.support.api_server import ObjectsHandler, status
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


_LISTS = {"poddisruptionbudgets": "list budgets", "resourceslices": "list devices"}


class _CutError(ConnectionError):
    pass


class _Handler(ObjectsHandler):
    held: Store

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        parts = url.path.split("/")
        if "sendInitialEvents" in query:
            verb = _LISTS.get(parts[-1], "list")
            return self._act(verb, query, lambda: (200, self.held.listed(parts[-1])), self._streamed)
        if "watch" in query:
            return self.watch(parts[-1], int(query["resourceVersion"]))
        if parts[-1] in ("pods", "nodes"):
            return self._act("list", query, lambda: (200, self.held.listed(parts[-1])))
        if parts[-1] == "poddisruptionbudgets":
            return self._act("list budgets", query, lambda: (200, self.held.listed(parts[-1])))
        if url.path == "/apis/resource.k8s.io/v1":
            served = (200, {}) if self.held.serves_claims else status(404, "not found")
            return self._act("claims", url.path, lambda: served)
        if "leases" in parts:
            return self._act("lease", url.path, lambda: self.held.lease("GET", url.path, {}))
        return self._act("get", url.path, lambda: self.held.get(parts[4], parts[6]))

    def do_POST(self) -> None:
        body = self.body()
        parts = self.path.split("/")
        if parts[-1] == "leases":
            return self._act("lease", body, lambda: self.held.lease("POST", self.path, body))
        if parts[-1] == "events":
            return self._act("event", body, lambda: (201, body))
        if parts[-1] in ("tokenreviews", "subjectaccessreviews"):
            return self._act("review", body, lambda: (201, {"status": self.held.review(body["spec"])}))
        if parts[-1] == "eviction":
            options = body["deleteOptions"]
            verb = "probe" if "dryRun" in options else "evict"
            return self._act(verb, body, lambda: self.held.leave(parts[4], parts[6], options, evicted=True))
        self._act("bind", body, lambda: self.held.bind(parts[4], parts[6], body))

    def do_DELETE(self) -> None:
        body = self.body()
        parts = self.path.split("/")
        self._act("delete", parts[6], lambda: self.held.leave(parts[4], parts[6], body, evicted=False))

    def do_PUT(self) -> None:
        body = self.body()
        self._act("lease", body, lambda: self.held.lease("PUT", self.path, body))

    def do_PATCH(self) -> None:
        body = self.body()
        parts = self.path.split("/")
        self._act("patch", body, lambda: self.held.patch(parts[4], parts[6], body))

    def _streamed(self, _status: int, listed: Any) -> None:
        self.initial_events(listed)

    def _act(self, verb: str, sent: Any, do: Any, answer: Any = None) -> None:
        with self.held.changed:
            self.held.calls.append((verb, sent))
        fault = self.held.take_fault(verb)
        if fault is None:
            (answer or self.answer)(*do())
            return None
        if fault.obeyed:
            do()
        if fault.how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            raise _CutError
        if fault.how == "silent":
            self.held.ended.wait()
            raise _CutError
        said = fault.said or f"fault {fault.status}"
        return self.answer(fault.status, {"kind": "Status", "message": said})
