"""One line to stderr for each thing worth knowing."""

from __future__ import annotations

import json
import os
import sys

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/")


def line(event: str, **pairs: object) -> str:
    """``event=... key=value``; a value with anything but plain letters is quoted as JSON does, on one
    line."""
    return " ".join([f"event={event}", *(f"{key}={_quoted(each)}" for key, each in pairs.items())])


def say(event: str, **pairs: object) -> None:
    """Write the line."""
    tell(line(event, **pairs))


def tell(sentence: str) -> None:
    """Write a sentence for people; a stderr that is gone takes nothing else with it, and there is nowhere
    left to say so."""
    if sys.stderr is None:  # started with it closed: another file may have its number by now
        return
    try:
        # Past Python's buffer, which would try again at the end and turn the exit code into 120.
        os.write(2, f"{sentence}\n".encode())
    except OSError:
        return


def _quoted(each: object) -> str:
    text = str(each)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)
