"""The list that is followed: whole at each change, begun anew where the watch breaks."""

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.node.kube.api import ApiAnswer, ApiUnreachable
from sidecar.node.kube.informer import LONGEST_PAUSE_S, PAGE, follow

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
            raise ApiUnreachable(told)
        return told

    def call(self, _method: str, path: str, accept: str) -> ApiAnswer:
        told = self._next(path, accept)
        if isinstance(told, ApiAnswer):
            return told
        if isinstance(told, int):
            return ApiAnswer(told, None, "no")
        return ApiAnswer(200, {"items": told, "metadata": {"resourceVersion": "7"}}, "")

    def watch(self, path: str, accept: str) -> Iterator[dict[str, Any]]:
        for each in self._next(path, accept):
            if isinstance(each, str):
                raise ApiUnreachable(each)
            yield each


def followed(server: Server) -> tuple[list[list[str]], list[str], list[float]]:
    """The UIDs that were heard each time, the failures, and the pauses."""
    heard: list[list[str]] = []
    failures: list[str] = []
    pauses: list[float] = []
    with pytest.raises(Over):
        follow(server, PATH, ACCEPT, lambda them: heard.append(sorted(them)), failures.append, pauses.append)  # type: ignore[arg-type]
    return heard, failures, pauses


def test_each_change_passes_the_whole_list_on() -> None:
    server = Server([thing("a", 5)], [event("ADDED", "b", 8), event("DELETED", "a", 9)])
    heard, failures, _ = followed(server)

    assert heard == [["a"], ["a", "b"], ["b"]]
    assert failures == []


def test_the_list_is_checked_by_its_own_kind_and_the_watch_by_the_items() -> None:
    server = Server([], [])
    followed(server)

    (listing, as_list), (watching, as_item), *_ = server.asked
    assert (listing, as_list) == (f"{PATH}&limit={PAGE}", "json;as=MetadataList")
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


def test_a_broken_watch_is_reported_and_the_list_read_again() -> None:
    heard, failures, _ = followed(Server([thing("a", 5)], [event("ADDED", "b", 8), "reset"], [thing("c", 9)]))

    assert heard == [["a"], ["a", "b"], ["c"]]
    assert failures == ["reset"]


def test_an_api_server_that_is_away_or_refuses_is_called_ever_less_often() -> None:
    heard, failures, pauses = followed(Server(*["away"] * 5, *[403] * 5, []))

    assert heard == [[]]
    assert failures == ["away"] * 5 + ["403 no"] * 5
    assert pauses[:10] == [min(0.5 * 2**at, LONGEST_PAUSE_S) for at in range(10)]


def test_a_server_that_ends_each_watch_at_once_is_called_after_a_pause() -> None:
    _, _, pauses = followed(Server([], [], [], []))

    assert pauses == [0.5] * 3


def page(uid: str, **metadata: str) -> ApiAnswer:
    return ApiAnswer(200, {"items": [thing(uid, 5)], "metadata": {"resourceVersion": "7", **metadata}}, "")


def test_a_list_is_read_by_pages_and_passed_on_once_it_is_whole() -> None:
    server = Server(page("a", **{"continue": "x/+="}), page("b"), [])
    heard, failures, _ = followed(server)

    assert (heard, failures) == ([["a", "b"]], [])
    asked = [path for path, _ in server.asked]
    assert asked[:2] == [f"{PATH}&limit={PAGE}", f"{PATH}&limit={PAGE}&continue=x%2F%2B%3D"]
    assert "limit" not in asked[2]


def test_pages_whose_version_is_gone_by_then_are_no_list() -> None:
    heard, failures, _ = followed(Server(page("a", **{"continue": "x"}), 410, [thing("b", 9)], []))

    assert (heard, failures) == ([["b"]], ["410 no"])


def test_an_unreadable_answer_is_logged_and_requested_again() -> None:
    empty, odd = ApiAnswer(200, None, ""), event("ADDED", "b", 8)
    del odd["object"]["metadata"]["uid"]
    heard, failures, pauses = followed(Server(empty, [], [odd], [thing("c", 9)], []))

    assert heard == [[], ["c"]]
    assert [each.partition(":")[0] for each in failures] == ["TypeError", "KeyError"]
    assert pauses[:2] == [0.5, 1.0]


def test_a_fault_of_the_listener_is_logged_and_ends_nothing() -> None:
    server = Server([], [], [])
    failures: list[str] = []

    def heard(_objects: dict[str, Any]) -> None:
        raise OverflowError("too large")

    with pytest.raises(Over):
        follow(server, PATH, ACCEPT, heard, failures.append, lambda _: None)  # type: ignore[arg-type]

    assert failures == ["OverflowError: too large"] * 3
