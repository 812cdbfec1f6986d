"""One line a decision, as ``key=value``, on standard error; never a pod's contents or a token."""

import sys
from datetime import UTC, datetime


def say(event: str, **fields: object) -> None:
    """Write one line. Values with blanks, quotes or line breaks are quoted, so that a line stays one."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = "".join(f" {key}={_shown(str(value))}" for key, value in fields.items())
    sys.stderr.write(f"{at} {event}{shown}\n")
    sys.stderr.flush()


def _shown(text: str) -> str:
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return '"' + "".join(c if c.isprintable() else " " for c in text.replace('"', "'")) + '"'
