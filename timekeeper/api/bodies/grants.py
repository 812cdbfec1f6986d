"""Bodies and headers of grant requests. After this module they are values that need no further checks."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.grants import CORRECTION, MANUAL, TRANSFER
from timekeeper.api.http.parameters import KEY, NAME, SUBJECT
from timekeeper.api.ledger.group_budget import PassingOn
from timekeeper.api.problem import bad
from timekeeper.core.budgets.policy import GPU_HOUR

GPU_MINUTE = 60_000_000  # milli-GPU x milliseconds

_MOST_MINUTES = 10**10
_MOST_HOURS = 10**9
_HOURS_ALLOWED = f"it must be a number of GPU-hours with at most 8 decimals, at most {_MOST_HOURS}"
_PASSING_ON_FIELDS = ("namespace", "gpuHours", "amount", "reason")
_GRANT_FIELDS = ("subject", "from", "gpuHours", "amount", "reason", "kind")


def read_increase(body: bytes) -> tuple[int, str]:
    """The body of ``POST /budget/<namespace>/increase``: an amount and its reason. Raises a Problem."""
    raw = _exact_object(body)
    reason = _reason(raw.get("reason", "requested over REST"))
    return _minutes(raw.get("minutes")), reason


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """A parsed ``POST /v1/grants``. ``giver``: the namespace that the amount is moved from; empty for an
    additional grant."""

    subject: str
    giver: str
    amount: int
    reason: str
    kind: str


def read_grant(body: bytes) -> GrantRequest:
    """The body of ``POST /v1/grants``. Raises a Problem that names the field."""
    raw = _exact_object(body)
    unknown = sorted(raw.keys() - set(_GRANT_FIELDS))
    if unknown:
        raise bad(unknown[0][:60], f"no such field; allowed: {', '.join(_GRANT_FIELDS)}")
    subject, giver = raw.get("subject"), raw.get("from", "")
    if not isinstance(subject, str) or not re.fullmatch(SUBJECT, subject, re.ASCII):
        raise bad("subject", "it must be the name of a namespace, or _group.NAME")
    if "from" in raw and not (isinstance(giver, str) and re.fullmatch(NAME, giver, re.ASCII)):
        raise bad("from", "it must be the name of a namespace")
    kind = raw.get("kind", TRANSFER if giver else MANUAL)
    if kind not in ((TRANSFER,) if giver else (MANUAL, CORRECTION)):
        raise bad("kind", "it must be manual or correction; or with from, transfer")
    if giver and (is_group(subject) or giver == subject):
        raise bad("subject", "it must differ from the namespace in from")
    return GrantRequest(subject, giver, _granted(raw, kind), _reason(raw.get("reason")), kind)


def read_passing_on(body: bytes) -> PassingOn:
    """The body of ``POST /v1/groups/{group}/grants``. Raises a Problem that names the field."""
    raw = _exact_object(body)
    unknown = sorted(raw.keys() - set(_PASSING_ON_FIELDS))
    if unknown:
        raise bad(unknown[0][:60], f"no such field; allowed: {', '.join(_PASSING_ON_FIELDS)}")
    namespace = raw.get("namespace")
    if not isinstance(namespace, str) or not re.fullmatch(NAME, namespace, re.ASCII):
        raise bad("namespace", "it must be the name of a namespace")
    # as in a correction, a negative amount takes
    return PassingOn(namespace, _granted(raw, CORRECTION), _reason(raw.get("reason")))


def _granted(raw: Mapping[str, Any], kind: str) -> int:
    """The amount: an integer of milli-GPU x milliseconds, or decimal GPU-hours."""
    if ("amount" in raw) == ("gpuHours" in raw):
        raise bad("gpuHours", "either gpuHours or amount is needed")
    where = "amount" if "amount" in raw else "gpuHours"
    exact = raw["amount"] if where == "amount" else _hours(raw["gpuHours"])
    if not isinstance(exact, int) or isinstance(exact, bool):
        raise bad(where, "it must be a whole number of milli-GPU x milliseconds")
    if kind != CORRECTION and exact <= 0:
        raise bad(where, "it must be above 0; only a correction may be negative")
    if exact == 0 or abs(exact) > _MOST_HOURS * GPU_HOUR:
        raise bad(where, f"it must not be 0, and at most {_MOST_HOURS} GPU-hours")
    return exact


def _hours(value: object) -> int:
    """Decimal GPU-hours as text or number, with at most 8 decimals, so each is a whole amount."""
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,10}(\.[0-9]{1,8})?", value, re.ASCII):
        raise bad("gpuHours", _HOURS_ALLOWED)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise bad("gpuHours", _HOURS_ALLOWED)
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or not -8 <= exponent <= 10 or abs(exact) > _MOST_HOURS:
        raise bad("gpuHours", _HOURS_ALLOWED)
    return int(exact * GPU_HOUR)


def _reason(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 500 or not value.isprintable():
        raise bad("reason", "it must be a text of 1 to 500 characters, without line breaks")
    return value


def _exact_object(body: bytes) -> dict[str, Any]:
    """The body's fields. Numbers keep their decimal text: 0.1 is a tenth, not the nearest float."""
    try:
        raw = json.loads(body, parse_float=_exact, parse_constant=_no_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise bad("", "the body is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    return raw


def _exact(text: str) -> Decimal:
    """A number that is not an integer. If no Decimal can hold its exponent it becomes infinite, which every
    field rejects by its own name."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("Infinity")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise bad("", "a field appears twice in the body")
    return fields


def read_namespace(text: str) -> str:
    """A namespace's name from a path or parameter. Raises a Problem."""
    if not re.fullmatch(NAME, text, re.ASCII):
        raise bad("namespace", "not a valid namespace name")
    return text


def read_key(text: str | None) -> str:
    """The header ``Idempotency-Key``. Raises a Problem."""
    if text is None or not re.fullmatch(KEY, text, re.ASCII):
        raise bad(
            "Idempotency-Key", "this header is needed: 1 to 200 visible ASCII characters, new for each grant"
        )
    return text


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
