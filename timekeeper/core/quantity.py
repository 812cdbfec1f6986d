"""Kubernetes quantities, read exactly.

The API server rewrites what a user wrote (``8000`` arrives as ``8k``), so every exact integral spelling is
accepted: decimal and binary suffixes and exponents. Everything else (``0.5``, ``500m``, ``NaN``, blanks,
non-ASCII digits, huge exponents) is not a whole number.

Source: the grammar in k8s.io/apimachinery/pkg/api/resource, ``Quantity``.
"""

import re
from fractions import Fraction
from functools import lru_cache

LARGEST = 2**63 - 1  # Kubernetes itself counts extended resources in an int64

_GRAMMAR = re.compile(
    r"([+-]?)([0-9]{0,40})(?:\.([0-9]{0,40}))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)
_LONGEST = 88  # the longest text that the grammar matches: sign, digits, point, digits, exponent
_DECIMAL = {"n": -9, "u": -6, "m": -3, None: 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def integral(value: object) -> int | None:
    """The whole number that a quantity denotes; None if it is not a whole number within an int64.

    Accepts values from JSON or YAML: text in Kubernetes' grammar, or an int (bool and float are not
    quantities).
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= LARGEST else None
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    return _whole(value)


def thousandths(value: object) -> int | None:
    """The thousandths that a quantity denotes, rounded up as Kubernetes does (``Quantity.MilliValue``), but
    without an upper limit: Kubernetes' own result overflows beyond an int64.

    None if it is not a quantity.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    return _thousandths(value)


def same_amount(one: object, other: object) -> bool:
    """True if two quantities have the same text or denote the same whole number."""
    if one == other:
        return True
    amount = integral(one)
    return amount is not None and amount == integral(other)


@lru_cache(maxsize=1024)  # pods use the same few amounts
def _whole(text: str) -> int | None:
    exact = _exact(text)
    if exact is None or exact.denominator != 1 or abs(exact) > LARGEST:
        return None
    return int(exact)


@lru_cache(maxsize=4096)
def _thousandths(text: str) -> int | None:
    exact = _exact(text)
    return None if exact is None else -(-exact.numerator * 1000 // exact.denominator)


def _exact(text: str) -> Fraction | None:
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    sign, whole, decimals, suffix, exponent = match.groups()
    digits = Fraction(int((whole or "") + (decimals or "")), 10 ** len(decimals or ""))
    scale = (
        Fraction(2) ** _BINARY[suffix]
        if suffix in _BINARY
        else Fraction(10) ** _power_of_ten(suffix, exponent)
    )
    return -digits * scale if sign == "-" else digits * scale


def _power_of_ten(suffix: str | None, exponent: str | None) -> int:
    return int(exponent) if exponent is not None else _DECIMAL[suffix]
