"""JSON that the API server stores for a tenant, as JSON that every decoder reads.

It stores 10,000 levels, lone surrogates, bytes that are no UTF-8 and numbers without bound. What a decoder
refuses is given to it again, mended: no field that we read is as deep as `LEVELS` or has such a number.
"""

from __future__ import annotations

import re
from math import isinf

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LEVELS = 900  # the standard library reads about 1,000, less what has called it; orjson 1,024
_DIGITS = 300  # every decoder reads a number that has fewer and no exponent

# A text without an escaped quote, an opening bracket, a closing one, a number that may be too large, or
# another number: no letter is read more than twice. Only repeats of single letters are possessive: Python
# before 3.11.5 errs in possessive groups that hold alternatives.
_TOKEN = re.compile(
    rb'"[^"]*+"?|([\[{])|([\]}])|(-?[0-9](?:[.0-9]{%d,}+[-+.0-9eE]*+|[.0-9]*+[-+eE][-+.0-9eE]*+))'
    rb"|-?[0-9][.0-9]*+" % _DIGITS
)
# half of a pair without the other half
_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB]..\\u.{4}))",
    re.DOTALL,
)


def mending(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The decoder, which is given the mended text where it raises ValueError or RecursionError."""

    def decoded(text: bytes) -> Any:
        try:
            return decode(text)
        except (ValueError, RecursionError):
            return decode(mended(text))

    return decoded


def mended(text: bytes) -> bytes:
    """The JSON as Go reads it: U+FFFD for each byte that is no UTF-8 and for each lone surrogate. What is
    deeper than `LEVELS`, and a number beyond what a double holds, is null."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = re.sub("[\udc80-\udcff]", "\ufffd", text.decode(errors="surrogateescape")).encode()
    pieces, begin, depth = [], 0, 0
    # of the same length, without escaped quotes: all other threads wait while one match reads a long text
    plain = text.replace(rb"\\", b"\0\0").replace(rb"\"", b"\0\0")
    for token in _TOKEN.finditer(plain):
        if token.lastindex == 1:
            depth += 1
            if depth == LEVELS + 1:
                pieces.append(text[begin : token.start(1)])
        elif token.lastindex == 2:
            depth -= 1
            if depth == LEVELS:
                pieces.append(b"null")
                begin = token.end()
        elif token.lastindex == 3 and depth <= LEVELS and _is_infinite(token[3]):
            pieces += text[begin : token.start(3)], b"null"
            begin = token.end()
    whole = b"".join([*pieces, text[begin:]])
    if b"\\ud" not in whole and b"\\uD" not in whole:
        return whole
    # no letter of JSON is NUL, so that here each backslash begins an escape
    return _SURROGATE.sub(rb"\\ufffd", whole.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")


def _is_infinite(number: bytes) -> bool:
    try:
        return len(number) > _DIGITS or isinf(float(number))
    except ValueError:
        return False
