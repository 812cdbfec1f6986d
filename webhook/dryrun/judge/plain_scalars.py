"""Plain YAML scalars, resolved as kubectl's library does (sigs.k8s.io/yaml).

``yes`` is true, ``1e3`` is 1000, ``0o17`` is 15, a date is text.
"""

import math
import re
from typing import Any

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([0-9]+))", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain(text: str) -> Any:
    """A plain scalar's value, as kubectl's library resolves it."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    digits = text.replace("_", "") if text[:1] in "-+.0123456789" else ""
    integer = _INTEGER.fullmatch(digits)
    if integer and len(digits) <= 64:
        whole = _integer(*integer.groups())
        if -(2**63) <= whole < 2**64:
            return whole
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if not math.isinf(number):
            return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return text


def _integer(sign: str, sixteen: str, two: str, eight: str, ten: str) -> int:
    for digits, base in ((sixteen, 16), (two, 2), (eight, 8), (ten, 10)):
        if digits is not None:
            return int(digits, base) * (-1 if sign == "-" else 1)
    raise AssertionError("one of them has matched")
