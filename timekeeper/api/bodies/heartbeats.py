"""The body of ``POST /v1/heartbeats``. After this module it is a value that needs no further checks."""

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.api.problem import bad

_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_MOST_BEATS = 1_000
_MOST_DEVICES = 64
OLDEST_MS = 30 * 86_400_000
_MOST_SEQUENCE = 2**53
MOST_FIGURE = 2**31


@dataclass(frozen=True, slots=True)
class Beats:
    """A post of heartbeats: the sidecar's run, the post's ``sequence`` within it, each heartbeat's age, and
    each one's figures of its cards (or none)."""

    boot: str
    sequence: int
    ages_ms: tuple[int, ...]
    figures: tuple[tuple[CardSample, ...], ...]


def read_heartbeats(body: bytes) -> Beats:
    """Parse the body. Raises a Problem that names the field.

    Only the form of figures is checked: they are the tenant's own data, and nothing is charged by them.
    """
    raw = read_object(body, ("version", "boot", "sequence", "beats"))
    boot, sequence = read_run(raw)
    beats = raw.get("beats")
    if not isinstance(beats, list) or not 1 <= len(beats) <= _MOST_BEATS:
        raise bad("beats", f"it must be a list of 1 to {_MOST_BEATS} beats")
    read = [_beat(beat, index) for index, beat in enumerate(beats)]
    has_figures = any(figures for _, figures in read)
    return Beats(
        boot,
        sequence,
        tuple(age for age, _ in read),
        tuple(figures for _, figures in read) if has_figures else (),
    )


def read_run(raw: dict[str, Any]) -> tuple[str, int]:
    """``boot`` and ``sequence`` of a post of version 1. Raises a Problem."""
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    boot, sequence = raw.get("boot"), raw.get("sequence")
    if not isinstance(boot, str) or not _BOOT.fullmatch(boot):
        raise bad("boot", "it must be 1 to 64 letters, digits or . _ : -")
    if not is_natural(sequence, _MOST_SEQUENCE):
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


def _beat(beat: object, index: int) -> tuple[int, tuple[CardSample, ...]]:
    if not isinstance(beat, dict):
        raise bad(f"beats[{index}]", "it must be an object")
    age, devices = beat.get("age_ms"), beat.get("devices")
    if not is_natural(age, OLDEST_MS):
        raise bad(f"beats[{index}].age_ms", f"it must be a whole number from 0 to {OLDEST_MS}")
    if not isinstance(devices, list) or len(devices) > _MOST_DEVICES:
        raise bad(f"beats[{index}].devices", f"it must be a list of at most {_MOST_DEVICES} cards")
    return age, tuple(_figure(each, f"beats[{index}].devices[{at}]") for at, each in enumerate(devices))


def _figure(device: object, where: str) -> CardSample:
    field = _wrong_field(device)
    if field is not None or not isinstance(device, dict):
        raise bad(f"{where}{field or ''}", "it does not have the form of a card's figures")
    utilisation, memory_mib = device.get("utilisation"), device.get("memory_mib")
    return CardSample(device["uuid"], utilisation, memory_mib, device["scope"] == "exclusive")


def _wrong_field(device: object) -> str | None:
    """The invalid field of a card's figures; empty if the whole is invalid; None if all are valid."""
    if not isinstance(device, dict):
        return ""
    uuid, scope = device.get("uuid"), device.get("scope")
    if not isinstance(uuid, str) or not 1 <= len(uuid) <= 128:
        return ".uuid"
    for name in ("utilisation", "memory_mib"):
        if device.get(name) is not None and not is_natural(device[name], MOST_FIGURE):
            return f".{name}"
    return None if scope in ("exclusive", "shared") else ".scope"


def is_natural(value: object, most: int) -> TypeGuard[int]:
    """True for an integer from 0 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
