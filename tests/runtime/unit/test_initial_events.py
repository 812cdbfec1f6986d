"""A streamed list: known versions are not decoded, and what comes out is what decoding everything gives."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.api_server import PlayedStream
from tests.support.profile import examples
from tests.support.sources import unnoted
from tests.worlds import Json
from timekeeper.edge.list_watch import KnownVersions, NotStreamedError, inform, pages
from timekeeper.edge.reflector import ExpiredError, ObjectsListed, TooLongError, UnreachableError
from timekeeper.edge.source_health import SourceHealth, UnreadObject


def line(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}, separators=(",", ":"), ensure_ascii=False).encode()


def thing(uid: str, version: str, **metadata: Any) -> Json:
    first = {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {**first, **metadata}}


def end(version: str = "9", **annotations: str) -> bytes:
    marks = annotations or {"k8s.io/initial-events-end": "true"}
    return line("BOOKMARK", {"metadata": {"resourceVersion": version, "annotations": marks}})


def whole(item: Mapping[str, Any]) -> str:
    return json.dumps(item, sort_keys=True)


class Counted:
    """Reads an object as its text, and counts."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.known: KnownVersions[str] = KnownVersions(self._read, json.loads, unnoted())

    def _read(self, item: Mapping[str, Any]) -> str:
        self.read.append(item["metadata"]["uid"])
        return whole(item)


def test_only_changed_objects_are_decoded_and_those_that_are_gone_are_forgotten() -> None:
    counted = Counted()
    first = [thing("a", "1"), thing("b", "2"), thing("c", "3")]
    second = [thing("a", "1"), thing("b", "5"), thing("d", "6")]

    assert counted.known.listed([*(line("ADDED", x) for x in first), end()])[1] == "9"
    counted.read.clear()
    found = counted.known.listed([*(line("ADDED", x) for x in second), end("12")])

    assert found == (tuple(map(whole, second)), "12")
    assert counted.read == ["b", "d"]
    assert {*counted.known.by_uid} == {"a", "b", "d"}


def test_events_of_a_watch_are_known_too() -> None:
    counted = Counted()
    counted.known.listed([line("ADDED", thing("a", "1")), line("ADDED", thing("b", "2")), end()])
    counted.known.changed(thing("a", "3"), deleted=False)
    counted.known.changed(thing("b", "4"), deleted=True)
    counted.read.clear()

    found, _ = counted.known.listed([line("ADDED", thing("a", "3")), end()])

    assert (found, counted.read) == ((whole(thing("a", "3")),), [])
    assert {*counted.known.by_uid} == {"a"}


def test_what_changes_before_the_end_is_as_it_is_then() -> None:
    events = [
        line("ADDED", thing("a", "1")),
        line("ADDED", thing("b", "2")),
        line("MODIFIED", thing("a", "3")),
        line("DELETED", thing("b", "4")),
        line("ADDED", thing("c", "5")),
        end(),
    ]

    assert Counted().known.listed(events)[0] == (whole(thing("a", "3")), whole(thing("c", "5")))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([line("ADDED", thing("a", "1"))], UnreachableError),
        ([line("ADDED", thing("a", "1")), end(other="true")], NotStreamedError),
        ([line("ERROR", {"code": 410})], ExpiredError),
        ([line("ERROR", {"code": 500})], UnreachableError),
        ([b"7"], UnreachableError),
        ([b'{"type":"ADDED","obj'], UnreachableError),
        ([b'{"type":"ADDED"}'], UnreachableError),
    ],
)
def test_a_list_without_its_end_is_no_list(lines: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        Counted().known.listed(lines)


WORD = st.sampled_from(["a", "b", 'b","resourceVersion":"1', "\\", "\u00e4", '"', "{"])


def odd(uid: str, version: str, name: str, note: str, front: bool) -> Json:
    return {
        **({"kind": "Pod", "apiVersion": "v1"} if front else {"metadata": {}}),
        "metadata": {"name": name, "uid": uid, "resourceVersion": version, "annotations": {"x": note}},
        "spec": {"metadata": {"uid": note}},
    }


OBJECTS = st.builds(odd, WORD, st.sampled_from(["1", "2"]), WORD, WORD, st.booleans())


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(OBJECTS, max_size=4, unique_by=lambda each: each["metadata"]["uid"]), max_size=4))
def test_a_list_says_what_its_objects_say_whatever_was_listed_before(lists: list[list[Json]]) -> None:
    """One version of one UID is one object."""
    counted, first = Counted(), dict[tuple[str, str], Json]()
    for each in lists:
        items = [
            first.setdefault((item["metadata"]["uid"], item["metadata"]["resourceVersion"]), item)
            for item in each
        ]

        found = counted.known.listed([*(line("ADDED", item) for item in items), end()])

        assert found == (tuple(map(whole, items)), "9")


def fussy(item: Mapping[str, Any]) -> str:
    """A reader that fails on some objects."""
    if "spoilt" in item["metadata"]:
        raise KeyError("spoilt")
    return whole(item)


def test_an_object_that_the_reader_fails_on_stays_as_it_was_and_is_named_once() -> None:
    logged: list[tuple[str, object]] = []
    health = SourceHealth("pods", lambda event, **fields: logged.append((event, fields["name"])), lambda: 0)
    known = KnownVersions(fussy, json.loads, health)
    good, first = thing("a", "1"), thing("b", "2")
    spoilt, other = thing("a", "3", spoilt=1), thing("c", "4", spoilt=1)
    reason = "KeyError: 'spoilt'"

    assert known.listed([line("ADDED", good), line("ADDED", first), end()])[0] == (whole(good), whole(first))
    assert known.changed(spoilt, deleted=False) == whole(good)
    again = known.listed([line("ADDED", spoilt), line("ADDED", other), line("ADDED", first), end()])[0]
    assert sorted(again) == [whole(good), whole(first)]
    assert {*health.unread.values()} == {
        UnreadObject("Pod", "n", "a", reason),
        UnreadObject("Pod", "n", "c", reason),
    }
    assert known.changed(other, deleted=True) is None
    assert known.changed(spoilt, deleted=True) == whole(good)
    assert (health.unread, logged) == ({}, [("object-unread", "a"), ("object-unread", "c")])


def test_an_object_that_is_read_again_or_that_no_list_has_is_not_named_any_more() -> None:
    health = unnoted()
    known = KnownVersions(fussy, json.loads, health)
    known.listed([line("ADDED", thing(name, "1", spoilt=1)) for name in "abc"] + [end()])

    known.changed(thing("a", "2"), deleted=False)
    assert {*health.unread} == {"b", "c"}
    known.listed([line("ADDED", thing("a", "2")), line("ADDED", thing("b", "1", spoilt=1)), end()])
    assert {*health.unread} == {"b"}


class Pages:
    """An API server that refuses to stream lists; a page of more than ``most`` objects is too long."""

    decode = staticmethod(json.loads)

    def __init__(self, count: int, most: int) -> None:
        self.items = [thing(str(at), "1") for at in range(count)]
        self.most = most
        self.limits: list[int] = []

    def stream(self, path: str, _silence_s: float) -> PlayedStream:
        return PlayedStream(iter([b'{"message":"no"}']), 422)

    def page(self, path: str) -> Json:
        asked = dict(parse_qsl(path.partition("?")[2]))
        begin, limit = int(asked.get("continue", "0")), int(asked["limit"])
        self.limits.append(limit)
        if limit > self.most:
            raise TooLongError("too long")
        more = str(begin + limit) if begin + limit < len(self.items) else ""
        metadata = {"resourceVersion": "9", "continue": more}
        return {"items": self.items[begin : begin + limit], "metadata": metadata}


def test_a_page_that_is_too_long_is_requested_with_half_the_objects() -> None:
    server = Pages(5, 2)

    assert [item["metadata"]["uid"] for page, _ in pages(server, "/p", 9) for item in page] == list("01234")
    assert server.limits == [9, 4, 2, 2, 2]


def test_a_single_object_that_is_too_long_is_a_failure() -> None:
    with pytest.raises(TooLongError):
        list(pages(Pages(1, 0), "/p", 2))


def test_lists_come_in_pages_where_the_api_server_streams_none() -> None:
    refusals: list[tuple[str, object]] = []
    health = SourceHealth(
        "pods", lambda event, **fields: refusals.append((event, fields["reason"])), lambda: 0
    )

    listed = next(inform(Pages(3, 9), "/p", fussy, lambda _: None, health))

    assert listed == ObjectsListed(tuple(whole(thing(name, "1")) for name in "012"))
    assert refusals == [("not-streamed", "422 no")]
