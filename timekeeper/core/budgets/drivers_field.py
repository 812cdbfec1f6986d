"""Reads the setting ``drivers``: which devices of a driver are GPUs, and by what their parts count."""

import re
from collections.abc import Iterable
from typing import Any

import yaml

from timekeeper.core.budgets import scalars
from timekeeper.core.budgets.mistakes import BadEntryError, Mistakes, unknown_field
from timekeeper.core.budgets.yaml_nodes import line_of, pairs_of, value_of, values_of
from timekeeper.core.claims.drivers import CAPACITY, EXAMPLE, DeviceComparison, DriverRule, read_comparison

FIELD = "drivers"
MOST_DRIVERS = 64
_MOST_VALUES = 16
_FIELDS = ("gpus", "model", "counters", "capacity", "minShare", "units")
_DRIVER = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
_ATTRIBUTE = re.compile(r"([a-z0-9.-]{1,63}/)?[A-Za-z0-9_-]{1,63}", re.ASCII)


def read_drivers(node: yaml.Node, mistakes: Mistakes) -> tuple[DriverRule, ...]:
    """The field's rules; mistakes are noted."""
    pairs = mistakes.tried(pairs_of, node, FIELD) or {}
    if len(pairs) > MOST_DRIVERS:
        mistakes.found.append(
            BadEntryError(line_of(node), FIELD, "too many drivers", f"at most {MOST_DRIVERS} drivers")
        )
        return ()
    return tuple(filter(None, (_rule(name, value, mistakes) for name, value in pairs.items())))


def _rule(driver: str, node: yaml.Node, mistakes: Mistakes) -> DriverRule | None:
    where = f"{FIELD}.{driver[:63]}"
    if not _DRIVER.fullmatch(driver):
        problem, allowed = "this is not a driver's name", "a name such as gpu.example.com"
        mistakes.found.append(BadEntryError(line_of(node), where, problem, allowed))
        return None
    fields = mistakes.tried(pairs_of, node, where) or {}
    for name, value in fields.items():
        if name not in _FIELDS:
            mistakes.found.append(unknown_field(line_of(value), f"{where}.{name}", name, _FIELDS))
    values: dict[str, Any] = {"driver": driver}
    if "gpus" in fields:
        values |= mistakes.tried(_gpus, fields["gpus"], f"{where}.gpus", mistakes) or {}
    for name, read in (("model", _attribute), ("units", _units)):
        if name in fields:
            values[name] = mistakes.tried(value_of, fields[name], f"{where}.{name}", read)
    for name in ("counters", "capacity"):
        if name in fields:
            names = mistakes.tried(values_of, fields[name], f"{where}.{name}", _attribute, mistakes) or ()
            values[name] = _few(names, fields[name], f"{where}.{name}", mistakes)
    if "minShare" in fields:
        values["min_share_milli"] = mistakes.tried(
            value_of, fields["minShare"], f"{where}.minShare", scalars.thousandths(1)
        )
    return DriverRule(**values)


def _gpus(node: yaml.Node, where: str, mistakes: Mistakes) -> dict[str, Any]:
    if isinstance(node, yaml.SequenceNode):
        found = values_of(node, where, _comparison, mistakes)
        return {"where": _few(found, node, where, mistakes)}
    return {"has_gpus": value_of(node, where, _all_or_none)}


def _few(found: Iterable[Any], node: yaml.Node, where: str, mistakes: Mistakes) -> tuple[Any, ...]:
    values = tuple(found)
    if not 0 < len(values) <= _MOST_VALUES:
        problem = "too many values" if values else "the list is empty"
        mistakes.found.append(BadEntryError(line_of(node), where, problem, f"1 to {_MOST_VALUES} values"))
    return values


def _all_or_none(text: str) -> bool:
    if text not in ("all", "none"):
        raise scalars.BadValueError(f"all, none, or a list of comparisons such as {EXAMPLE}")
    return text == "all"


def _comparison(text: str) -> DeviceComparison:
    found = read_comparison(text)
    if found is None:
        raise scalars.BadValueError(f"a comparison such as {EXAMPLE}")
    return found


def _attribute(text: str) -> str:
    if not _ATTRIBUTE.fullmatch(text):
        raise scalars.BadValueError("the name of an attribute, a capacity or a counter of a device")
    return text


def _units(text: str) -> str:
    if not _ATTRIBUTE.fullmatch(text.removeprefix(CAPACITY)):
        raise scalars.BadValueError("an attribute of a device, or a capacity such as capacity.tpus")
    return text
