"""One line on stderr for each event, in one format for every process.

``time=2026-01-02T03:04:05.678Z level=info role=webhook event=review key=value ...`` (logfmt), or the same
fields as one JSON object. A value with anything but plain characters stands in double quotes with JSON's
escapes: no value can break its line or forge another. A value is cut at 300 characters, a traceback at 8,000.
No line holds a pod's contents, a token or a key.
"""

import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Protocol, TypeVar

Level = Literal["info", "warning", "error"]

FORMATS = ("logfmt", "json")

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@*+-]+")
_LONGEST = 300
_LONGEST_TRACE = 8_000
_STDERR = 2

_process = {"role": "bursar", "format": "logfmt", "left out": ""}


LogEvent = (  # of every role; each role adds its own
    Literal["loaded", "not-loaded", "lease-unreachable", "event-not-posted", "event-dropped"]
    | Literal["decisions-failed", "decisions-sent", "decision-refused", "malformed-request", "internal-error"]
    | Literal["uncaught", "server"]
)
E = TypeVar("E", bound=str, contravariant=True)


class EventLog(Protocol[E]):
    """Writes one of these events with its fields. A name is kebab-case; a field that is None is left out."""

    def __call__(self, event: E, *, level: Level = "info", **fields: object) -> None:
        """Never raises: no work fails because its line cannot be written."""


class ErrorLog(Protocol[E]):
    """Writes one of these events with an error and its traceback."""

    def __call__(self, event: E, error: BaseException, **fields: object) -> None:
        """Never raises, as `EventLog`."""


Log = EventLog[str]


def configure(role: str, log_format: str = "logfmt", only_problems: bool = False) -> None:
    """Sets the role and the format of this process's lines, and has uncaught exceptions written as events.
    ``only_problems``: nothing of the level info is written. A forked child inherits all of it."""
    _process.update({"role": role, "format": log_format, "left out": "info" if only_problems else ""})
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def log(event: str, *, level: Level = "info", **fields: object) -> None:
    """See `EventLog`."""
    write(level, event, fields)


def log_exception(event: str, error: BaseException, **fields: object) -> None:
    """Writes an error with its traceback."""
    trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
    write("error", event, {**fields, "error": f"{type(error).__name__}: {error}"}, trace)


def write(level: str, event: str, fields: Mapping[str, object], trace: str = "") -> None:
    """Writes the line in one call, so that lines of several threads and processes do not mix."""
    if level == _process["left out"]:
        return
    try:
        os.write(_STDERR, (line(level, event, fields, trace) + "\n").encode())
    except OSError:  # stderr is gone, and no other place is left to report it
        return


def line(level: str, event: str, fields: Mapping[str, object], trace: str = "") -> str:
    """The line without its line break."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pairs: dict[str, object] = {"time": at, "level": level, "role": _process["role"], "event": event}
    pairs |= {key: _value(value) for key, value in fields.items() if value is not None}
    if trace:
        pairs["trace"] = trace
    if _process["format"] == "json":
        return json.dumps(pairs)
    return " ".join([f"{key}={_shown(str(value))}" for key, value in pairs.items()])


def _shown(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _value(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)[:_LONGEST]


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        log_exception("uncaught", error, thread="main")


def _uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not issubclass(found.exc_type, SystemExit):
        log_exception("uncaught", found.exc_value, thread=found.thread.name if found.thread else "")
