"""One line on stderr for each event, in one format for every process.

``time=2026-01-02T03:04:05.678Z level=info role=webhook event=review key=value ...`` (logfmt), or the same
fields as one JSON object. A value with anything but plain characters stands in double quotes with JSON's
escapes: no value can break its line or forge another. A value is cut at 300 characters, a traceback at 8,000.
No line holds a pod's contents, a token or a key.
"""

from __future__ import annotations

import json
import os
import sys

from timekeeper.edge.clock import moment, now_ms
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import ExceptHookArgs
    from types import TracebackType

    from timekeeper.edge.log_events import Level

FORMATS = ("logfmt", "json")

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/@*+")
_LONGEST = 300
_LONGEST_TRACE = 8_000
_STDERR = 2

_process = {"role": "bursar", "format": "logfmt", "left out": ""}


def configure(role: str, log_format: str = "logfmt", only_problems: bool = False) -> None:
    """Set the role and the format (one of `FORMATS`) of this process's lines. ``only_problems``: nothing of
    the level info is written. A forked child inherits all of it."""
    _process.update({"role": role, "format": log_format, "left out": "info" if only_problems else ""})


def report_uncaught() -> None:
    """Have uncaught exceptions written as events, those of threads too. A forked child inherits it."""
    import threading  # 0.2 MiB, which a sidecar spares

    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def log(event: str, *, level: Level = "info", **fields: object) -> None:
    """See `EventLog`."""
    write(level, event, fields)


def log_exception(event: str, error: BaseException, **fields: object) -> None:
    """Write an error with its traceback."""
    import traceback  # 1 MiB with what it imports

    trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
    write("error", event, {**fields, "error": f"{type(error).__name__}: {error}"}, trace)


def write(level: str, event: str, fields: Mapping[str, object], trace: str = "") -> None:
    """Write the line of an event."""
    if level != _process["left out"]:
        write_line(line(level, event, fields, trace))


def write_line(text: str) -> None:
    """Write this line in one call, so that lines of several threads and processes do not mix. If stderr is
    gone, no place is left to report that."""
    if sys.stderr is None:  # closed at the start: its number may belong to another file by now
        return
    try:
        # Past Python's buffer, which would try again at exit and turn the exit code into 120.
        os.write(_STDERR, f"{text}\n".encode())
    except OSError:
        return


def line(level: str, event: str, fields: Mapping[str, object], trace: str = "") -> str:
    """The line without its line break. A field that is None is left out."""
    at = f"{moment(now_ms())}Z"
    shown = {key: _value(value) for key, value in fields.items() if value is not None}
    if trace:
        shown["trace"] = trace
    role = _process["role"]
    if _process["format"] == "json":
        return json.dumps({"time": at, "level": level, "role": role, "event": event, **shown})
    said = [f" {key}={_quoted(str(value))}" for key, value in shown.items()]
    return f"time={at} level={level} role={role} event={event}{''.join(said)}"


def _value(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)[:_LONGEST]


def _quoted(text: str) -> str:
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        log_exception("uncaught", error, thread="main")


def _uncaught_in_thread(uncaught: ExceptHookArgs) -> None:
    if uncaught.exc_value is not None and not issubclass(uncaught.exc_type, SystemExit):
        thread = uncaught.thread.name if uncaught.thread else ""
        log_exception("uncaught", uncaught.exc_value, thread=thread)
