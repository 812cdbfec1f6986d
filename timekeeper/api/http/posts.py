"""What the posts of sidecars, agents and extenders have in common: one JSON object, read field by field."""

import re
from typing import Any, TypeGuard

import orjson

from timekeeper.runtime.http.problem_details import bad

_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
OLDEST_MS = 30 * 86_400_000
_MAX_SEQUENCE = 2**53
MAX_FIGURE = 2**31


def read_run(raw: dict[str, Any]) -> tuple[str, int]:
    """``boot`` and ``sequence`` of a post of version 1. Raises a Problem."""
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    boot, sequence = raw.get("boot"), raw.get("sequence")
    if not isinstance(boot, str) or not _BOOT.fullmatch(boot):
        raise bad("boot", "it must be 1 to 64 letters, digits or . _ : -")
    if not is_natural(sequence, _MAX_SEQUENCE):
        raise bad("sequence", "it must be a whole number from 0 on")
    return boot, sequence


def read_object(body: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object in which each field appears once. Raises a Problem."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("", "the body is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    for name in fields:
        if body.count(b'"%b"' % name.encode()) > 1:
            raise bad(name, "it must be given once")
    return raw


def is_natural(value: object, most: int) -> TypeGuard[int]:
    """True for an integer from 0 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
