"""One collection of the API server as events: listed by pages or by a stream, then watched.

Each object becomes a value as its line or page arrives: the JSON of a hundred thousand objects at once would
take gigabytes. In a list that is streamed, an object whose version is known is not decoded at all: for one
UID a resource version names one state (k8s.io/apimachinery, ``ListOptions.SendInitialEvents``). The order of
lists and watches is `reflector`'s.
"""

from __future__ import annotations

import re
from contextlib import closing
from urllib.parse import urlencode

from timekeeper.edge.http_client import FAILURES, sentence
from timekeeper.edge.reflector import OPENED, ExpiredError, UnreachableError, ended_by, mapping, reflect
from timekeeper.edge.value import TYPE_CHECKING, Of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import Protocol, TypeVar

    from timekeeper.edge.http_client import HttpStream
    from timekeeper.edge.reflector import Json, WatchEvent

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
SILENCE_S = 90.0  # bookmarks come about each minute: a watch that is silent for longer is dead
LATE_S = 15.0  # after the time at which a watch ends
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
    *,
    watch_s: int = WATCH_S,
    limit: int = PAGE,
    listing: Callable[[], object] = lambda: None,
    not_streamed: Callable[[str], None] | None = None,
) -> Iterator[WatchEvent[V]]:
    """The events of the collection at ``path``, in order, until ``wait_ms`` is true. ``read`` makes a value
    of an object, None where the object does not matter. ``watch_s``: how long one watch lasts; ``limit``:
    objects of a page. ``listing`` is called before each list is requested. ``not_streamed``: with it, lists
    are streamed, and objects of a known version are not read again. It is called once with the reason if the
    API server refuses; then lists come in pages."""
    streams = not_streamed is not None
    known = KnownVersions(read, api.decode)

    def list_all() -> tuple[tuple[V, ...], str]:
        nonlocal streams
        listing()
        if streams and not_streamed is not None:
            try:
                with closing(initial_events(api, path, watch_s)) as lines:
                    return known.listed(lines)
            except NotStreamedError as error:
                streams = False
                known.by_uid.clear()
                not_streamed(str(error))
        values: list[V] = []
        version = ""
        for items, version in pages(api, path, limit):  # noqa: B007 the last page's version is used
            values += [value for value in map(read, items) if value is not None]
        return tuple(values), version

    def current(item: Json, deleted: bool) -> V | None:
        return known.changed(item, deleted) if streams else read(item)

    return reflect(list_all, lambda version: watch(api, path, version, watch_s), wait_ms, current)


def pages(api: Lister, path: str, limit: int = PAGE) -> Iterator[tuple[list[Json], str]]:
    """All objects of a collection, page by page, each page with the list's resource version: read at quorum.
    Raises UnreachableError or ExpiredError."""
    more = ""
    while True:
        page = mapping(api.page(_with_query(path, {"limit": limit} | ({"continue": more} if more else {}))))
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


def initial_events(api: Lister, path: str, for_s: int = WATCH_S) -> Generator[bytes, None, None]:
    """The lines of a watch that begins with one event for each object, read at quorum, and a bookmark after
    them. Raises NotStreamedError where the API server refuses that, UnreachableError or ExpiredError."""
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": str(for_s),
    }
    with closing(lines(api, path, query, for_s + LATE_S)) as events:
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
    except FAILURES as error:
        raise UnreachableError(f"the watch of {path} broke: {sentence(error, silence_s)}") from error


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


class NotStreamedError(Exception):
    """The API server does not send lists in this way; the text says how it refused."""


class KnownVersions(Of[V]):
    """The values of the objects that were read last, by UID; None for an object that does not matter.
    ``decode`` raises ValueError for what is no JSON."""

    def __init__(self, read: Callable[[Json], V | None], decode: Callable[[bytes], object]) -> None:
        self.read, self.decode = read, decode
        self.by_uid: dict[str, tuple[str, V | None]] = {}

    def changed(self, item: Json, deleted: bool) -> V | None:
        """The value of the object of an event, which is known from now on unless it was deleted."""
        value = self.read(item)
        metadata = mapping(item.get("metadata"))
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
        if deleted:
            self.by_uid.pop(str(uid), None)
        elif uid and version:
            self.by_uid[str(uid)] = str(version), value
        return value

    def listed(self, lines: Iterable[bytes]) -> tuple[tuple[V, ...], str]:
        """The values of all objects that the lines send, and the version of the list. Other objects are not
        known any more. Raises NotStreamedError where a bookmark marks no end, and UnreachableError or
        ExpiredError."""
        there: dict[str, V | None] = {}
        for line in lines:
            head = _HEAD.match(line)
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
            value, key = self.changed(item, kind == "DELETED"), _key(item)
            there.pop(key, None)
            if kind != "DELETED":
                there[key] = value
        raise UnreachableError("the watch ended before the end of its list")

    def _event(self, line: bytes) -> tuple[str, Json]:
        """Type and object. Raises UnreachableError for a line that is no event."""
        event = event_of(line, self.decode)
        kind, item = event.get("type"), event.get("object")
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR") or not isinstance(item, dict):
            raise UnreachableError(f"the list has a line that is no event: {line[:100]!r}")
        return str(kind), item

    def _ended(self, bookmark: Json, there: dict[str, V | None]) -> tuple[tuple[V, ...], str]:
        metadata = mapping(bookmark.get("metadata"))
        if mapping(metadata.get("annotations")).get(INITIAL_EVENTS_END) != "true":
            raise NotStreamedError("the first bookmark does not mark the end of the initial events")
        for uid in self.by_uid.keys() - there:
            del self.by_uid[uid]
        version = str(metadata.get("resourceVersion") or "")
        return tuple(value for value in there.values() if value is not None), version


def event_of(line: bytes, decode: Callable[[bytes], object]) -> Json:
    """A line of a watch. Raises UnreachableError for one that is no object."""
    try:
        event = decode(line)
    except (ValueError, RecursionError) as error:
        raise UnreachableError(f"a watch sent something that is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise UnreachableError(f"a watch sent something that is not an event: {line[:100]!r}")
    return event


def _key(item: Json) -> str:
    """The UID; without one, as no API server sends it, namespace and name."""
    metadata = mapping(item.get("metadata"))
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
