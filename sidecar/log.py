"""One line on stderr for each event, as `timekeeper.runtime.log` writes it; this copy spares the sidecar its
imports. ``time=2026-01-02T03:04:05.678Z level=info role=sidecar event=started key=value`` (logfmt), or the
same fields as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.log_events import EventName

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/@*+")
_LONGEST = 300  # characters of a value
# Events that report a failure. All others are info.
_ERRORS: frozenset[EventName] = frozenset({"fault"})
_WARNINGS: frozenset[EventName] = frozenset(
    (
        "card-silent",
        "card-unhealthy",
        "event-dropped",
        "event-failed",
        "followed-ca-unreadable",
        "no-figures",
        "not-followed",
        "not-seen",
        "not-written",
        "nvml-hangs",
        "processes-unknown",
        "reader-silent",
        "runtime-open",
        "scrape-failed",
        "spool-full",
        "spool-not-written",
        "spool-unreadable",
        "stranger",
        "timekeeper-away",
        "unacknowledged",
        "use-lost",
        "use-unreadable",
    )
)
FORMATS = ("logfmt", "json")
FORMAT = "BURSAR_LOG_FORMAT"

_process = {"role": "sidecar", "format": FORMATS[0]}


def configure(role: str, log_format: str = FORMATS[0]) -> None:
    """Set the role that this process's lines carry, and their format (one of `FORMATS`)."""
    _process.update(role=role, format=log_format)


def line(event: str, **fields: object) -> str:
    """The line without its line break. A field that is None is left out. A value with anything but plain
    letters is quoted as in JSON, so no value can break its line."""
    level = "error" if event in _ERRORS else "warning" if event in _WARNINGS else "info"
    now_ms = time.time_ns() // 1_000_000
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_ms // 1000))}.{now_ms % 1000:03}Z"
    head = {"time": at, "level": level, "role": _process["role"], "event": event}
    pairs = head | {key: _value(value) for key, value in fields.items() if value is not None}
    if _process["format"] == "json":
        return json.dumps(pairs)
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in pairs.items())


def log(event: EventName, **fields: object) -> None:
    """Write the line of an event. The name is kebab-case. Never raises."""
    write(line(event, **fields))


def write(sentence: str) -> None:
    """Write one line to stderr. If stderr is gone there is no place left to report that."""
    if sys.stderr is None:  # closed at the start: its number may belong to another file by now
        return
    try:
        # Past Python's buffer, which would try again at exit and turn the exit code into 120.
        os.write(2, f"{sentence}\n".encode())
    except OSError:
        return


def _value(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)[:_LONGEST]


def _quoted(text: str) -> str:
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)
