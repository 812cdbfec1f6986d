"""Reads the field ``protect`` of a budget entry."""

import re

import yaml

from timekeeper.core.budgets import scalars
from timekeeper.core.budgets.mistakes import BadEntryError, Mistakes, unknown_field
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.budgets.yaml_nodes import line_of, pairs_of, value_of, values_of
from timekeeper.core.object_names import KIND, is_own_label

FIELD = "protect"
_FIELDS = ("labels", "owners", "cards", "hours")
MOST = 16  # labels, and kinds of controllers

_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?", re.ASCII
)
_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def read_protection(node: yaml.Node, mistakes: Mistakes) -> Protection | None:
    """The field's value; None where there are mistakes, which are noted."""
    count = len(mistakes.found)
    fields = mistakes.tried(pairs_of, node, FIELD) or {}
    for name, value in fields.items():
        if name not in _FIELDS:
            mistakes.found.append(unknown_field(line_of(value), f"{FIELD}.{name}", name, _FIELDS))
    labels = mistakes.tried(_labels, fields["labels"], mistakes) if "labels" in fields else ()
    kinds = _kinds(fields["owners"], mistakes) if "owners" in fields else ()
    floors = {
        "cards_milli": _floor(fields, "cards", scalars.cards, mistakes),
        "amount": _floor(fields, "hours", _hours, mistakes),
    }
    if len(mistakes.found) == count:
        mistakes.found += _missing(node, fields, bool(labels or kinds))
    return Protection(labels or (), kinds, **floors) if len(mistakes.found) == count else None


def _missing(node: yaml.Node, fields: dict[str, yaml.Node], selects: bool) -> list[BadEntryError]:
    """A protection of all pods would be a second budget, and one without a floor no budget."""
    found = []
    if not selects:
        problem = "it selects every pod"
        found.append(BadEntryError(line_of(node), FIELD, problem, "labels, owners, or both"))
    if ("cards" in fields) == ("hours" in fields):
        problem = "it has two floors" if "cards" in fields else "it has no floor"
        found.append(BadEntryError(line_of(node), FIELD, problem, "either cards or hours"))
    return found


def _floor(fields: dict[str, yaml.Node], name: str, reader: scalars.Reader, mistakes: Mistakes) -> int | None:
    return mistakes.tried(value_of, fields[name], f"{FIELD}.{name}", reader) if name in fields else None


def _hours(text: str) -> int:
    amount = None if text == "unlimited" else scalars.hours(text)
    if amount is None:
        raise scalars.BadValueError("a number of GPU-hours a period with at most 8 decimals")
    return amount


def _labels(node: yaml.Node, mistakes: Mistakes) -> tuple[tuple[str, str], ...]:
    where = f"{FIELD}.labels"
    pairs = pairs_of(node, where)
    if len(pairs) > MOST:
        raise BadEntryError(line_of(node), where, "too many labels", f"at most {MOST} labels")
    found = {}
    for name, value in pairs.items():
        if not _LABEL.fullmatch(name):
            allowed = "a label's name such as app or example.com/tier"
            problem = f'"{name[:60]}" is not a label\'s name'
            mistakes.found.append(BadEntryError(line_of(value), where, problem, allowed))
        elif not is_own_label(name):
            problem = f"{name[:60]} is written by a controller or by Bursar"
            mistakes.found.append(BadEntryError(line_of(value), where, problem, "labels of the pod template"))
        else:
            found[name] = mistakes.tried(value_of, value, f"{where}.{name}", _label_value) or ""
    return tuple(sorted(found.items()))


def _label_value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise scalars.BadValueError("a label's value of at most 63 letters, digits and . _ -")
    return text


def _kinds(node: yaml.Node, mistakes: Mistakes) -> tuple[str, ...]:
    where = f"{FIELD}.owners"
    kinds = mistakes.tried(values_of, node, where, _kind, mistakes) or ()
    if len(kinds) > MOST:
        mistakes.found.append(BadEntryError(line_of(node), where, "too many kinds", f"at most {MOST} kinds"))
    return kinds


def _kind(text: str) -> str:
    if not re.fullmatch(KIND, text, re.ASCII):
        raise scalars.BadValueError("a kind of controllers such as Deployment or StatefulSet")
    return text
