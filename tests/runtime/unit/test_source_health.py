"""How long a source has not been whole, and what it says of it."""

from collections.abc import Iterator
from typing import Any

import orjson

from tests.support.api_server import PlayedStream, initial_lines
from tests.support.sources import unnoted
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import (
    ObjectChanged,
    ObjectsListed,
    UnreachableError,
    WatchEvent,
    WatchFailed,
    WatchOpened,
)
from timekeeper.edge.source_health import STUCK_MS, SourceHealth, UnreadObject, readiness_lines

LIST = {"items": [], "metadata": {"resourceVersion": "1"}}
ADDED = orjson.dumps(
    {"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "a", "resourceVersion": "2"}}}
)


class Script:
    """An API server that answers each list and each watch with the next part: lines, or an error."""

    decode = staticmethod(orjson.loads)

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def page(self, _path: str) -> object:
        raise NotImplementedError

    def stream(self, _path: str, _silence_s: float) -> PlayedStream:
        return PlayedStream(self._lines(next(self._answers)))

    def _lines(self, answer: Any) -> Iterator[bytes]:
        for line in [answer] if isinstance(answer, Exception) else answer:
            if isinstance(line, Exception):
                raise line
            yield line


class Followed:
    """A source of such a server, with a clock that is turned by hand."""

    def __init__(self, *answers: Any) -> None:
        self.now_ms = 0
        self.health = SourceHealth("pods", lambda *_, **__: None, lambda: self.now_ms)
        self._events: Iterator[WatchEvent[Any]] = inform(
            Script(*answers), "/pods", dict, lambda _ms: None, self.health
        )

    def next(self, after_ms: int = 0) -> WatchEvent[Any]:
        """The next event, and then this time."""
        event = next(self._events)
        self.now_ms += after_ms
        return event


def test_a_source_that_is_never_listed_is_stuck_after_two_minutes() -> None:
    away = UnreachableError("away")
    followed = Followed(away, away)

    followed.next(STUCK_MS - 1)
    assert followed.health.stuck() is None
    followed.next(1)
    assert followed.health.stuck() == (0, "away")
    (line,) = readiness_lines([followed.health])
    assert line == "watch of pods: it has not got on since 1970-01-01T00:00:00.000Z"


def test_a_watch_that_is_accepted_and_breaks_each_time_is_stuck_until_something_arrives() -> None:
    broken = UnreachableError("broken")
    followed = Followed(initial_lines(LIST), [broken], [broken], [ADDED])

    events = [type(followed.next(50_000)) for _ in range(5)]

    assert events == [ObjectsListed, WatchFailed, WatchOpened, WatchFailed, WatchOpened]
    assert followed.health.stuck() == (50_000, "broken")
    assert isinstance(followed.next(STUCK_MS), ObjectChanged)
    assert followed.health.stuck() is None


def test_objects_that_are_skipped_are_counted_without_their_names() -> None:
    health = unnoted()
    health.skip("a", {"kind": "Pod", "metadata": None}, KeyError("x"))

    assert [*health.unread.values()] == [UnreadObject("Pod", "", "None", "KeyError: 'x'")]
    assert list(readiness_lines([health])) == ["watch of pods: 1 objects are skipped"]
