"""One line for each thing that happened: ``key=value``, on stderr, never a pod's contents or a token."""

import re
import sys
from typing import Protocol

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@*+-]+")
_LONGEST = 300


class Log(Protocol):
    """How the parts of the webhook say what happened."""

    def __call__(self, event: str, **fields: object) -> None:
        """Writes one event with its fields."""


def line(event: str, **fields: object) -> str:
    """The event as one line; values with anything but plain characters are quoted and cut."""
    return " ".join(
        [f"webhook event={event}", *(f"{name}={_shown(value)}" for name, value in fields.items())]
    )


def to_stderr(event: str, **fields: object) -> None:
    """Writes the line in one call, so that lines of several workers do not mix."""
    sys.stderr.write(line(event, **fields) + "\n")
    sys.stderr.flush()


def _shown(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and len(text) <= _LONGEST:
        return text
    safe = "".join(c if c.isprintable() and c != '"' else "?" for c in text[:_LONGEST])
    return f'"{safe}"'
