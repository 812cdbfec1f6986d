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


SILENCE, OLDER = "silence", "older"


class Versions:
    """An API server whose every watch sends what changed, and expires. ``newest``: the last version;
    ``shown``: the last one that the client has seen; ``is_back``: a watch has shown that etcd was
    restored."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read, self.newest = read, 0
        self.shown, self.is_back, self.now_s = 0, False, 0.0
        self.sign = ""
        self.raws: list[Json] = []
        self.changed: list[Json] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new process knows no object."""
        self.changed, self.is_back = [], False
        self._events: Iterator[WatchEvent[Any]] = inform(
            self, "/api/v1/pods", self.read, lambda _: None, unnoted(), now_s=lambda: self.now_s
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

    def listed(self, raws: list[Json], sign: str = "") -> tuple[Any, ...]:
        """What the client makes of a list of these objects. ``sign``: why it lists, where etcd was restored
        and no watch expires: `SILENCE` of a minute, or an event with an `OLDER` version."""
        self.raws, self.sign = raws, sign
        for event in self._events:
            if isinstance(event, ObjectsListed):
                return event.items
        raise AssertionError

    def decode(self, text: bytes, /) -> object:
        return json.loads(text)

    def page(self, _path: str) -> object:
        return {"items": self.raws[:1], "metadata": {"resourceVersion": str(self.newest)}}

    def stream(self, path: str, _silence_s: float) -> Any:
        if "sendInitialEvents" in path:
            self.shown, self.is_back = self.newest + 1, False
            lines = [{"type": "ADDED", "object": raw} for raw in self.raws]
            end = {list_watch.INITIAL_EVENTS_END: "true"}
            metadata = {"resourceVersion": str(self.shown), "annotations": end}
            lines.append({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": metadata}})
        else:
            lines = self._watched()
        texts = [json.dumps(line, separators=(",", ":")).encode() for line in lines]
        return SimpleNamespace(status=200, lines=lambda: iter(texts), close=lambda: None, body=lambda: b"")

    def _watched(self) -> list[Json]:
        assert not self.is_back, "a watch goes on with versions that a restored etcd does not know"
        lines, self.changed = self.changed, []
        if lines:
            self.shown = int(lines[-1]["object"]["metadata"]["resourceVersion"])
        if lines and self.sign:
            return lines  # the watch ends, and the next one is of the restored etcd
        self.is_back = bool(self.sign) and self.newest < self.shown
        if self.is_back and self.sign == SILENCE:
            self.now_s += list_watch.QUIET_S
            return []
        if self.is_back:
            return [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.newest)}}}]
        return [*lines, _EXPIRED]
