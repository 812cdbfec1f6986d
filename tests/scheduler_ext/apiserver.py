"""A small API server for tests: pods, nodes, watches, Bindings and status patches over real HTTP, with faults
on order.

It keeps the rules that the extender relies on: one growing resource version, watches from any of them,
Bindings and patches that honour UID and resource version, annotations of a Binding copied onto the pod.
"""

import copy
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.scheduler_ext.store import Fault, Store

__all__ = ["ApiServer", "Fault", "Store", "api_server"]

Json = dict[str, Any]


class ApiServer(Store):
    """The store behind a port on loopback."""

    def __init__(self) -> None:
        super().__init__()
        store = self

        class Handler(_Handler):
            held = store

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self) -> str:
        """A kubeconfig that names this server."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )

    def start(self) -> None:
        """Begin to answer."""
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End, and cut every connection; a second time does nothing more."""
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server.cut()


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """A running server."""
    server = ApiServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # many callers at once; one that is not let in would wait for a second

    def __init__(self, address: tuple[str, int], handler: type["_Handler"]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def cut(self) -> None:
        """End the connections that clients keep alive."""
        for each in self._open:
            with suppress(OSError):  # it may have ended by itself
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of a call is part of these tests."""


class _CutError(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    held: Store
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests look at ``calls``."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        parts = url.path.split("/")
        if "watch" in query:
            return self._watch(parts[-1], int(query["resourceVersion"]))
        if parts[-1] in ("pods", "nodes"):
            return self._act("list", query, lambda: self._list(parts[-1]))
        if parts[-1] == "poddisruptionbudgets":
            return self._act("list budgets", query, lambda: self._list(parts[-1]))
        if "leases" in parts:
            return self._act("lease", url.path, lambda: self.held.lease("GET", url.path, {}))
        return self._act("get", url.path, lambda: self.held.get(parts[4], parts[6]))

    def do_POST(self) -> None:
        body = self._body()
        parts = self.path.split("/")
        if parts[-1] == "leases":
            return self._act("lease", body, lambda: self.held.lease("POST", self.path, body))
        if parts[-1] == "events":
            return self._act("event", body, lambda: (201, body))
        if parts[-1] == "eviction":
            options = body["deleteOptions"]
            verb = "probe" if "dryRun" in options else "evict"
            return self._act(verb, body, lambda: self.held.leave(parts[4], parts[6], options, evicted=True))
        self._act("bind", body, lambda: self.held.bind(parts[4], parts[6], body))

    def do_DELETE(self) -> None:
        body = self._body()
        parts = self.path.split("/")
        self._act("delete", parts[6], lambda: self.held.leave(parts[4], parts[6], body, evicted=False))

    def do_PUT(self) -> None:
        body = self._body()
        self._act("lease", body, lambda: self.held.lease("PUT", self.path, body))

    def do_PATCH(self) -> None:
        body = self._body()
        parts = self.path.split("/")
        self._act("patch", body, lambda: self.held.patch(parts[4], parts[6], body))

    def _act(self, verb: str, sent: Any, do: Any) -> None:
        with self.held.changed:
            self.held.calls.append((verb, sent))
        fault = self.held.take_fault(verb)
        if fault is None:
            return self._answer(*do())
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
        return self._answer(fault.status, {"kind": "Status", "message": said})

    def _list(self, kind: str) -> tuple[int, Json]:
        with self.held.changed:
            items = copy.deepcopy(list(self.held.objects[kind].values()))
            return 200, {"items": items, "metadata": {"resourceVersion": str(self.held.version)}}

    def _watch(self, kind: str, version: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not self.held.ended.is_set():
            with self.held.changed:
                if version < self.held.oldest:
                    self._chunk({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
                    break
                news = [each for each in self.held.log if each[0] > version] if self.held.watching else []
                if not news:
                    self.held.changed.wait(0.5)
                    continue
            for _, of_kind, event in news:
                if of_kind == kind:
                    self._chunk(event)
            version = news[-1][0]
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _body(self) -> Json:
        body: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _answer(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
