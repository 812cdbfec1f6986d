"""etcd is restored from a backup: resource versions go back, and are used again."""

import itertools
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sources import unnoted
from tests.worlds import Json
from timekeeper.edge import list_watch
from timekeeper.edge.list_watch import QUIET_S, SPREAD_MS, inform
from timekeeper.edge.reflector import (
    ObjectChanged,
    ObjectsListed,
    UnreachableError,
    WatchEvent,
    WatchFailed,
    WatchOpened,
    WatchProgress,
)
from timekeeper.edge.source_health import RESTORED_MS, SourceHealth

PATH = "/api/v1/pods"


def pod(name: str, version: int, node: str) -> Json:
    """As the API server writes it."""
    metadata = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"nodeName": node}}


def change(kind: str, version: int | str, name: str = "p") -> Json:
    """An event of a watch."""
    metadata = {"name": name, "uid": name, "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": metadata}}


class Etcd:
    """An API server over an etcd that may be restored; a watch from a version in its future hears nothing.
    ``sends``: what the next watches send; ``is_away``: no watch can be opened."""

    def __init__(self, streams: bool) -> None:
        self.now_s, self.streams = 0.0, streams
        self.version, self.pods = 900, [pod("p", 900, "a")]
        self.asked: list[str] = []
        self.sends: list[list[Json]] = []
        self.is_away, self.tells_version = False, True

    def decode(self, text: bytes, /) -> object:
        return json.loads(text)

    def page(self, path: str) -> object:
        if self.is_away or not self.tells_version:
            raise UnreachableError("away")
        self.asked.append(path.partition("?")[2])
        return {"items": self.pods, "metadata": {"resourceVersion": str(self.version)}}

    def stream(self, path: str, silence_s: float) -> Any:
        lines: list[Any] = []
        if self.is_away:
            self.asked.append("away")
            return SimpleNamespace(status=503, close=lambda: None, body=lambda: b"{}")
        if "sendInitialEvents" in path and not self.streams:
            return SimpleNamespace(status=400, close=lambda: None, body=lambda: b"{}")
        if "sendInitialEvents" in path:
            self.asked.append("stream")
            lines += [{"type": "ADDED", "object": item} for item in self.pods]
            end = {list_watch.INITIAL_EVENTS_END: "true"}
            metadata = {"resourceVersion": str(self.version), "annotations": end}
            lines.append({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": metadata}})
        else:
            self.asked.append("watch")
            lines += self.sends.pop(0) if self.sends else []
            versions = [line["object"]["metadata"]["resourceVersion"] for line in lines]
            self.version = max([self.version, *map(int, filter(str.isdecimal, versions))])
            self.now_s += 20
        texts = [json.dumps(line, separators=(",", ":")).encode() for line in lines]
        return SimpleNamespace(status=200, lines=lambda: iter(texts), close=lambda: None, body=lambda: b"")


def events(
    etcd: Etcd, waits: list[int], health: SourceHealth | None = None
) -> Iterator[WatchEvent[tuple[str, str]]]:
    def read(item: Mapping[str, Any]) -> tuple[str, str]:
        return item["metadata"]["resourceVersion"], item.get("spec", {}).get("nodeName", "")

    return inform(etcd, PATH, read, waits.append, health or unnoted(), watch_s=15, now_s=lambda: etcd.now_s)


def until_listed(source: Iterator[WatchEvent[tuple[str, str]]]) -> list[WatchEvent[tuple[str, str]]]:
    seen = []
    for event in itertools.islice(source, 50):
        seen.append(event)
        if isinstance(event, ObjectsListed):
            return seen
    raise AssertionError(seen)


@pytest.mark.parametrize("streams", [False, True])
def test_a_restore_is_found_after_a_minute_of_silence_and_what_was_known_by_version_is_read_anew(
    streams: bool,
) -> None:
    etcd, waits = Etcd(streams), list[int]()
    health = SourceHealth("pods", lambda *_, **__: None, lambda: round(1000 * etcd.now_s))
    source = events(etcd, waits, health)
    until_listed(source)
    assert health.restored_ms() is None

    etcd.version, etcd.pods = 700, [pod("p", 500, "a")]
    heard = until_listed(source)

    assert [event for event in heard if isinstance(event, WatchFailed)] == [
        WatchFailed(f"{PATH}: etcd was restored: its version is 700, and was 900")
    ]
    assert heard[-1] == ObjectsListed((("500", "a"),))
    assert etcd.now_s <= QUIET_S + 20
    assert max(waits) < SPREAD_MS
    assert health.restored_ms() == 1000 * etcd.now_s
    etcd.now_s += RESTORED_MS / 1000 - 1
    assert health.restored_ms() is not None
    etcd.now_s += 1
    assert health.restored_ms() is None


def test_a_version_that_is_used_again_is_no_known_state() -> None:
    """The pod was bound to another node since, and its object has the version that it had before."""
    etcd = Etcd(True)
    source = events(etcd, [])
    until_listed(source)

    etcd.version, etcd.pods = 899, [pod("p", 900, "b")]

    assert until_listed(source)[-1] == ObjectsListed((("900", "b"),))


def test_a_list_that_goes_back_is_read_again_without_what_was_known() -> None:
    """A watch expired, before a minute of silence was over: the list shows it."""
    etcd, health = Etcd(True), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, [], health)
    until_listed(source)
    watched = etcd.stream

    def expired(path: str, silence_s: float) -> Any:
        answer = watched(path, silence_s)
        if "sendInitialEvents" not in path:
            answer.status = 410
        return answer

    etcd.stream = expired  # type: ignore[method-assign]
    etcd.version, etcd.pods = 899, [pod("p", 900, "b")]

    assert until_listed(source)[-1] == ObjectsListed((("900", "b"),))
    assert health.restored_ms() == 7


@pytest.mark.parametrize("streams", [False, True])
def test_a_restore_is_found_by_an_event_with_an_older_version(streams: bool) -> None:
    etcd, waits = Etcd(streams), list[int]()
    health = SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, waits, health)
    until_listed(source)

    etcd.version, etcd.pods = 702, [pod("p", 500, "a")]
    etcd.sends = [[change("ADDED", 701, "q"), change("ADDED", 702, "r")]]
    heard = until_listed(source)

    assert heard == [
        WatchFailed(f"{PATH}: etcd was restored: its version is 702, and was 900"),
        ObjectsListed((("500", "a"),)),
    ]
    assert etcd.now_s == 20  # no silence was waited for
    assert health.restored_ms() == 7


@pytest.mark.parametrize("streams", [False, True])
def test_a_restore_while_no_watch_could_be_opened_is_found_before_its_versions_are_passed(
    streams: bool,
) -> None:
    """Its collection is in motion: a minute later etcd has newer versions than before, and events come."""
    etcd, health = Etcd(streams), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, [], health)
    until_listed(source)
    etcd.is_away = True
    assert isinstance(next(source), WatchFailed)

    etcd.is_away, etcd.version, etcd.pods = False, 880, [pod("p", 500, "a")]
    etcd.sends = [[change("ADDED", 901, "q")]]
    heard = until_listed(source)

    assert heard[-1] == ObjectsListed((("500", "a"),))
    assert health.restored_ms() == 7


@pytest.mark.parametrize("streams", [False, True])
def test_a_restore_whose_versions_are_newer_than_ours_at_the_first_answer_is_found_by_the_next_list_alone(
    streams: bool,
) -> None:
    """What decision 120 gives up: as much was written in the seconds before that answer as the restore took
    back."""
    etcd, health = Etcd(streams), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, [], health)
    until_listed(source)
    etcd.is_away = True
    assert isinstance(next(source), WatchFailed)

    etcd.is_away, etcd.version, etcd.pods = False, 901, []
    etcd.sends = [[change("ADDED", 902, "q")], [EXPIRED]]
    heard = until_listed(source)

    assert ObjectChanged(("902", ""), False) in heard
    assert heard[-1] == ObjectsListed(())
    assert health.restored_ms() is None


EXPIRED = {"type": "ERROR", "object": {"code": 410, "metadata": {"resourceVersion": ""}}}
HEALTHY: dict[str, list[list[Json]]] = {
    "changes, a deletion with its own version, a bookmark": [
        [change("MODIFIED", 901), change("DELETED", 903), change("BOOKMARK", 903), change("BOOKMARK", 950)]
    ],
    "changes of one transaction": [[change("ADDED", 901, "q"), change("ADDED", 901, "r")]],
    "a bookmark without a version": [[change("ADDED", 901, "q"), change("BOOKMARK", "")]],
    "versions that are no numbers": [[change("ADDED", "9-b", "q"), change("ADDED", "9-a", "r")]],
    "a deletion with the version before it": [[change("ADDED", 901, "q"), change("DELETED", 900)]],
    "old changes once more": [
        [change("ADDED", 901, "q"), *(change("MODIFIED", version) for version in range(850, 899))]
    ],
    "a watch that another API server goes on with": [
        [change("ADDED", 905, "q")],
        [change("ADDED", 906, "r")],
    ],
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("row", HEALTHY)
def test_a_healthy_etcd_is_never_taken_for_a_restored_one(row: str, streams: bool) -> None:
    """Whatever its watch sends, in whichever order: the version of a list decides. A follower of an earlier
    etcd sent older ones (etcd-io/etcd#20221), as Kubernetes before 1.10 did of what was deleted."""
    etcd, health = Etcd(streams), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, [], health)
    until_listed(source)
    del etcd.asked[:]

    etcd.version, etcd.sends = 960, list(HEALTHY[row])
    sent = sum(map(len, etcd.sends))
    heard = list(itertools.islice(source, sent + 5))

    assert not any(isinstance(event, ObjectsListed | WatchFailed) for event in heard)
    assert set(etcd.asked) <= {"watch", "limit=1"}
    assert etcd.asked.count("limit=1") <= 2  # also where one older event follows another
    assert health.restored_ms() is None


def test_an_api_server_that_was_away_is_asked_once_for_its_version() -> None:
    etcd, health = Etcd(True), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    source = events(etcd, [], health)
    until_listed(source)
    etcd.is_away = True
    assert [type(next(source)) for _ in range(3)] == [WatchFailed] * 3
    del etcd.asked[:]

    etcd.is_away = False
    heard = list(itertools.islice(source, 3))

    assert etcd.asked == ["limit=1", "watch", "watch"]
    assert list(map(type, heard)) == [WatchOpened, WatchProgress, WatchProgress]
    assert health.restored_ms() is None


def test_a_list_is_in_any_order_of_versions() -> None:
    etcd, health = Etcd(True), SourceHealth("pods", lambda *_, **__: None, lambda: 7)
    etcd.pods = [pod("p", 880, "a"), pod("q", 12, "a"), pod("r", 700, "b")]
    source = events(etcd, [], health)

    assert until_listed(source)[-1] == ObjectsListed((("880", "a"), ("12", "a"), ("700", "b")))
    assert health.restored_ms() is None


def silent(etcd: Etcd, opens: bool = True) -> None:
    """From now on its watches send the first bookmark after 120 s, as those of quiet collections do;
    ``opens``: they are accepted."""
    answered = etcd.stream

    def stream(path: str, silence_s: float) -> Any:
        answer = answered(path, silence_s)
        if "sendInitialEvents" in path:
            return answer
        etcd.now_s += min(silence_s, 120) - 20
        if not opens:
            raise TimeoutError

        def lines() -> Iterator[bytes]:
            if silence_s < 120:
                raise TimeoutError
            yield json.dumps(change("BOOKMARK", etcd.version)).encode()

        answer.lines = lines
        return answer

    etcd.stream = stream  # type: ignore[method-assign]


@pytest.mark.parametrize("streams", [False, True])
def test_two_hours_without_an_event_or_an_early_bookmark_are_no_fault(streams: bool) -> None:
    etcd, said = Etcd(streams), list[str]()
    health = SourceHealth("pods", lambda event, **_: said.append(event), lambda: round(1000 * etcd.now_s))
    source = inform(
        etcd, PATH, lambda item: item, lambda _: None, health, watch_s=300, now_s=lambda: etcd.now_s
    )
    while not isinstance(next(source), ObjectsListed):
        pass
    del etcd.asked[:], said[:]
    silent(etcd)

    heard: list[Any] = []
    while etcd.now_s < 7200:
        heard.append(next(source))

    assert {type(event) for event in heard} == {WatchProgress}
    assert etcd.asked.count("watch") >= 7200 // 120
    assert set(etcd.asked) == {"watch", "limit=1"}
    assert said == []
    assert health.restored_ms() is None


def test_silence_is_a_fault_where_no_watch_can_be_opened_or_no_version_is_told() -> None:
    for opens in (False, True):
        etcd = Etcd(True)
        source = events(etcd, [])
        until_listed(source)
        silent(etcd, opens)
        etcd.tells_version = not opens
        failed = next(event for event in itertools.islice(source, 9) if isinstance(event, WatchFailed))
        assert failed.sentence == ("away" if opens else f"the watch of {PATH} broke: no answer within 30 s")


def test_a_restore_behind_a_silent_watch_is_found() -> None:
    etcd = Etcd(True)
    source = events(etcd, [])
    until_listed(source)
    silent(etcd)

    etcd.version, etcd.pods = 700, [pod("p", 500, "a")]

    assert until_listed(source)[-1] == ObjectsListed((("500", "a"),))
    assert etcd.now_s <= list_watch.SILENCE_S


@pytest.mark.parametrize("streams", [False, True])
def test_a_quiet_collection_is_never_listed_again(streams: bool) -> None:
    etcd = Etcd(streams)
    source = events(etcd, [])
    until_listed(source)
    del etcd.asked[:]

    heard = list(itertools.islice(source, 40))

    assert set(map(type, heard)) == {WatchProgress}
    assert set(etcd.asked) == {"watch", "limit=1"}
    assert etcd.asked.count("limit=1") <= etcd.asked.count("watch") // 3
