"""The reflector: list, watch, resume, list again; tested with lists of calls."""

import itertools
from collections.abc import Iterator
from typing import Any

from tests.worlds import Json
from timekeeper.edge.reflector import (
    OPENED,
    ExpiredError,
    ObjectChanged,
    ObjectsListed,
    UnreachableError,
    WatchEvent,
    WatchFailed,
    WatchOpened,
    WatchProgress,
    reflect,
)


def thing(name: str, version: str) -> Json:
    return {"metadata": {"name": name, "resourceVersion": version}}


class Server:
    """Answers each list and each watch with the next of the prepared answers, and remembers what it was
    asked."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches = iter(lists), iter(watches)
        self.calls: list[str] = []
        self.waits: list[int] = []

    def list_all(self) -> tuple[tuple[Json, ...], str]:
        self.calls.append("list")
        answer = next(self.lists)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def watch(self, version: str) -> Iterator[Json]:
        self.calls.append(f"watch {version}")
        for event in next(self.watches):
            if isinstance(event, Exception):
                raise event
            yield event

    def events(self, count: int) -> list[WatchEvent[Json]]:
        events: Iterator[WatchEvent[Json]] = reflect(
            self.list_all, self.watch, self.waits.append, lambda item, _deleted: dict(item)
        )
        return list(itertools.islice(events, count))


def test_a_list_is_followed_by_a_watch_from_its_version_and_each_change_moves_it_on() -> None:
    a, b = thing("a", "5"), thing("b", "7")
    server = Server(
        [((a,), "5")],
        [[{"type": "ADDED", "object": b}, {"type": "DELETED", "object": thing("a", "8")}], [], []],
    )

    assert server.events(5) == [
        ObjectsListed((a,)),
        ObjectChanged(b, False),
        ObjectChanged(thing("a", "8"), True),
        WatchProgress(),
        WatchProgress(),
    ]
    assert server.calls == ["list", "watch 5", "watch 8"]


def test_a_bookmark_moves_the_version_on() -> None:
    server = Server([((), "1")], [[{"type": "BOOKMARK", "object": thing("", "90")}], []])

    assert server.events(3) == [ObjectsListed(()), WatchProgress(), WatchProgress()]
    assert server.events(0) == []
    assert server.calls == ["list", "watch 1"]


def test_an_expired_version_leads_to_a_new_list() -> None:
    gone = {"type": "ERROR", "object": {"code": 410}}
    server = Server([((), "1"), ((thing("x", "9"),), "9"), ((), "12")], [[gone], [ExpiredError()]])

    assert server.events(3) == [ObjectsListed(()), ObjectsListed((thing("x", "9"),)), ObjectsListed(())]
    assert server.calls == ["list", "watch 1", "list", "watch 9", "list"]


def test_after_failures_the_watch_continues_at_its_version_with_growing_pauses() -> None:
    server = Server(
        [UnreachableError("refused"), UnreachableError("refused"), ((), "3")],
        [[UnreachableError("reset")], [{"type": "ADDED", "object": thing("n", "4")}]],
    )

    assert server.events(5) == [
        WatchFailed("refused"),
        WatchFailed("refused"),
        ObjectsListed(()),
        WatchFailed("reset"),
        ObjectChanged(thing("n", "4"), False),
    ]
    assert server.waits[:3] == [200, 400, 800]
    assert server.calls == ["list", "list", "list", "watch 3", "watch 3"]


def test_the_first_watch_that_opens_after_a_failure_says_so_once() -> None:
    """Its pause stays long until something arrives: a server may cut each watch at once."""
    opened = {"type": OPENED}
    server = Server(
        [((), "3")],
        [
            [opened, UnreachableError("403 forbidden")],
            [UnreachableError("403 forbidden")],
            [opened],
            [opened],
        ],
    )

    assert server.events(6) == [
        ObjectsListed(()),
        WatchFailed("403 forbidden"),
        WatchFailed("403 forbidden"),
        WatchOpened(),
        WatchProgress(),
        WatchProgress(),
    ]
    assert server.waits[:2] == [200, 400]


def test_waits_have_an_upper_bound() -> None:
    server = Server([UnreachableError("no")] * 20, [])

    server.events(12)

    assert max(server.waits) == 10_000


def test_a_wait_that_is_true_ends_the_events() -> None:
    server = Server([UnreachableError("no")] * 3, [])

    events = reflect(server.list_all, server.watch, lambda _ms: len(server.calls) == 2, lambda raw, _: raw)

    assert list(events) == [WatchFailed("no")] * 2
