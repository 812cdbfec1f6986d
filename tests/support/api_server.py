"""A simulated API server: what it stores, lists and tells its watchers, and its Leases.

The tests of a role add what their role asks for beyond that. It knows nothing of what the objects mean.
"""

import copy
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import JsonHandler
from timekeeper.edge.http_client import HttpStream

Json = dict[str, Any]

_LONGEST_WAIT_S = 60.0
IDENTITY = ("name", "generateName", "namespace", "uid", "resourceVersion")  # in the API server's order


@dataclass
class StoredObjects:
    """Objects by kind and ``namespace/name``, one growing resource version, and every event since
    ``oldest``. ``watching``: whether watchers are told."""

    objects: dict[str, dict[str, Json]]
    version: int = 0
    log: list[tuple[int, str, Json]] = field(default_factory=list)
    oldest: int = 0
    watching: bool = True
    leases: dict[str, Json] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, kind: str, raw: Json) -> Json:
        """Create or replace an object; it gets the next resource version."""
        with self.changed:
            known = self.objects[kind]
            event = "MODIFIED" if key(raw) in known else "ADDED"
            known[key(raw)] = self.tell(kind, event, raw)
            return known[key(raw)]

    def remove_as(self, kind: str, raw: Json) -> None:
        """Remove an object; this state of it goes out with the event."""
        with self.changed:
            self.objects[kind].pop(key(raw), None)
            self.tell(kind, "DELETED", raw)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Remove an object; its last state goes out with the event."""
        with self.changed:
            self.remove_as(kind, self.objects[kind][f"{namespace}/{name}"])

    def tell(self, kind: str, event: str, raw: Json) -> Json:
        """Send an event to the watchers; the object with the resource version that it gets."""
        with self.changed:
            self.version += 1
            raw = copy.deepcopy(raw)
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, kind, {"type": event, "object": raw}))
            self.changed.notify_all()
            return raw

    def listed(self, kind: str) -> Json:
        """A whole list."""
        with self.changed:
            items = copy.deepcopy(list(self.objects[kind].values()))
            return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def compact(self) -> None:
        """Forget every event: a watch from before now is told that it has expired, and open ones end."""
        with self.changed:
            self.log.clear()
            self.oldest = self.version
            self.changed.notify_all()

    def end(self) -> None:
        """Open watches end."""
        self.ended.set()
        with self.changed:
            self.changed.notify_all()

    def lease(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """A GET, POST or PUT of a Lease; only a PUT over the version that stands is taken."""
        with self.changed:
            there = self.leases.get(path)
            if method == "GET" or (method == "PUT" and there is None):
                return (200, copy.deepcopy(there)) if there else status(404, "no such Lease")
            if method == "POST":
                path, taken = f"{path}/{body['metadata']['name']}", 201
                if path in self.leases:
                    return status(409, "it exists")
            else:
                taken = 200
                if there and there["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
                    return status(409, "the object has been modified")
            self.version += 1
            metadata = {**body["metadata"], "resourceVersion": str(self.version)}
            self.leases[path] = copy.deepcopy({**body, "metadata": metadata})
            return taken, self.leases[path]


class ObjectsHandler(JsonHandler):
    """Answers watches of the objects in ``held``."""

    held: StoredObjects

    def watch(self, kind: str, version: int, lasts_s: float = math.inf) -> None:
        """The events after a version, until the server ends or ``lasts_s`` have passed."""
        held = self.held
        until = time.monotonic() + lasts_s
        self.begin_stream()
        while not held.ended.is_set() and (left := until - time.monotonic()) > 0:
            with held.changed:
                if version < held.oldest:
                    self.event({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
                    break
                news = [each for each in held.log if each[0] > version] if held.watching else []
                if not news:
                    held.changed.wait(min(left, _LONGEST_WAIT_S))
                    continue
            for _, of_kind, event in news:
                if of_kind == kind:
                    self.event(event)
            version = news[-1][0]
        self.chunk(b"")

    def initial_events(self, listed: Json) -> None:
        """The list as a watch sends it."""
        self.begin_stream()
        for line in initial_lines(listed):
            self.chunk(line + b"\n")
        self.chunk(b"")


def initial_lines(listed: Json) -> Iterator[bytes]:
    """The list as a watch sends it, written as an API server writes it: without spaces."""
    events: list[Json] = []
    for item in listed["items"]:
        first = {key: item["metadata"][key] for key in IDENTITY if key in item["metadata"]}
        whole = {"kind": "Thing", "apiVersion": "v1", **item, "metadata": {**first, **item["metadata"]}}
        events.append({"type": "ADDED", "object": whole})
    end = {"annotations": {"k8s.io/initial-events-end": "true"}}
    events.append({"type": "BOOKMARK", "object": {"metadata": listed["metadata"] | end}})
    return (json.dumps(event, separators=(",", ":")).encode() for event in events)


class PlayedStream(HttpStream):
    """An answer with these lines: of a watch that is accepted, or a refusal."""

    def __init__(self, lines: Iterator[Any], status: int = 200) -> None:
        self.status, self._lines = status, lines

    def lines(self) -> Iterator[bytes]:
        return self._lines

    def body(self) -> bytes:
        return b"".join(self._lines)

    def close(self) -> None:
        """Nothing is open."""


def status(code: int, message: str) -> tuple[int, Json]:
    """A refusal."""
    return code, {"kind": "Status", "status": "Failure", "code": code, "message": message}


def key(raw: Json) -> str:
    """Namespace and name."""
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}"
