"""The defaults and canonical spellings that an API server gives a pod before it calls webhooks, as far as our
rules read them, for pods that no API server has processed.

Sources: k8s.io/apimachinery/pkg/api/resource (the canonical form of a Quantity), k8s.io/kubernetes/pkg/apis/
core/v1/defaults.go.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from timekeeper.core.admission.pods import CONTAINER_LISTS
from timekeeper.core.json_values import Json, mapping, sequence

_GRAMMAR = re.compile(
    r"([+-]?)([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BY_POWER = {power: suffix for suffix, power in _DECIMAL.items()}
_SMALLEST = Fraction(1, 1000)
_DEEPEST = 32  # levels of a pod; no type of the API is nested more deeply


def pod(raw: Json) -> dict[str, Any]:
    """The pod with the defaults that our rules read: null becomes absent, a missing request becomes the
    limit, amounts get their canonical form. ``raw`` is any JSON object; parts of a wrong type stay."""
    whole: dict[str, Any] = _without_nulls(raw)
    whole.setdefault("metadata", {})
    spec = whole.setdefault("spec", {})
    if isinstance(spec, dict):
        spec.setdefault("schedulerName", "default-scheduler")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        for field in CONTAINER_LISTS:
            for container in sequence(spec.get(field)):
                if isinstance(container, dict) and isinstance(container.get("resources"), Mapping):
                    container["resources"] = quantities(container["resources"])
    return whole


def quantity(value: object) -> object:
    """The canonical form of an amount: text for a number or a quantity; anything else unchanged, because the
    API server refuses it. (The API server keeps some odd spellings, such as ``+5`` or ``1E3``; here equal
    amounts always become equal texts.)"""
    if isinstance(value, float):
        return quantity(repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return quantity(str(value))
    match = _GRAMMAR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    sign, digits, suffix, exponent = match.groups()
    amount = Fraction(digits if digits[-1] != "." else digits[:-1])
    if suffix in _BINARY and suffix:
        amount, spelt = amount * 2 ** _BINARY[suffix], _binary
    elif exponent is not None:
        amount, spelt = amount * Fraction(10) ** int(exponent), _exponential
    else:
        amount, spelt = amount * Fraction(10) ** _DECIMAL[suffix or ""], _decimally
    amount = _rounded_up(amount)
    return ("-" if sign == "-" and amount else "") + spelt(amount)


def _rounded_up(amount: Fraction) -> Fraction:
    """Rounds up to whole thousandths, as the API server does with amounts of containers."""
    return -(-amount // _SMALLEST) * _SMALLEST


def _decimally(amount: Fraction) -> str:
    mantissa, power = _in_thousands(amount)
    while power > 18:
        mantissa, power = mantissa * 1000, power - 3
    return f"{mantissa}{_BY_POWER[power]}"


def _exponential(amount: Fraction) -> str:
    mantissa, power = _in_thousands(amount)
    return f"{mantissa}e{power}" if power else str(mantissa)


def _in_thousands(amount: Fraction) -> tuple[int, int]:
    """The whole mantissa and the largest power of ten, a multiple of three, that give the amount."""
    power = 0
    while amount.denominator != 1:
        amount, power = amount * 1000, power - 3
    mantissa = int(amount)
    while mantissa and mantissa % 1000 == 0:
        mantissa, power = mantissa // 1000, power + 3
    return mantissa, power


def _binary(amount: Fraction) -> str:
    if amount < 1024 or amount.denominator != 1:
        return _decimally(amount)
    mantissa, power = int(amount), 0
    while mantissa % 1024 == 0 and power < 60:
        mantissa, power = mantissa // 1024, power + 10
    return f"{mantissa}{next(suffix for suffix, each in _BINARY.items() if each == power)}"


def quantities(resources: Json) -> dict[str, Any]:
    """A container's resources with amounts in canonical spelling, and requests filled in from limits."""
    spelt: dict[str, Any] = {
        field: {name: quantity(value) for name, value in amounts.items()}
        if field in ("limits", "requests") and isinstance(amounts, Mapping)
        else amounts
        for field, amounts in resources.items()
    }
    limits = mapping(spelt.get("limits"))
    if limits and isinstance(spelt.get("requests", {}), Mapping):
        spelt["requests"] = {**limits, **spelt.get("requests", {})}
    return spelt


def _without_nulls(value: Any, levels: int = _DEEPEST) -> Any:
    """A copy without nulls, which the API server's types do not have."""
    if not levels:
        return value
    if isinstance(value, Mapping):
        return {key: _without_nulls(each, levels - 1) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each, levels - 1) for each in value]
    return value
