"""Single values of a budget entry, read from text: exactly what is written, or an error that says what is
allowed."""

import re
import zoneinfo
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any
from unicodedata import category

from timekeeper.core.budgets import policy
from timekeeper.core.budgets.policy import GPU_HOUR

LONGEST_NAME = 256  # characters of a user's or group's name
LONGEST_PERSON = 100

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS = 3_650 * _UNITS_MS["d"]

Reader = Callable[[str], Any]  # raises BadValueError


class BadValueError(ValueError):
    """An invalid value; the text says what is allowed."""


def one_of(words: Iterable[str]) -> Reader:
    """Reads one of these words."""
    allowed = tuple(words)

    def read_word(text: str) -> str:
        if text not in allowed:
            raise BadValueError(", ".join(allowed))
        return text

    return read_word


def hours(text: str) -> int | None:
    """GPU-hours as an amount; None: unlimited."""
    if text == "unlimited":
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,8})?", text, re.ASCII):
        raise BadValueError("a number of GPU-hours with at most 8 decimals, or unlimited")
    return int(Decimal(text) * GPU_HOUR)


def part_hours(text: str) -> int:
    """GPU-hours above 0 as an amount."""
    amount = None if text == "unlimited" else hours(text)
    if not amount:
        raise BadValueError("a number of GPU-hours above 0 with at most 8 decimals")
    return amount


def thousandths(most: int) -> Reader:
    """Reads a number from 0 to ``most`` in thousandths."""

    def read_part(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text, re.ASCII) or Decimal(text) > most:
            raise BadValueError(f"a number from 0 to {most} with at most 3 decimals")
        return int(Decimal(text) * 1000)

    return read_part


def weight(text: str) -> int:
    """A weight in thousandths, above 0."""
    weight = thousandths(1000)(text)
    if weight == 0:
        raise BadValueError("a number above 0 with at most 3 decimals")
    return int(weight)


def half_life_ms(text: str) -> int:
    """A duration above 0, of a year at most."""
    allowed = "a duration above 0s, of at most 365d, such as 14d or 12h"
    try:
        found = duration_ms(text)
    except BadValueError as error:
        raise BadValueError(allowed) from error
    if not 0 < found <= 365 * _UNITS_MS["d"]:
        raise BadValueError(allowed)
    return found


def unit_cost(text: str) -> int:
    """What one unit of a named resource costs, in 10^-12 of a GPU."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,12})?", text, re.ASCII) or Decimal(text) > 1000:
        raise BadValueError("a number of GPUs from 0 to 1000 with at most 12 decimals")
    return int(Decimal(text) * 10**12)


def duration_ms(text: str) -> int:
    """A duration in milliseconds, of ten years at most."""
    if not re.fullmatch(r"([0-9]{1,9}(ms|s|m|h|d))+", text, re.ASCII):
        raise BadValueError("a duration such as 0s, 90s, 10m, 1h30m or 2d")
    parts = re.findall(r"([0-9]+)(ms|s|m|h|d)", text)
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in parts)
    if total > _LONGEST_MS:
        raise BadValueError("a duration of at most 3650d")
    return total


def cards(text: str) -> int:
    """A number of cards, in thousandths."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text, re.ASCII):
        raise BadValueError("a number of cards from 0 to 999999 with at most 3 decimals")
    return int(Decimal(text) * 1000)


def count(text: str) -> int:
    """A whole number from 1 to 999999."""
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or not int(text):
        raise BadValueError("a whole number from 1 to 999999")
    return int(text)


def per_minute(text: str) -> int:
    """How often in a minute, at least once."""
    if not re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) or not 1 <= int(text) <= 600:
        raise BadValueError("a whole number from 1 to 600, a minute")
    return int(text)


_PRICE = r"[0-9]{1,9}(\.[0-9]{1,6})?"
_LATER = rf" +then +({_PRICE}) +from +([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})"
MOST_PRICES = 100


def prices(text: str) -> tuple[str, tuple[tuple[date, str], ...]]:
    """A price per weighted GPU-hour, as it was written, and later ones with the days on which they begin."""
    if not re.fullmatch(rf"{_PRICE}({_LATER}){{0,{MOST_PRICES}}}", text, re.ASCII):
        raise BadValueError(
            "a price per GPU-hour with at most 6 decimals, or with later ones, such as"
            f" 2.5 then 3 from 2026-12-01, at most {MOST_PRICES}"
        )
    later = tuple((_day(day), price) for price, _, day in re.findall(_LATER, text, re.ASCII))
    if any(one >= next_ for (one, _), (next_, _) in pairwise(later)):
        raise BadValueError("later prices in the order of their days, each day once")
    return text.partition(" ")[0], later


def _day(text: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise BadValueError(f"days that exist, and {text} does not") from error
    if not 1970 <= found.year <= 9997:
        raise BadValueError("days of the years 1970 to 9997")
    return found


def currency(text: str) -> str:
    """A currency by its code of ISO 4217."""
    if not re.fullmatch(r"[A-Z]{3}", text, re.ASCII):
        raise BadValueError("a currency code of three capital letters such as USD or EUR")
    return text


def cluster(text: str) -> str:
    """A cluster's name; clouds write a path or an ARN."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", text, re.ASCII):
        raise BadValueError("a cluster's name of at most 128 letters, digits and . _ : / -, such as prod-eu")
    return text


def name(text: str) -> str:
    """A name by Kubernetes' rules (RFC 1123 label)."""
    if not NAME.fullmatch(text):
        raise BadValueError("a name of lower-case letters, digits and -")
    return text


def model(text: str) -> str:
    """The model of a device, as reports show it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,99}", text, re.ASCII):
        raise BadValueError("a model's name of at most 100 letters, digits, blanks and . _ / + -")
    return text


def user_or_group(text: str) -> str:
    """The name of a user or a group, as the API server knows it."""
    if not text or len(text) > LONGEST_NAME or not text.isprintable() or text != text.strip():
        raise BadValueError("a user or group such as system:serviceaccount:NAMESPACE:NAME")
    return text


def person(text: str) -> str:
    """A person's name or address: plain words, of which nothing becomes a link, markup or a formula where
    they are pasted."""
    if len(text) > LONGEST_PERSON or not all(map(_is_plain, text.split(" "))):
        allowed = "words of letters, digits and . ' _ + - @ that begin with a letter or digit"
        raise BadValueError(f"a name or address of at most {LONGEST_PERSON} characters: {allowed}")
    return text


def _is_plain(word: str) -> bool:
    letters = (letter.isalnum() or letter in ".'_+-@" or category(letter) in ("Mc", "Mn") for letter in word)
    return word[:1].isalnum() and all(letters) and not word.lower().startswith("www.")


def zone(text: str) -> str:
    """A time zone's name that this system knows."""
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadValueError("a time zone name such as UTC or Europe/Berlin") from error
    return text


def idle(text: str) -> str:
    """off, reclaim or evict. YAML 1.1 also writes off as false."""
    return str(one_of(policy.IDLE)({"false": "off"}.get(text, text)))


def yes_or_no(text: str) -> bool:
    """true or false."""
    return bool(one_of(("true", "false"))(text) == "true")


def on_or_off(text: str) -> str:
    """on or off. YAML 1.1 also writes on and off as true and false."""
    return str(one_of(policy.SWITCH)({"true": "on", "false": "off"}.get(text, text)))
