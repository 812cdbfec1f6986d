"""The list that is followed: whole at each change, begun anew where the watch breaks."""

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.node.api import Answer, Unreached
from sidecar.node.following import LONGEST_PAUSE_S, follow

PATH, ACCEPT = "/api/v1/pods?fieldSelector=x", "json;as=Metadata{}"


class Over(Exception):
    """The script has come to its end."""


def thing(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def event(kind: str, uid: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": thing(uid, version)}


class Server:
    """Answers lists and watches by a script: a list's objects, a watch's events, or why it cannot be
    reached."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, str]] = []

    def _next(self, path: str, accept: str) -> Any:
        self.asked.append((path, accept))
        if not self.script:
            raise Over
        told = self.script.pop(0)
        if isinstance(told, str):
            raise Unreached(told)
        return told

    def call(self, _method: str, path: str, accept: str) -> Answer:
        told = self._next(path, accept)
        if isinstance(told, int):
            return Answer(told, None, "no")
        return Answer(200, {"items": told, "metadata": {"resourceVersion": "7"}}, "")

    def watch(self, path: str, accept: str) -> Iterator[dict[str, Any]]:
        for each in self._next(path, accept):
            if isinstance(each, str):
                raise Unreached(each)
            yield each


def followed(server: Server) -> tuple[list[list[str]], list[str], list[float]]:
    """The UIDs that were heard each time, the failures, and the pauses."""
    heard: list[list[str]] = []
    failures: list[str] = []
    pauses: list[float] = []
    with pytest.raises(Over):
        follow(server, PATH, ACCEPT, lambda them: heard.append(sorted(them)), failures.append, pauses.append)  # type: ignore[arg-type]
    return heard, failures, pauses


def test_everything_is_heard_whole_at_each_change() -> None:
    server = Server([thing("a", 5)], [event("ADDED", "b", 8), event("DELETED", "a", 9)])
    heard, failures, _ = followed(server)

    assert heard == [["a"], ["a", "b"], ["b"]]
    assert failures == []


def test_the_list_is_asked_by_its_own_kind_and_the_watch_by_the_items() -> None:
    server = Server([], [])
    followed(server)

    (listing, as_list), (watching, as_item), *_ = server.asked
    assert (listing, as_list) == (PATH, "json;as=MetadataList")
    assert watching.startswith(PATH + "&watch=true")
    assert watching.endswith("&resourceVersion=7")
    assert as_item == "json;as=Metadata"


def test_a_watch_that_ends_goes_on_from_its_last_version_a_bookmark_counts() -> None:
    server = Server([], [event("ADDED", "a", 8), event("BOOKMARK", "", 12)], [])
    heard, _, _ = followed(server)

    assert server.asked[2][0].endswith("&resourceVersion=12")
    assert heard == [[], ["a"]]


def test_a_version_that_is_too_old_has_the_list_read_again() -> None:
    gone = {"type": "ERROR", "object": {"code": 410}}
    heard, failures, _ = followed(Server([thing("a", 5)], [gone], [thing("b", 9)], []))

    assert heard == [["a"], ["b"]]
    assert failures == []


def test_a_broken_watch_is_told_and_the_list_read_again() -> None:
    heard, failures, _ = followed(Server([thing("a", 5)], [event("ADDED", "b", 8), "reset"], [thing("c", 9)]))

    assert heard == [["a"], ["a", "b"], ["c"]]
    assert failures == ["reset"]


def test_an_api_server_that_is_away_or_refuses_is_asked_ever_less_often() -> None:
    heard, failures, pauses = followed(Server(*["away"] * 5, *[403] * 5, []))

    assert heard == [[]]
    assert failures == ["away"] * 5 + ["403 no"] * 5
    assert pauses[:10] == [min(0.5 * 2**at, LONGEST_PAUSE_S) for at in range(10)]


def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_a_breath() -> None:
    _, _, pauses = followed(Server([], [], [], []))

    assert pauses == [0.5] * 3
