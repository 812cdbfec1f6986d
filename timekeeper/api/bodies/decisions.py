"""The body of ``POST /v1/decisions``. After this module it is a value that needs no further checks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timekeeper.api.bodies.heartbeats import OLDEST_MS, is_natural, read_object
from timekeeper.api.http.parameters import SUBJECT
from timekeeper.api.problem import bad
from timekeeper.core.decisions import (
    MOST_COUNT,
    MOST_FIGURES,
    MOST_INTEGER,
    MOST_NAME,
    MOST_TEXT,
    Decision,
    DecisionRun,
    Figure,
)

MOST_DECISIONS = 1_000

_TEXTS = {
    "kind": (r"[a-z][a-z-]{0,31}", "it must be 1 to 32 lower-case letters or -"),
    "reason": (r"[A-Za-z][A-Za-z0-9]{0,63}", "it must be a word of 1 to 64 letters or digits"),
    "namespace": (SUBJECT, "it must be the name of a namespace, or _group.NAME"),
}
_NAMES = ("owner", "name", "generate_name", "uid", "budget")
_SOURCE = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)
_FIGURE = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PostedDecisions:
    """The role that decided, and what."""

    source: str
    runs: tuple[DecisionRun, ...]


def read_decisions(body: bytes, received_ms: int) -> PostedDecisions:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    raw = read_object(body, ("version", "source", "decisions"))
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    source, listed = raw.get("source"), raw.get("decisions")
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise bad("source", "it must be 1 to 32 lower-case letters or -")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_DECISIONS:
        raise bad("decisions", f"it must be a list of 1 to {MOST_DECISIONS} objects")
    return PostedDecisions(
        source, tuple(_run(each, f"decisions[{at}]", received_ms) for at, each in enumerate(listed))
    )


def _run(raw: object, where: str, received_ms: int) -> DecisionRun:
    if not isinstance(raw, dict):
        raise bad(where, "it must be an object")
    kind, reason, namespace = (_matching(raw, name, where) for name in _TEXTS)
    owner, name, generate_name, uid, budget = (_name(raw, name, where) for name in _NAMES)
    first_age_ms, last_age_ms = (
        _natural(raw, f"{each}_age_ms", where, OLDEST_MS) for each in ("first", "last")
    )
    if last_age_ms > first_age_ms:
        raise bad(f"{where}.last_age_ms", "it must not be more than first_age_ms")
    count = _natural(raw, "count", where, MOST_COUNT)
    if not count:
        raise bad(f"{where}.count", "it must be 1 or more")
    decision = Decision(
        received_ms - first_age_ms,
        kind,
        reason,
        namespace,
        _figures(raw.get("figures"), f"{where}.figures"),
        owner,
        name,
        generate_name,
        uid,
        budget,
    )
    return DecisionRun(decision, count, received_ms - last_age_ms)


def _matching(raw: dict[str, Any], name: str, where: str) -> str:
    pattern, problem = _TEXTS[name]
    return _text(
        raw.get(name), f"{where}.{name}", problem, lambda text: re.fullmatch(pattern, text, re.ASCII)
    )


def _name(raw: dict[str, Any], name: str, where: str) -> str:
    problem = f"it must be a printable text of at most {MOST_NAME} characters"
    return _text(raw.get(name, ""), f"{where}.{name}", problem, lambda text: _is_short(text, MOST_NAME))


def _text(value: object, where: str, problem: str, fits: Callable[[str], object]) -> str:
    if not isinstance(value, str) or not fits(value):
        raise bad(where, problem)
    return value


def _natural(raw: dict[str, Any], name: str, where: str, most: int) -> int:
    value = raw.get(name)
    if not is_natural(value, most):
        raise bad(f"{where}.{name}", f"it must be a whole number from 0 to {most}")
    return value


def _figures(raw: object, where: str) -> dict[str, Figure]:
    if not isinstance(raw, dict) or len(raw) > MOST_FIGURES:
        raise bad(where, f"it must be an object with at most {MOST_FIGURES} members")
    for name, value in raw.items():
        if not _FIGURE.fullmatch(name):
            raise bad(
                where, "the name of a figure must be 1 to 32 letters or digits, and begin with a letter"
            )
        if isinstance(value, bool) or not (
            _is_short(value, MOST_TEXT) if isinstance(value, str) else _is_integer(value)
        ):
            what = f"a whole number of 64 bits, or a printable text of at most {MOST_TEXT} characters"
            raise bad(f"{where}.{name}", f"it must be {what}")
    return raw


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and -MOST_INTEGER <= value <= MOST_INTEGER


def _is_short(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()
