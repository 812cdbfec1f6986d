"""One collection of the API server as events: listed by pages or by a stream, then watched.

A list is lines, an object each: the JSON of a hundred thousand objects at once would take gigabytes. An
object whose version and value are known is not decoded at all: for one UID a resource version names one state
(k8s.io/apimachinery, ``ListOptions.SendInitialEvents``). That ends where etcd is restored from a backup:
versions go back, are used again, and a watch from one that lies in the future hears nothing. The order of
lists and watches is `reflector`'s.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from urllib.parse import urlencode

from timekeeper.edge.http1 import TooLong
from timekeeper.edge.http_client import FAILURES, NotConnected, sentence
from timekeeper.edge.reflector import (
    OPENED,
    ExpiredError,
    TooLongError,
    UnreachableError,
    UnreadableError,
    WatchFailed,
    WatchOpened,
    ended_by,
    mapping,
    reflect,
    version_of,
)
from timekeeper.edge.value import TYPE_CHECKING, Of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import Protocol, TypeVar

    from timekeeper.edge.http_client import HttpStream
    from timekeeper.edge.reflector import Json, WatchEvent
    from timekeeper.edge.source_health import SourceHealth

    V = TypeVar("V")

    class Lister(Protocol):
        """A client of the API server."""

        def decode(self, text: bytes, /) -> object:
            """The JSON. Raises ValueError."""

        def page(self, path: str) -> object:
            """The body of a list. Raises UnreachableError or ExpiredError."""

        def stream(self, path: str, silence_s: float) -> HttpStream:
            """An answer that goes on for long. Raises `FAILURES`, as reading it does."""
else:
    V = None

PAGE = 500
WATCH_S = 300
# After so long without a line a watch is opened anew: nothing promises a bookmark, and its peer may be gone.
SILENCE_S = 90.0
LATE_S = 15.0  # after the time at which a watch ends
QUIET_S = 60.0  # after so long without an event the API server is asked for its version
SPREAD_MS = 60_000  # after a restore all roles list everything, within this time
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

# the beginning of an event as the API server writes it, of names that need no escape
_HEAD = re.compile(
    rb'\{"type":"ADDED","object":\{"kind":"[A-Za-z]+","apiVersion":"[a-z0-9./]+","metadata":\{"name":"[^"\\]+",'
    rb'(?:"generateName":"[^"\\]+",)?(?:"namespace":"[^"\\]+",)?"uid":"([^"\\]+)","resourceVersion":"([0-9]+)"[,}]'
)


def inform(
    api: Lister,
    path: str,
    read: Callable[[Json], V | None],
    wait_ms: Callable[[int], object],
    health: SourceHealth,
    *,
    watch_s: int = WATCH_S,
    limit: int = PAGE,
    listing: Callable[[], object] = lambda: None,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[WatchEvent[V]]:
    """The events of the collection at ``path``, in order, until ``wait_ms`` is true. ``read`` makes a value
    of an object, None where the object does not matter; one that it fails on is skipped, stays as it was read
    before, and is noted in ``health``. ``watch_s``: how long one watch lasts; ``listing`` is called before
    each list is requested. Lists are streamed, and objects of a known version are not read again. If the API
    server refuses, lists come in pages of ``limit`` objects. ``now_s``: a monotonic clock."""
    streams = True
    known = KnownVersions(read, api.decode, health)
    newest, heard_s = "", now_s()  # the last version, and when an event came last
    was_away = False  # the last watch could not be opened

    def list_all() -> tuple[tuple[V, ...], str]:
        nonlocal streams
        listing()
        if streams:
            try:
                with closing(initial_events(api, path)) as lines:
                    values, version = known.listed(lines)
                if not is_before(version, newest):
                    return values, version
                health.went_back()
                known.by_uid.clear()  # it has taken objects for those that had their versions
                with closing(initial_events(api, path)) as lines:
                    return known.listed(lines)
            except NotStreamedError as error:
                streams = False
                health.log("not-streamed", level="info", path=path, reason=str(error))
        there: dict[str, V | None] = {}
        version = ""
        for items, version in pages(api, path, limit):  # noqa: B007 the last page's version is used
            there.update((_key(item), known.changed(item, deleted=False)) for item in items)
        if is_before(version, newest):
            health.went_back()
        return known.only(there), version

    def follow(version: str) -> Iterator[Json]:
        nonlocal newest, heard_s, was_away
        if was_away:  # its etcd may have been put back meanwhile, and soon have versions of the future again
            ends_where_restored(version)
        newest, is_open = version, False
        failure: UnreachableError | None = None
        try:
            for event in watch(api, path, version, watch_s):
                is_open = True
                if event.get("type") != OPENED:
                    before, newest, heard_s = newest, version_of(event) or newest, now_s()
                    if is_before(newest, before):
                        ends_where_restored(before)
                yield event
        except UnreachableError as error:
            was_away = not is_open
            # silence alone is no fault: the version that is asked for next decides
            failure = None if is_open and isinstance(error, SilentError) else error
        if now_s() - heard_s >= QUIET_S:
            ends_where_restored(newest)
        if failure is not None:
            raise failure

    def ends_where_restored(before: str) -> None:
        nonlocal heard_s, was_away
        heard_s = now_s()
        _, now = next(pages(api, path, 1))
        was_away = False
        if is_before(now, before):
            health.went_back()
            known.by_uid.clear()
            wait_ms(int(1_000_000 * now_s()) % SPREAD_MS)  # as good as random
            raise ExpiredError(f"{path}: etcd was restored: its version is {now}, and was {before}")

    health.failed("it has not been listed yet")
    for event in reflect(list_all, follow, wait_ms, known.changed):
        if isinstance(event, WatchFailed):
            health.failed(event.sentence)
        elif not isinstance(event, WatchOpened):
            health.is_whole()
        yield event


def is_before(version: str, other: str) -> bool:
    """Whether a resource version is older: they count up in the life of one etcd."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def pages(api: Lister, path: str, limit: int = PAGE) -> Iterator[tuple[list[Json], str]]:
    """All objects of a collection, page by page, each page with the list's resource version: read at quorum.
    A page that is too long is requested again with half the objects. Raises UnreachableError or
    ExpiredError."""
    more = ""
    while True:
        try:
            page = mapping(
                api.page(_with_query(path, {"limit": limit} | ({"continue": more} if more else {})))
            )
        except TooLongError:
            if limit == 1:
                raise
            limit //= 2
            continue
        items, metadata = page.get("items") or [], mapping(page.get("metadata"))
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise UnreachableError(f"the list of {path} has something that is no object")
        yield items, str(metadata.get("resourceVersion") or "")
        more = metadata.get("continue") or ""
        if not more:
            return


def watch(api: Lister, path: str, version: str, for_s: int = WATCH_S) -> Iterator[Json]:
    """The raw events from this resource version on, after one that says that the API server sends them, until
    it closes the stream after ``for_s``. Raises UnreachableError or ExpiredError."""
    for line in lines(api, path, {"resourceVersion": version, "timeoutSeconds": str(for_s)}, for_s + LATE_S):
        yield event_of(line, api.decode) if line else {"type": OPENED}


def initial_events(api: Lister, path: str) -> Generator[bytes, None, None]:
    """The lines of a watch that begins with one event for each object, read at quorum, and a bookmark after
    them. Raises NotStreamedError where the API server refuses that, UnreachableError or ExpiredError."""
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": str(WATCH_S),
    }
    with closing(lines(api, path, query, WATCH_S + LATE_S)) as events:
        yield from filter(None, events)


def lines(api: Lister, path: str, query: Mapping[str, str], silence_s: float) -> Generator[bytes, None, None]:
    """The lines of a watch; an empty one first, once the API server has accepted it. Raises as
    `initial_events`, also if none comes for ``silence_s``, or for `SILENCE_S`."""
    silence_s = min(silence_s, SILENCE_S)
    asked = _with_query(path, {"watch": "true", "allowWatchBookmarks": "true", **query})
    try:
        with closing(api.stream(asked, silence_s)) as stream:
            if stream.status != 200:
                message = _message(api, stream.status, stream.body())
                if "sendInitialEvents" in query and stream.status in (400, 422):
                    raise NotStreamedError(f"{stream.status} {message}")
                raise refused(stream.status, message)
            yield b""
            yield from stream.lines()
    except NotConnected as error:
        raise UnreachableError(f"the API server cannot be reached: {error}") from error
    except TooLong as error:
        raise UnreadableError(f"the watch of {path} broke: {error}") from error
    except FAILURES as error:
        is_silent = isinstance(error, TimeoutError)
        found = f"the watch of {path} broke: {sentence(error, silence_s)}"
        raise (SilentError if is_silent else UnreachableError)(found) from error


def refused(status: int, message: str) -> ExpiredError | UnreachableError:
    """What an answer that is no 2xx means."""
    return ExpiredError() if status == 410 else UnreachableError(f"{status} {message}")


def _message(api: Lister, status: int, text: bytes) -> str:
    try:
        return str(mapping(api.decode(text)).get("message") or f"HTTP {status}")
    except (ValueError, RecursionError):
        return f"HTTP {status}"


def _with_query(path: str, query: Mapping[str, object]) -> str:
    """The path, which may have a query of its own, with this one."""
    return f"{path}{'&' if '?' in path else '?'}{urlencode(query)}"


class SilentError(UnreachableError):
    """No line came for too long."""


class NotStreamedError(Exception):
    """The API server does not send lists in this way; the text says how it refused."""


class KnownVersions(Of[V]):
    """The values of the objects that matter, as they were read last, by UID. ``decode`` raises ValueError for
    what is no JSON."""

    def __init__(
        self,
        read: Callable[[Json], V | None],
        decode: Callable[[bytes], object],
        health: SourceHealth,
    ) -> None:
        self.read, self.decode, self.health = read, decode, health
        self.by_uid: dict[str, tuple[str, V]] = {}

    def changed(self, item: Json, deleted: bool, uid: str = "") -> V | None:
        """The value of the object of an event, which is known from now on unless it was deleted: the last one
        of an object that the reader fails on."""
        uid, unread = uid or _key(item), self.health.unread
        last: tuple[str, V | None] = self.by_uid.get(uid, ("", None))
        version, value = last
        try:
            value = self.read(item)
            version = str(mapping(item.get("metadata")).get("resourceVersion") or "")
        except Exception as error:  # a fault of ours, or an object that no API server sends
            self.health.skip(uid, item, error)
        else:
            if unread:
                unread.pop(uid, None)
        if deleted:
            unread.pop(uid, None)
        if deleted or value is None:
            self.by_uid.pop(uid, None)
        elif version:
            self.by_uid[uid] = version, value
        return value

    def only(self, there: dict[str, V | None]) -> tuple[V, ...]:
        """The values of these objects, by UID; others are not known any more."""
        for known in (self.by_uid, self.health.unread):
            for uid in known.keys() - there:
                del known[uid]
        return tuple(value for value in there.values() if value is not None)

    def listed(self, lines: Iterable[bytes]) -> tuple[tuple[V, ...], str]:
        """The values of all objects that the lines send, and the version of the list. Other objects are not
        known any more. Raises NotStreamedError where a bookmark marks no end, and UnreachableError or
        ExpiredError."""
        there: dict[str, V | None] = {}
        is_first = not self.by_uid
        for line in lines:
            head = None if is_first else _HEAD.match(line)
            if head is not None:
                uid, version = head[1].decode(), head[2].decode()
                known = self.by_uid.get(uid)
                if known is not None and known[0] == version:
                    there[uid] = known[1]
                    continue
            kind, item = self._event(line)
            if kind == "BOOKMARK":
                return self._ended(item, there)
            if kind == "ERROR":
                raise ended_by(item, "list")
            uid = _key(item)
            value = self.changed(item, kind == "DELETED", uid)
            there.pop(uid, None)
            if kind != "DELETED":
                there[uid] = value
        raise UnreachableError("the watch ended before the end of its list")

    def _event(self, line: bytes) -> tuple[str, Json]:
        """Type and object. Raises UnreachableError for a line that is no event."""
        event = event_of(line, self.decode)
        kind, item = event.get("type"), event.get("object")
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR") or not isinstance(item, dict):
            raise UnreadableError(f"the list has a line that is no event: {line[:100]!r}")
        return str(kind), item

    def _ended(self, bookmark: Json, there: dict[str, V | None]) -> tuple[tuple[V, ...], str]:
        metadata = mapping(bookmark.get("metadata"))
        if mapping(metadata.get("annotations")).get(INITIAL_EVENTS_END) != "true":
            raise NotStreamedError("the first bookmark does not mark the end of the initial events")
        return self.only(there), str(metadata.get("resourceVersion") or "")


def event_of(line: bytes, decode: Callable[[bytes], object]) -> Json:
    """A line of a watch. Raises UnreadableError for one that is no object."""
    try:
        event = decode(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"a watch sent something that is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise UnreadableError(f"a watch sent something that is not an event: {line[:100]!r}")
    return event


def _key(item: Json) -> str:
    """The UID; without one, as no API server sends it, namespace and name."""
    metadata = mapping(item.get("metadata"))
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
