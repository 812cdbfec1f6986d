"""What a value may be beside its type, declared once, in its annotation: ``Annotated[int, whole(100)]``.

`timekeeper.api.http.bodies` reads bodies by it, and `timekeeper.api.http.openapi` documents them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """``schema``: the form as JSON Schema. ``sentence``: what is allowed, for the caller whose value is
    refused. ``fits``: true of a value of the type that is allowed; None: every value is."""

    schema: Mapping[str, Any]
    sentence: str = ""
    fits: Callable[[Any], object] | None = None


# an object without any other field
CLOSED: Mapping[str, Any] = {"additionalProperties": False}


def whole(most: int, sentence: str = "") -> Form:
    """A whole number from 0 to ``most``."""
    allowed = sentence or f"it must be a whole number from 0 to {most}"
    return Form({"minimum": 0, "maximum": most}, allowed, lambda value: 0 <= value <= most)


def like(pattern: str, sentence: str) -> Form:
    """A text that matches the pattern as a whole; its classes are of ASCII."""
    return Form({"pattern": f"^(?:{pattern})$"}, sentence, lambda text: _compiled(pattern).fullmatch(text))


def printable(most: int, least: int = 0, sentence: str = "") -> Form:
    """A text of ``least`` to ``most`` characters, all printable."""
    allowed = sentence or f"it must be a printable text of {least} to {most} characters"
    length = {"minLength": least, "maxLength": most} if least else {"maxLength": most}
    return Form(length, allowed, lambda text: least <= len(text) <= most and text.isprintable())


def items(least: int, most: int, sentence: str = "") -> Form:
    """A list of ``least`` to ``most`` items."""
    allowed = sentence or f"it must be a list of {least} to {most} objects"
    length = {"minItems": least, "maxItems": most} if least else {"maxItems": most}
    return Form(length, allowed, lambda listed: least <= len(listed) <= most)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at its first use: most processes only name the types."""
    return re.compile(pattern, re.ASCII)
