"""The list that is followed: whole at each change, and again after a failure. What breaks a list or a watch
is in `tests.runtime.process.test_hostile_watches`."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs

import pytest

from sidecar.node.kube.api import ApiAnswer
from sidecar.node.kube.informer import LONGEST_PAUSE_S, PAGE, follow
from tests.support.api_server import PlayedStream, initial_lines
from tests.support.sources import unnoted
from timekeeper.edge.reflector import UnreachableError

PATH, ACCEPT = "/api/v1/pods?fieldSelector=x", "json;as=Metadata{}"


class Over(BaseException):
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
            raise UnreachableError(told)
        return told

    def call(self, _method: str, path: str, accept: str) -> ApiAnswer:
        told = self._next(path, accept)
        if isinstance(told, ApiAnswer):
            return told
        if isinstance(told, int):
            return ApiAnswer(told, None, "no")
        return ApiAnswer(200, {"items": told, "metadata": {"resourceVersion": "7"}}, "")

    def stream(self, path: str, accept: str, _silence_s: float) -> PlayedStream:
        told = self._next(path, accept)
        if isinstance(told, int):
            return PlayedStream(iter([b'{"message":"no"}']), told)
        if "sendInitialEvents" in path:
            return PlayedStream(initial_lines({"items": told, "metadata": {"resourceVersion": "7"}}))
        return PlayedStream(self._lines(told))

    def _lines(self, told: Sequence[Any]) -> Iterator[bytes]:
        for each in told:
            if isinstance(each, str):
                raise UnreachableError(each)
            yield json.dumps(each).encode()


def followed(server: Server) -> tuple[list[list[str]], list[str], list[float]]:
    """The UIDs that were heard each time, the failures, and the pauses."""
    heard: list[list[str]] = []
    failures: list[str] = []
    pauses: list[float] = []
    with pytest.raises(Over):
        follow(
            server,  # type: ignore[arg-type]
            PATH,
            ACCEPT,
            lambda them: heard.append(sorted(them)),
            failures.append,
            unnoted(),
            lambda raw: raw["metadata"]["uid"],
            pauses.append,
        )
    return heard, failures, pauses


def test_each_change_passes_the_whole_list_on() -> None:
    server = Server([thing("a", 5)], [event("ADDED", "b", 8), event("DELETED", "a", 9)])
    heard, failures, _ = followed(server)

    assert heard == [["a"], ["a", "b"], ["b"]]
    assert failures == []


def test_a_list_in_pages_is_of_its_own_kind_and_a_watch_of_the_items() -> None:
    server = Server(422, [], [])
    followed(server)

    (_, streamed_as), (listing, as_list), (watching, as_item), *_ = server.asked
    assert streamed_as == as_item
    assert (listing, as_list) == (f"{PATH}&limit={PAGE}", "json;as=MetadataList")
    assert watching.startswith(PATH + "&watch=true")
    assert parse_qs(watching)["resourceVersion"] == ["7"]
    assert as_item == "json;as=Metadata"


def test_after_a_failure_the_whole_list_is_passed_on_once_the_watch_is_open_again() -> None:
    version = ApiAnswer(200, {"items": [], "metadata": {"resourceVersion": "8"}}, "")
    cut, later = [event("ADDED", "b", 8), "reset"], [event("ADDED", "c", 9)]
    server = Server([thing("a", 5)], cut, "away", version, later)
    heard, failures, _ = followed(server)

    assert heard == [["a"], ["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert failures == ["reset", "away"]
    asked = [parse_qs(path).get("resourceVersion") for path, _ in server.asked[1:5]]
    assert asked == [["7"], ["8"], None, ["8"]]  # the version is asked for once it answers again


def test_an_api_server_that_is_away_or_refuses_is_called_ever_less_often() -> None:
    heard, failures, pauses = followed(Server(*["away"] * 5, *[403] * 5, []))

    assert heard == [[]]
    assert failures == ["away"] * 5 + ["403 no"] * 5
    assert pauses[:10] == [min(0.6 * 2**at, LONGEST_PAUSE_S) for at in range(10)]


def test_a_server_that_ends_each_watch_at_once_is_called_after_a_pause() -> None:
    _, _, pauses = followed(Server([], [], [], []))

    assert pauses == [0.5] * 3


def test_a_list_is_passed_on_once_it_is_whole() -> None:
    metadata = {"resourceVersion": "7", "continue": "x"}
    first = ApiAnswer(200, {"items": [thing("a", 5)], "metadata": metadata}, "")
    server = Server(422, first, [thing("b", 6)], [])
    heard, failures, _ = followed(server)

    assert (heard, failures) == ([["a", "b"]], [])
    assert server.asked[2][0] == f"{PATH}&limit={PAGE}&continue=x"


def test_an_object_that_cannot_be_read_is_skipped() -> None:
    odd = event("ADDED", "b", 8)
    del odd["object"]["metadata"]["uid"]
    heard, failures, _ = followed(Server([thing("a", 5), odd["object"]], [odd, event("ADDED", "c", 9)]))

    assert heard == [["a"], ["a", "c"]]
    assert failures == []


def test_a_fault_of_the_listener_is_logged_and_ends_nothing() -> None:
    server = Server([], [], [])
    failures: list[str] = []

    def heard(_objects: dict[str, Any]) -> None:
        raise OverflowError("too large")

    with pytest.raises(Over):
        follow(server, PATH, ACCEPT, heard, failures.append, unnoted(), lambda _: None, lambda _: None)  # type: ignore[arg-type]

    assert failures == ["OverflowError: too large"] * 3
