"""The pods of a machine as the API server lists them: by resource versions, by the product's own client."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.support.sources import unnoted
from tests.worlds import Json
from timekeeper.edge import list_watch
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectsListed, WatchEvent

_EXPIRED = {"type": "ERROR", "object": {"code": 410}}


class Versions:
    """An API server whose every watch sends what changed, and expires. ``newest``: the last version."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read, self.newest = read, 0
        self.raws: list[Json] = []
        self.changed: list[Json] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new process knows no object."""
        self.changed = []
        self._events: Iterator[WatchEvent[Any]] = inform(
            self, "/api/v1/pods", self.read, lambda _: None, unnoted(), now_s=lambda: 0
        )

    def stamp(self, raw: Json) -> Json:
        """The object as it is written: with the next resource version."""
        self.newest += 1
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            **raw,
            "metadata": {"name": raw["metadata"]["name"], "namespace": raw["metadata"]["namespace"]}
            | {"uid": raw["metadata"]["uid"], "resourceVersion": str(self.newest)}
            | raw["metadata"],
        }

    def sends(self, raw: Json, deleted: bool) -> None:
        """A watch delivers this."""
        self.changed.append({"type": "DELETED" if deleted else "MODIFIED", "object": raw})

    def listed(self, raws: list[Json]) -> tuple[Any, ...]:
        """What the client makes of a list of these objects."""
        self.raws = raws
        for event in self._events:
            if isinstance(event, ObjectsListed):
                return event.items
        raise AssertionError

    def decode(self, text: bytes, /) -> object:
        return json.loads(text)

    def page(self, _path: str) -> object:
        raise AssertionError

    def stream(self, path: str, _silence_s: float) -> Any:
        lines: list[Json] = [*self.changed, _EXPIRED]
        if "sendInitialEvents" in path:
            lines = [{"type": "ADDED", "object": raw} for raw in self.raws]
            end = {list_watch.INITIAL_EVENTS_END: "true"}
            metadata = {"resourceVersion": str(self.newest + 1), "annotations": end}
            lines.append({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": metadata}})
        else:
            self.changed = []
        texts = [json.dumps(line, separators=(",", ":")).encode() for line in lines]
        return SimpleNamespace(status=200, lines=lambda: iter(texts), close=lambda: None, body=lambda: b"")
