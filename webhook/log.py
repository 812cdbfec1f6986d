"""One line for each thing that happened: ``key=value``, on stderr, never a pod's contents or a token."""

import logging
import os
import re
from typing import Protocol

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@*+-]+")
_LONGEST = 300
_STDERR = 2


class Log(Protocol):
    """How the parts of the webhook say what happened."""

    def __call__(self, event: str, **fields: object) -> None:
        """Writes one event with its fields."""


def line(event: str, **fields: object) -> str:
    """The event as one line; values with anything but plain characters are quoted and cut."""
    parts = [f"webhook event={event}"]
    for name, value in fields.items():
        text = str(value)
        plain = len(text) <= _LONGEST and _PLAIN.fullmatch(text)
        parts.append(f"{name}={text if plain else _quoted(text[:_LONGEST])}")
    return " ".join(parts)


def to_stderr(event: str, **fields: object) -> None:
    """Writes the line in one call, so that lines of several workers do not mix."""
    os.write(_STDERR, (line(event, **fields) + "\n").encode(errors="replace"))


class OneLine(logging.Formatter):
    """What a library logs, as one line of ours; a traceback's lines are divided by bars."""

    def format(self, record: logging.LogRecord) -> str:
        """Called by the logging library."""
        text = line("server", level=record.levelname.lower(), message=record.getMessage())
        if record.exc_info:
            text += " trace=" + _quoted(self.formatException(record.exc_info).replace("\n", " | "))
        return text


def _quoted(text: str) -> str:
    safe = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return '"' + safe.replace('"', "?") + '"'
