"""The body of ``POST /v1/nodeusage``. After this module it is a value that needs no further checks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from timekeeper.accounts.card_use.agent_looks import UsageSample
from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.api.bodies.heartbeats import MOST_FIGURE, OLDEST_MS, is_natural, read_object, read_run
from timekeeper.api.problem import bad

MOST_LOOKS = 1_000
MOST_PODS = 1_024
MOST_CARDS = 256

T = TypeVar("T")

_UID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_UUID = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Looks:
    """A post of a node agent: its run, the post's ``sequence`` within it, and its looks at the cards."""

    boot: str
    sequence: int
    looks: tuple[UsageSample, ...]


def read_node_usage(body: bytes) -> Looks:
    """Parse the body. Raises a Problem that names the field."""
    raw = read_object(body, ("version", "boot", "sequence", "uses"))
    boot, sequence = read_run(raw)
    return Looks(boot, sequence, tuple(_each(raw.get("uses"), "uses", MOST_LOOKS, _look, least=1)))


def _look(raw: dict[str, Any], where: str) -> UsageSample:
    age = raw.get("age_ms")
    if not is_natural(age, OLDEST_MS):
        raise bad(f"{where}.age_ms", f"it must be a whole number from 0 to {OLDEST_MS}")
    pods = _each(raw.get("pods"), f"{where}.pods", MOST_PODS, _pod)
    if len(dict(pods)) < len(pods):
        raise bad(f"{where}.pods", "each pod must appear once")
    return UsageSample(age, tuple(pods), _cards(raw.get("cards"), f"{where}.cards"))


def _pod(raw: dict[str, Any], where: str) -> tuple[str, tuple[CardSample, ...]]:
    uid = raw.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise bad(f"{where}.uid", "it must be 1 to 64 letters, digits or . _ : -")
    return uid, _cards(raw.get("cards"), f"{where}.cards")


def _cards(raw: object, where: str) -> tuple[CardSample, ...]:
    cards = _each(raw, where, MOST_CARDS, _figure)
    if len({each.uuid for each in cards}) < len(cards):
        raise bad(where, "each card must appear once")
    return tuple(cards)


def _figure(raw: dict[str, Any], where: str) -> CardSample:
    uuid = raw.get("uuid")
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise bad(f"{where}.uuid", "it must be 1 to 128 visible ASCII characters")
    figures = {}
    for name, most in (("utilisation", 100), ("memory_mib", MOST_FIGURE)):
        figures[name] = raw.get(name)
        if figures[name] is not None and not is_natural(figures[name], most):
            raise bad(f"{where}.{name}", f"it must be a whole number from 0 to {most}, or null")
    return CardSample(uuid, figures["utilisation"], figures["memory_mib"], exclusive=True)


def _each(
    raw: object, where: str, most: int, read: Callable[[dict[str, Any], str], T], least: int = 0
) -> list[T]:
    if not isinstance(raw, list) or not least <= len(raw) <= most:
        raise bad(where, f"it must be a list of {least} to {most} objects")
    found = []
    for index, each in enumerate(raw):
        if not isinstance(each, dict):
            raise bad(f"{where}[{index}]", "it must be an object")
        found.append(read(each, f"{where}[{index}]"))
    return found
