"""List, then watch, without missing a change: client-go's reflector as a generator that does no I/O itself.

The caller provides the two calls and the wait, so tests cover the order of lists, watches, bookmarks,
expiries and failures with plain lists. Source: k8s.io/client-go/tools/cache, ``Reflector.ListAndWatch``.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, Of, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, TypeVar

    V = TypeVar("V")
    Json = Mapping[str, Any]
else:
    V = None

FIRST_WAIT_MS = 200
LONGEST_WAIT_MS = 10_000


class ExpiredError(Exception):
    """The resource version cannot be watched from: list again. It is too old (HTTP 410); or, with a text that
    says so, of a time that etcd has forgotten."""


class UnreachableError(Exception):
    """The API server did not answer, or answered with an error: wait, then continue at the same version."""


class UnreadableError(UnreachableError):
    """The API server answered, and the answer cannot be read."""


class TooLongError(UnreadableError):
    """The answer is longer than what is read."""


@value
class ObjectsListed(Of[V]):
    """The complete list: objects that are not in it do not exist."""

    items: tuple[V, ...]


@value
class ObjectChanged(Of[V]):
    """One object as it is now, or its last state if it was deleted."""

    item: V
    deleted: bool


@value
class WatchProgress:
    """No change that matters, and all earlier changes have arrived."""


@value
class WatchFailed:
    """A call failed; ``sentence`` says how, for the log. Changes arrive later."""

    sentence: str


@value
class WatchOpened:
    """After a call that failed, the API server sends changes again. Earlier ones may be on their way."""


if TYPE_CHECKING:
    WatchEvent = ObjectsListed[V] | ObjectChanged[V] | WatchProgress | WatchFailed | WatchOpened
else:
    WatchEvent = Of  # annotations subscript it

# The type of the event that `watch` yields first, once the API server has accepted it.
OPENED = "OPENED"


def reflect(
    list_all: Callable[[], tuple[tuple[V, ...], str]],
    watch: Callable[[str], Iterator[Json]],
    wait_ms: Callable[[int], object],
    read: Callable[[Json, bool], V | None],
) -> Iterator[WatchEvent[V]]:
    """Yields ObjectsListed once the list is complete, then each change; lists again after an expiry.

    ``list_all`` returns values and resource version; ``read`` makes a value of an object that was changed, or
    deleted, None where it does not matter. ``watch`` yields the raw events from a version on
    (``{"type", "object"}``; the first may be of the type `OPENED`) and ends when the server closes the
    stream. Both raise UnreachableError or ExpiredError. ``wait_ms`` sleeps, longer after each failure in a
    row, and is true where the events end. A watch whose answer cannot be read twice at a version lists again.
    """
    version, pause, has_failed, unreadable = "", FIRST_WAIT_MS, False, ""
    while True:
        try:
            if not version:
                items, version = list_all()
                if not version:
                    raise UnreachableError("the list has no resource version")
                yield ObjectsListed(items)
                del items  # objects that end later need no memory
            for raw in watch(version):
                event = WatchOpened() if raw.get("type") == OPENED and has_failed else _event(raw, read)
                has_failed = False
                if event is not None:
                    yield event
                if not isinstance(event, WatchOpened):
                    version, pause = version_of(raw) or version, FIRST_WAIT_MS
            yield WatchProgress()
            wait = FIRST_WAIT_MS // 10  # no tight loop with a server that closes every watch at once
        except ExpiredError as error:
            version = ""
            if str(error):
                yield WatchFailed(str(error))
            wait, pause = pause, min(2 * pause, LONGEST_WAIT_MS)
        except UnreachableError as error:
            if isinstance(error, UnreadableError):
                version, unreadable = "" if version == unreadable else version, version
            has_failed = True
            yield WatchFailed(str(error))
            wait, pause = pause, min(2 * pause, LONGEST_WAIT_MS)
        if wait_ms(wait):
            return


def _event(raw: Json, read: Callable[[Json, bool], V | None]) -> WatchEvent[V] | None:
    kind, item = raw.get("type"), raw.get("object")
    if kind == "ERROR":
        raise ended_by(item, "watch")
    if kind == "BOOKMARK":
        return WatchProgress()
    if kind in ("ADDED", "MODIFIED", "DELETED") and isinstance(item, dict):
        read_value = read(item, kind == "DELETED")
        return WatchProgress() if read_value is None else ObjectChanged(read_value, kind == "DELETED")
    return None


def ended_by(item: object, what: str) -> ExpiredError | UnreachableError:
    """What an event of the type ERROR means, with this object; ``what``: it ends."""
    is_expired = mapping(item).get("code") == 410
    return ExpiredError() if is_expired else UnreachableError(f"the {what} ended with an error: {item}")


def version_of(raw: Json) -> str:
    """The resource version of an event's object; "": it has none."""
    version = mapping(mapping(raw.get("object")).get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) else ""


def mapping(raw: object) -> Json:
    """The JSON object, or an empty one for anything else."""
    return raw if isinstance(raw, dict) else {}
