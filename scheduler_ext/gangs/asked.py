"""What the timekeeper asks when it wants cards for a gang: the body of ``POST /v1/gangs/reserve``. Pure."""

from dataclasses import dataclass
from typing import Any

import orjson

from timekeeper.core.gangs import MAX_SIZE
from timekeeper.runtime.http.problem_details import bad


@dataclass(frozen=True, slots=True)
class GangAsked:
    """The members of a gang that have no node. ``needed``: how many must fit at least; ``epoch``: the number
    of this decision, larger than any before; ``until_ms``: when its reservations end; ``bound``: UIDs of
    members that have a node; ``drain_ms``: until when cards may be kept empty for it if it does not fit,
    ``late_ms``: until when they are kept for members that do not exist yet; 0: none are."""

    uids: tuple[str, ...]
    needed: int
    epoch: int
    until_ms: int
    bound: tuple[str, ...] = ()
    drain_ms: int = 0
    late_ms: int = 0


def read_asked(body: bytes) -> GangAsked:
    """Parses the body. Raises a Problem that names the field."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise bad("version", "it must be 1")
    uids, bound = _uids("pods", raw.get("pods")), _uids("bound", raw.get("bound", []))
    if not uids:
        raise bad("pods", f"it must have 1 to {MAX_SIZE} different UIDs")
    numbers = {name: _number(raw, name) for name in ("needed", "epoch", "until")}
    if numbers["needed"] > len(uids):
        raise bad("needed", "it must be at most the number of pods")
    drain_ms, late_ms = (_number(raw, each) if each in raw else 0 for each in ("drain", "late"))
    return GangAsked(uids, numbers["needed"], numbers["epoch"], numbers["until"], bound, drain_ms, late_ms)


def _uids(field: str, uids: object) -> tuple[str, ...]:
    if not isinstance(uids, list) or not all(isinstance(each, str) and each for each in uids):
        raise bad(field, "it must be a list of UIDs")
    if not len(set(uids)) == len(uids) <= MAX_SIZE:
        raise bad(field, f"it must have at most {MAX_SIZE} different UIDs")
    return tuple(uids)


def _number(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if type(value) is not int or not 1 <= value < 2**53:
        raise bad(name, "it must be a whole number from 1 on")
    return value
