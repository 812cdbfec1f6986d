"""Lists and watches of the API server that fail: what they would show is known later, and nothing is lost."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

_LONGEST = 500  # characters of an error: the settler writes the text with each tick


@dataclass(frozen=True, slots=True)
class FailingWatch:
    """Since when all calls of a source have failed, and how the last one did."""

    since_ms: int
    error: str


def watches_text(failing: Mapping[str, FailingWatch]) -> str:
    """By source, as JSON; "": none fails."""
    found = {source: [each.since_ms, each.error[:_LONGEST]] for source, each in sorted(failing.items())}
    return orjson.dumps(found).decode() if found else ""


def read_watches(text: str | None) -> dict[str, FailingWatch]:
    """What `watches_text` has written; None: by a release that did not."""
    return {source: FailingWatch(*each) for source, each in orjson.loads(text or "{}").items()}
