"""Pods that an owner's controller creates only after others of their gang run: how the pods that come first
tell of them. The text is JSON, a list of ``{"count": 2, "template": {...}}``.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from timekeeper.core.json_values import mapping

MAX_TEXT = 32_768  # characters; an object's annotations have at most 256 KiB together
MAX_LATE = 1_024  # pods
MAX_SETS = 32  # templates; each is read anew for each pod that tells of them
MAX_DEPTH = 32  # of objects and arrays; a template is read again where the stack is deeper


@dataclass(frozen=True, slots=True)
class LateMembers:
    """``count`` pods of one template, which is JSON."""

    count: int
    template: str

    @property
    def pod(self) -> dict[str, Any]:
        """What is known of each of these pods."""
        found: dict[str, Any] = json.loads(self.template)
        return found


@lru_cache(maxsize=256)
def late_members(text: str) -> tuple[LateMembers, ...]:
    """Those that the text tells of; none if it is not such a text. Never raises."""
    try:
        listed = json.loads(text) if len(text) <= MAX_TEXT else None
    except (ValueError, RecursionError):
        return ()
    if not isinstance(listed, list) or len(listed) > MAX_SETS or not all(map(_is_set, listed)):
        return ()
    if sum(each["count"] for each in listed) > MAX_LATE:
        return ()
    return tuple(LateMembers(each["count"], json.dumps(each["template"])) for each in listed)


def _is_set(value: object) -> bool:
    it = mapping(value)
    count, template = it.get("count"), it.get("template")
    containers = mapping(mapping(template).get("spec")).get("containers")
    is_said = type(count) is int and count > 0 and isinstance(containers, list) and bool(containers)
    return is_said and _is_flat(template, MAX_DEPTH)


def _is_flat(value: object, left: int) -> bool:
    """Whether at most ``left`` objects and arrays are within each other."""
    if not isinstance(value, dict | list):
        return True
    return left > 0 and all(
        _is_flat(each, left - 1) for each in (value.values() if isinstance(value, dict) else value)
    )
