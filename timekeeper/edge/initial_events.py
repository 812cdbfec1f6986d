"""A list that a watch sends: one event for each object, and a bookmark after the last one.

Each line is a value before the next one is read, and an object whose version is known is not decoded at all:
for one UID a resource version names one state.

Source: k8s.io/apimachinery, ``ListOptions.SendInitialEvents``.
"""

from __future__ import annotations

import re

from timekeeper.edge.reflector import ExpiredError, UnreachableError, mapping
from timekeeper.edge.value import TYPE_CHECKING, Of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from timekeeper.edge.reflector import Json

    V = TypeVar("V")
else:
    V = None

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

# the beginning of an event as the API server writes it, of names that need no escape
_HEAD = re.compile(
    rb'\{"type":"ADDED","object":\{"kind":"[A-Za-z]+","apiVersion":"[a-z0-9./]+","metadata":\{"name":"[^"\\]+",'
    rb'(?:"generateName":"[^"\\]+",)?(?:"namespace":"[^"\\]+",)?"uid":"([^"\\]+)","resourceVersion":"([0-9]+)"[,}]'
)


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
                if item.get("code") == 410:
                    raise ExpiredError
                raise UnreachableError(f"the list ended with an error: {item}")
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
        version = str(metadata.get("resourceVersion", ""))
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
