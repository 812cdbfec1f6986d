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
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Json = dict[str, Any]


@dataclass
class Fault:
    """What happens to the next call of this verb ("bind", "get", "patch", "list"): it is obeyed or not, and
    then answered with this status, or not at all: ``reset`` cuts the connection, ``silent`` says nothing
    until the server ends."""

    verb: str
    obeyed: bool = False
    status: int = 0
    how: str = ""


@dataclass
class Store:
    """What the server holds. ``calls``: the verbs it was asked, in order, with what was sent."""

    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {"pods": {}, "nodes": {}})
    version: int = 0
    log: list[tuple[int, str, Json]] = field(default_factory=list)
    oldest: int = 0
    faults: list[Fault] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    watching: bool = True
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, kind: str, raw: Json) -> Json:
        """Create or replace an object; it gets the next resource version."""
        with self.changed:
            key = _key(raw)
            was = self.objects[kind].get(key)
            self.version += 1
            raw = copy.deepcopy(raw)
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.objects[kind][key] = raw
            self.log.append((self.version, kind, {"type": "MODIFIED" if was else "ADDED", "object": raw}))
            self.changed.notify_all()
            return raw

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Remove an object; its last state goes out with the event."""
        with self.changed:
            raw = copy.deepcopy(self.objects[kind].pop(f"{namespace}/{name}"))
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, kind, {"type": "DELETED", "object": raw}))
            self.changed.notify_all()

    def pod(self, name: str, namespace: str = "team-a") -> Json:
        """The pod as it is now."""
        with self.changed:
            return copy.deepcopy(self.objects["pods"][f"{namespace}/{name}"])

    def pods(self) -> list[Json]:
        """Every pod as it is now."""
        with self.changed:
            return copy.deepcopy(list(self.objects["pods"].values()))

    def nodes(self) -> list[Json]:
        """Every node as it is now."""
        with self.changed:
            return copy.deepcopy(list(self.objects["nodes"].values()))

    def compact(self) -> None:
        """Forget every event: a watch from before now is told that it has expired, and open ones end."""
        with self.changed:
            self.log.clear()
            self.oldest = self.version
            self.changed.notify_all()

    def made(self, verb: str) -> list[Any]:
        """What was sent in the calls of this verb."""
        with self.changed:
            return [sent for each, sent in self.calls if each == verb]

    def take_fault(self, verb: str) -> Fault | None:
        """The next fault on order for this verb."""
        with self.changed:
            for fault in self.faults:
                if fault.verb == verb:
                    self.faults.remove(fault)
                    return fault
        return None


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
        return self._act("get", url.path, lambda: self._get(parts[4], parts[6]))

    def do_POST(self) -> None:
        body = self._body()
        parts = self.path.split("/")
        self._act("bind", body, lambda: self._bind(parts[4], parts[6], body))

    def do_PATCH(self) -> None:
        body = self._body()
        parts = self.path.split("/")
        self._act("patch", body, lambda: self._patch(parts[4], parts[6], body))

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
        return self._answer(fault.status, {"kind": "Status", "message": f"fault {fault.status}"})

    def _list(self, kind: str) -> tuple[int, Json]:
        with self.held.changed:
            items = copy.deepcopy(list(self.held.objects[kind].values()))
            return 200, {"items": items, "metadata": {"resourceVersion": str(self.held.version)}}

    def _get(self, namespace: str, name: str) -> tuple[int, Json]:
        with self.held.changed:
            raw = self.held.objects["pods"].get(f"{namespace}/{name}")
            return (200, copy.deepcopy(raw)) if raw else _status(404, f'pods "{name}" not found')

    def _bind(self, namespace: str, name: str, body: Json) -> tuple[int, Json]:
        with self.held.changed:
            raw = self.held.objects["pods"].get(f"{namespace}/{name}")
            if raw is None:
                return _status(404, f'pods "{name}" not found')
            wanted, there = body["metadata"], raw["metadata"]
            for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                if wanted.get(key) and wanted[key] != there[key]:
                    said = f"{word} in precondition: {wanted[key]}, {word} in object meta: {there[key]}"
                    return _status(409, f"Operation cannot be fulfilled: Precondition failed: {said}")
            if raw["spec"].get("nodeName"):
                return _status(409, f'pod {name} is already assigned to node "{raw["spec"]["nodeName"]}"')
            if raw["spec"].get("schedulingGates"):
                return _status(409, f"pod {name} has non-empty .spec.schedulingGates")
            raw = copy.deepcopy(raw)
            raw["spec"]["nodeName"] = body["target"]["name"]
            raw["metadata"].setdefault("annotations", {}).update(wanted.get("annotations") or {})
            self.held.put("pods", raw)
            return 201, {"kind": "Status", "status": "Success"}

    def _patch(self, namespace: str, name: str, body: Json) -> tuple[int, Json]:
        with self.held.changed:
            raw = self.held.objects["pods"].get(f"{namespace}/{name}")
            if raw is None:
                return _status(404, f'pods "{name}" not found')
            if body["metadata"]["uid"] != raw["metadata"]["uid"]:
                return _status(409, "Precondition failed: UID in precondition")
            raw = copy.deepcopy(raw)
            conditions = {each["type"]: each for each in raw["status"].get("conditions", [])}
            conditions |= {each["type"]: each for each in body["status"]["conditions"]}
            raw["status"]["conditions"] = list(conditions.values())
            return 200, self.held.put("pods", raw)

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


def _status(code: int, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "message": message}


def _key(raw: Json) -> str:
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}"
