"""Callers' bodies and parameters, read at the door: past it they are values, and nothing is checked again."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeGuard

import orjson

from timekeeper.app.problem import bad
from timekeeper.core.ledger import FOREVER_MS

GPU_MINUTE = 60_000_000  # milli-GPU x milliseconds

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_KEY = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
_MOST_BEATS = 1_000
_MOST_DEVICES = 64
_OLDEST_MS = 30 * 86_400_000
_MOST_SEQUENCE = 2**53
_MOST_MINUTES = 10**10


@dataclass(frozen=True, slots=True)
class Beats:
    """A post of heartbeats: which run of the sidecar, its how manieth post, and how old each beat is."""

    boot: str
    sequence: int
    ages_ms: tuple[int, ...]


def read_heartbeats(body: bytes) -> Beats:
    """The body of ``POST /v1/heartbeats``. Raises a Problem that names the field.

    The figures of the cards are checked for their shape; they are the tenant's own word and nothing is
    charged by them.
    """
    raw = _object(body)
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    boot, sequence, beats = raw.get("boot"), raw.get("sequence"), raw.get("beats")
    if not isinstance(boot, str) or not _BOOT.fullmatch(boot):
        raise bad("boot", "it must be 1 to 64 letters, digits or . _ : -")
    if not _is_natural(sequence, _MOST_SEQUENCE):
        raise bad("sequence", "it must be a whole number from 0 on")
    if not isinstance(beats, list) or not 1 <= len(beats) <= _MOST_BEATS:
        raise bad("beats", f"it must be a list of 1 to {_MOST_BEATS} beats")
    return Beats(boot, sequence, tuple(_age_ms(beat, index) for index, beat in enumerate(beats)))


def read_increase(body: bytes) -> tuple[int, str]:
    """The body of ``POST /budget/<namespace>/increase`` as an amount and its reason. Raises a Problem."""
    try:
        # numbers as the caller wrote them: 0.1 is a tenth and not the nearest float
        raw = json.loads(body, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad("", "the body is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    reason = raw.get("reason", "asked for over REST")
    if not isinstance(reason, str) or not reason or len(reason) > 500:
        raise bad("reason", "it must be a text of 1 to 500 characters")
    return _minutes(raw.get("minutes")), reason


def read_namespace(text: str) -> str:
    """A namespace's name out of a path or a parameter. Raises a Problem."""
    if not _NAMESPACE.fullmatch(text):
        raise bad("namespace", "no namespace can have this name")
    return text


def read_key(text: str | None) -> str:
    """The header ``Idempotency-Key``. Raises a Problem."""
    if text is None or not _KEY.fullmatch(text):
        raise bad(
            "Idempotency-Key", "this header is needed: 1 to 200 visible ASCII characters, new for each grant"
        )
    return text


def read_parameters(
    given: Mapping[str, Sequence[str]], known: Mapping[str, tuple[str, ...]]
) -> Mapping[str, str]:
    """The parameters, each of them known, given once, and where a list of words stands, one of these. Raises
    a Problem."""
    for name, values in given.items():
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "this route takes none"
            raise bad(name, f"no such parameter; {there}")
        if len(values) != 1:
            raise bad(name, f"it is given {len(values)} times; once is allowed")
        value = values[0]
        if known[name] and value not in known[name]:
            raise bad(name, f"it must be one of {', '.join(known[name])}")
    return {name: values[0] for name, values in given.items()}


def read_time(name: str, text: str) -> int:
    """A moment in milliseconds since 1970, from RFC 3339 or from such milliseconds. Raises a Problem."""
    in_ms = re.fullmatch(r"[0-9]{1,15}", text, re.ASCII)
    at_ms = int(text) if in_ms else _rfc3339_ms(name, text)
    if not 0 <= at_ms <= FOREVER_MS:
        raise bad(name, "it must lie between the years 1970 and 9999")
    return at_ms


def _rfc3339_ms(name: str, text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise bad(
            name, "it must be a time such as 2026-11-01T00:00:00Z, with its zone, or milliseconds since 1970"
        )
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _object(body: bytes) -> dict[str, Any]:
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("", "the body is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    return raw


def _age_ms(beat: object, index: int) -> int:
    where = f"beats[{index}]"
    if not isinstance(beat, dict):
        raise bad(where, "it must be an object")
    age = beat.get("age_ms")
    if not _is_natural(age, _OLDEST_MS):
        raise bad(f"{where}.age_ms", f"it must be a whole number from 0 to {_OLDEST_MS}")
    devices = beat.get("devices")
    if not isinstance(devices, list) or len(devices) > _MOST_DEVICES:
        raise bad(f"{where}.devices", f"it must be a list of at most {_MOST_DEVICES} cards")
    for number, device in enumerate(devices):
        field = _wrong_field(device)
        if field is not None:
            raise bad(f"{where}.devices[{number}]{field}", "it has another form than a card's figures have")
    return age


def _wrong_field(device: object) -> str | None:
    """The field of a card's figures that is not as it must be, empty for the whole of it; None where all
    are."""
    if not isinstance(device, dict):
        return ""
    uuid, scope = device.get("uuid"), device.get("scope")
    if not isinstance(uuid, str) or not 1 <= len(uuid) <= 128:
        return ".uuid"
    for name in ("utilisation", "memory_mib"):
        if device.get(name) is not None and not _is_natural(device[name], 2**31):
            return f".{name}"
    return None if scope in ("exclusive", "shared") else ".scope"


def _is_natural(value: object, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _minutes(value: object) -> int:
    exact = Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else Decimal(0)
    exponent = exact.as_tuple().exponent
    if not 0 < exact <= _MOST_MINUTES or not isinstance(exponent, int) or exponent < -6:
        raise bad(
            "minutes", f"it must be a number of GPU-minutes above 0, at most {_MOST_MINUTES}, with 6 decimals"
        )
    return int(exact * GPU_MINUTE)


def _no_constant(text: str) -> object:
    raise bad("", f"{text} is not JSON")
