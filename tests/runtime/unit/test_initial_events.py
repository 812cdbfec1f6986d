"""A streamed list: known versions are not decoded, and what comes out is what decoding everything gives."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.profile import examples
from tests.worlds import Json
from timekeeper.edge.list_watch import KnownVersions, NotStreamedError
from timekeeper.edge.reflector import ExpiredError, UnreachableError


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
        self.known: KnownVersions[str] = KnownVersions(self._read, json.loads)

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
