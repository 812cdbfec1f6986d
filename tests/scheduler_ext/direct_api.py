"""The store of the tests behind `Api` itself: calls are answered in the caller's thread, without HTTP, and a
watch that has nothing new sends a bookmark, so that whoever follows it gets its turn back."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from tests.scheduler_ext.store import Store
from tests.support.api_server import PlayedStream, initial_lines
from timekeeper.edge.http_client import HttpStream, tcp
from timekeeper.edge.reflector import UnreachableError
from timekeeper.runtime.api_server import LIST_S, Answered, Api, Lost, Reply, Unsent, accepted


class DirectApi(Api):
    """``waits`` is told how long a call waited for an answer without success. ``idle``: the paths
    whose watch has nothing new, or whose list or watch has just failed."""

    def __init__(self, store: Store, waits: Callable[[float], object] = lambda _s: None) -> None:
        super().__init__("http://direct", tcp, dict)
        self.store, self._waits = store, waits
        self.idle: set[str] = set()

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float,
        tries: int = 1,
    ) -> Reply:
        """As `Api.call`; a fault without an answer is one that did not come in time."""
        if self.store.ended.is_set():
            return Unsent("the API server cannot be reached: it has ended")
        verb, sent, do = self.store.route(method, path, orjson.loads(orjson.dumps(body or {})))
        fault = self.store.begin(verb, sent, do)
        if fault is None:
            status, answer = do()
            return Answered(status, copy.deepcopy(answer))
        if fault.how == "silent":
            self._waits(timeout_s)
        if fault.how:
            return Lost(f"the API server does not answer: {fault.how}")
        return Answered(*fault.answer)

    def stream(self, path: str, silence_s: float) -> HttpStream:
        return PlayedStream(self._lines(path.partition("?")[0], dict(parse_qsl(path.partition("?")[2]))))

    def _lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        if "sendInitialEvents" in query:
            self.idle.add(path)
            listed = dict(accepted(self.call("GET", f"{path}?sendInitialEvents=true", timeout_s=LIST_S)))
            yield from initial_lines(listed)
            return
        kind, version = path.rpartition("/")[2], int(query["resourceVersion"])
        while version >= self.store.oldest:
            news = [event for event in self.store.log if event[0] > version] if self.store.watching else []
            yield from (orjson.dumps(event) for _, of_kind, event in news if of_kind == kind)
            version = news[-1][0] if news else version
            self.idle.add(path)
            if self.store.ended.is_set():
                raise UnreachableError(f"the watch of {path} broke")
            yield orjson.dumps(
                {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}
            )
        yield orjson.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
