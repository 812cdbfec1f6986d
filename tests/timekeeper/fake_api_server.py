"""A small API server: list and watch with bookmarks, TokenReview, SubjectAccessReview, Events, evictions that
it answers and does not carry out, and the Lease of the settlers. Plain HTTP.

It keeps what it is given and tells all watchers; it knows nothing of what the objects mean.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

PATHS = {
    "/api/v1/pods": "pods",
    "/api/v1/nodes": "nodes",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": "leases",
    "/api/v1/namespaces/bursar-system/configmaps": "configmaps",
    "/apis/scheduling.k8s.io/v1/priorityclasses": "priorityclasses",
}


LEASES = "/apis/coordination.k8s.io/v1/namespaces/bursar-system/leases"
LEASE = f"{LEASES}/bursar-timekeeper-settler"


class FakeApiServer:
    """``tokens``: token -> TokenReview status; ``allowed``: (username, verb, resource, namespace) that
    may."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._version = 1
        self._objects: dict[str, dict[str, Json]] = {name: {} for name in PATHS.values()}
        self._log: list[tuple[int, str, Json]] = []
        self.tokens: dict[str, Json] = {}
        self.allowed: set[tuple[str, str, str, str]] = set()
        self.reviews: list[Json] = []
        self.events: list[Json] = []
        self.takes_events = True
        self.evictions: list[Json] = []
        self.refusals: dict[str, tuple[int, Json]] = {}  # the pod's name -> how its eviction is refused
        self.bearers: set[str | None] = set()
        self.expired = False
        self.lease: Json | None = None  # the settlers' Lease
        self.holders: list[str] = []  # who wrote himself into it, each once in a row
        self.cut: set[str] = set()  # URLs under which the Lease cannot be reached

    def put(self, source: str, item: Json) -> None:
        """Add or replace an object; watchers are told."""
        with self._changed:
            known = self._objects[source]
            kind = "MODIFIED" if _key(item) in known else "ADDED"
            known[_key(item)] = self._next(source, kind, item)

    def remove(self, source: str, item: Json) -> None:
        """Take an object away, in the state given; watchers are told."""
        with self._changed:
            self._objects[source].pop(_key(item), None)
            self._next(source, "DELETED", item)

    def bookmark(self) -> None:
        """Tell all watchers that nothing happened."""
        with self._changed:
            for source in PATHS.values():
                self._next(source, "BOOKMARK", {"metadata": {}})

    def _next(self, source: str, kind: str, item: Json) -> Json:
        self._version += 1
        stamped = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        self._log.append((self._version, source, {"type": kind, "object": stamped}))
        self._changed.notify_all()
        return stamped

    def listed(self, source: str) -> Json:
        """A whole list."""
        with self._changed:
            items = list(self._objects[source].values())
            return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def watched(self, source: str, version: int, for_s: float) -> Iterator[Json]:
        """The events after a version, until ``for_s`` have passed without one."""
        seen = version
        while True:
            with self._changed:
                found = [each for each in self._log if each[0] > seen and each[1] == source]
                if not found and not self._changed.wait(for_s):
                    return
            for number, _, event in found:
                seen = number
                yield event

    def review(self, path: str, body: Json) -> Json | None:
        """The answer to a review; None for a path that is none."""
        spec = body.get("spec", {})
        if path.endswith("/tokenreviews"):
            self.reviews.append(body)
            return {"status": self.tokens.get(spec["token"], {"authenticated": False})}
        if path.endswith("/subjectaccessreviews"):
            self.reviews.append(body)
            wanted = spec["resourceAttributes"]
            who = (spec["user"], wanted["verb"], wanted["resource"], wanted["namespace"])
            return {"status": {"allowed": who in self.allowed}}
        if path == LEASES:
            return None if self.lease else self._hold(body)
        if path.endswith("/eviction"):
            self.evictions.append(body)
            return {"kind": "Status", "status": "Success"}
        if path.endswith("/events") and self.takes_events:
            self.events.append(body)
            return body
        return None

    def replace_lease(self, body: Json) -> Json | None:
        """The Lease as written; None where it is not of the version that was read."""
        with self._changed:
            there = self.lease or {"metadata": {"resourceVersion": "none"}}
            read = body["metadata"].get("resourceVersion")
            return self._hold(body) if read == there["metadata"]["resourceVersion"] else None

    def _hold(self, body: Json) -> Json:
        self._version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        holder = body["spec"].get("holderIdentity", "")
        if self.holders[-1:] != [holder]:
            self.holders.append(holder)
        return self.lease


def _key(item: Json) -> str:
    metadata = item["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def kubeconfig(folder: Path, url: str) -> Path:
    """A kubeconfig file for an API server at this URL."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": url}}],
                "users": [{"name": "me", "user": {"token": "own"}}],
                "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
                "current-context": "here",
            }
        )
    )
    return path


@contextmanager
def serving(api: FakeApiServer) -> Iterator[str]:
    """Serve it on loopback; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            api.bearers.add(self.headers["Authorization"])
            address = urlsplit(self.path)
            source = PATHS.get(address.path)
            asked = {name: values[0] for name, values in parse_qs(address.query).items()}
            if address.path == LEASE and url in api.cut:
                self._answer(503, {"message": "cut off"})
            elif address.path == LEASE:
                self._answer(200 if api.lease else 404, api.lease or {"message": "not found"})
            elif source is None:
                self._answer(404, {"message": "not found"})
            elif asked.get("watch") == "true" and api.expired:
                self._answer(410, {"message": "too old"})
            elif asked.get("watch") == "true":
                self._stream(source, int(asked["resourceVersion"]), float(asked["timeoutSeconds"]))
            else:
                self._answer(200, api.listed(source))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = urlsplit(self.path).path
            answer = api.review(path, body)
            if path.endswith("/eviction") and path.split("/")[-2] in api.refusals:
                self._answer(*api.refusals[path.split("/")[-2]])
            else:
                self._answer(404 if answer is None else 201, answer or {})

        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = api.replace_lease(body) if self.path == LEASE else None
            self._answer(409 if answer is None else 200, answer or {"message": "another version"})

        def _answer(self, status: int, body: Json) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, source: str, version: int, for_s: float) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in api.watched(source, version, for_s):
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, BrokenPipeError):
                self.close_connection = True  # the client was killed: that is what the tests are about

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests look at what is kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
