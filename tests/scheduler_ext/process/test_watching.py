"""Watches that break in every way: closed, cut in the middle of an event, garbage, expired, refused. They go
on where they were, and nothing is asked in a tight loop."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler_ext.cache.informers import PODS
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from tests.worlds import Json
from timekeeper.core.kube.reflector import (
    ObjectChanged,
    ObjectsListed,
    WatchEvent,
    WatchFailed,
    WatchOpened,
    WatchProgress,
)
from timekeeper.runtime.connect import connect
from timekeeper.runtime.informer import inform


def thing(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(kind: str, name: str, version: int) -> bytes:
    return json.dumps({"type": kind, "object": thing(name, version)}).encode() + b"\n"


BOOKMARK = line("BOOKMARK", "", 90)
GONE = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode() + b"\n"
ANGRY = json.dumps({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}).encode() + b"\n"


class Scripted:
    """Answers each watch with the next of these streams (a number: that status instead), each cut off after
    its bytes, in order or in the middle of a chunk. ``asked``: what each call asked for."""

    def __init__(self, *streams: bytes | int, orderly: bool = True) -> None:
        self.streams, self.orderly = list(streams), orderly
        self.asked: list[str] = []
        self.lists = 0


class Handler(JsonHandler):
    script: Scripted

    def do_GET(self) -> None:
        query = self.path.partition("?")[2]
        if "watch=true" not in query:
            self.script.asked.append("list")
            self.script.lists += 1
            version = str(10 * self.script.lists)
            items = [thing("a", 1)]
            return self.answer(200, {"items": items, "metadata": {"resourceVersion": version}})
        (version,) = (each for each in query.split("&") if each.startswith("resourceVersion="))
        self.script.asked.append(version.partition("=")[2])
        stream = self.script.streams.pop(0) if self.script.streams else b""
        if isinstance(stream, int):
            return self.answer(stream, {"message": f"status {stream}"})
        self.begin_stream()
        if stream:
            self.chunk(stream)
        if self.script.orderly:
            self.chunk(b"")
        else:
            self.close_connection = True


def names(found: list[WatchEvent[Json]]) -> list[str]:
    """The events in short: a list, a change or an end of an object, progress, a failure."""
    short = []
    for each in found:
        if isinstance(each, ObjectsListed):
            short.append("list")
        elif isinstance(each, ObjectChanged):
            short.append(("-" if each.deleted else "+") + each.item["metadata"]["name"])
        else:
            words = {WatchProgress: "progress", WatchOpened: "opened", WatchFailed: "failed"}
            short.append(words[type(each)])
    return short


@pytest.fixture
def heard(
    tmp_path: Path,
) -> Callable[[Scripted, int], tuple[list[str], list[int], list[WatchEvent[Json]]]]:
    """The first events of a scripted server, and how long was waited in between."""

    def hear(script: Scripted, count: int) -> tuple[list[str], list[int], list[WatchEvent[Json]]]:
        waits: list[int] = []
        with Served(type("Own", (Handler,), {"script": script})) as server:
            stream = inform(connect(kubeconfig(tmp_path, server.url)), PODS, dict, waits.append)
            found = [event for _, event in itertools.islice(stream, count)]
        return names(found), waits, found

    return hear


Heard = Callable[[Scripted, int], tuple[list[str], list[int], list[WatchEvent[Json]]]]


def test_a_stream_that_is_closed_is_resumed_where_it_ended(heard: Heard) -> None:
    script = Scripted(line("ADDED", "b", 11) + line("DELETED", "a", 12), line("ADDED", "c", 13))

    found, waits, _ = heard(script, 6)

    assert found == ["list", "+b", "-a", "progress", "+c", "progress"]
    assert script.asked[:3] == ["list", "10", "12"]
    assert all(waits)


def test_a_bookmark_moves_on_where_it_is_resumed(heard: Heard) -> None:
    script = Scripted(BOOKMARK, b"")

    heard(script, 4)

    assert script.asked[:3] == ["list", "10", "90"]


@pytest.mark.parametrize(
    "broken",
    [b'{"type": "ADDED", "obj', b"garbage\n", b"\xff\xfe\n", ANGRY],
    ids=["half", "garbage", "bytes", "error"],
)
def test_after_a_half_event_or_garbage_it_goes_on_from_the_last_whole_one(
    heard: Heard, broken: bytes
) -> None:
    script = Scripted(line("ADDED", "b", 11) + broken, line("ADDED", "c", 13), orderly=False)

    found, waits, _ = heard(script, 6)

    assert [each for each in found if each not in ("failed", "opened")][:3] == ["list", "+b", "+c"]
    assert script.asked[:3] == ["list", "10", "11"]
    assert waits[0] >= 200


@pytest.mark.parametrize("strange", [b"7\n", b"null\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"object": 7}\n'])
def test_a_line_that_is_no_event_ends_nothing_for_good(heard: Heard, strange: bytes) -> None:
    script = Scripted(line("ADDED", "b", 11) + strange, line("ADDED", "c", 13))

    found, _, _ = heard(script, 6)

    assert "+c" in found


@pytest.mark.parametrize("expired", [GONE, 410])
def test_what_has_expired_is_listed_anew(heard: Heard, expired: bytes | int) -> None:
    script = Scripted(expired, line("ADDED", "c", 23))

    found, _, _ = heard(script, 3)

    assert found == ["list", "list", "+c"]
    assert script.asked == ["list", "10", "list", "20"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_refuses_is_called_ever_less_often_and_nothing_is_listed_anew(
    heard: Heard, status: int
) -> None:
    script = Scripted(status, status, status, line("ADDED", "b", 11))

    found, waits, _ = heard(script, 6)

    assert found == ["list", "failed", "failed", "failed", "opened", "+b"]
    assert waits == [200, 400, 800]
    assert script.asked == ["list", "10", "10", "10", "10"]


def test_a_server_that_expires_everything_at_once_is_not_called_in_a_tight_loop(heard: Heard) -> None:
    script = Scripted(*[410] * 8)

    found, waits, _ = heard(script, 8)

    assert found == ["list"] * 8
    assert sum(waits) > 2_000


def test_a_failure_says_what_was_wrong(heard: Heard) -> None:
    _, _, found = heard(Scripted(500), 2)

    assert found[1] == WatchFailed("500 status 500")
