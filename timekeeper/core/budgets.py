"""The only reader of the budget ConfigMaps: their text into Budget and Settings values, or errors with key,
line and field.

Scalars are taken as text with their line marks (PyYAML's composer), so 0.1 is exactly a tenth and ``on`` is
not True; anchors and aliases are refused, for nobody needs them here and they can be made to explode.
"""

import re
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from timekeeper.core import policy
from timekeeper.core.names import BUDGETS
from timekeeper.core.policy import GPU_HOUR, Budget, Settings
from timekeeper.core.request import POLICIES
from timekeeper.core.rules import FIXED, SETTABLE

LONGEST_NAME = 256  # characters of a user's or group's name
LONGEST_ENTRY = 16 * 1024  # characters; an entry is a dozen lines
DEEPEST = 4  # levels of nesting; a rule's mode is the deepest that an entry has

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class EntryError:
    """What is wrong in one entry: its key, the line within it (from 1), the field, the problem, what is
    allowed.

    ``config_map``: the ConfigMap to mend, where that is not the one whose entry of this key counts.
    """

    key: str
    line: int
    field: str
    problem: str
    allowed: str
    config_map: str = ""

    def sentence(self) -> str:
        """One line for a log, an event or a refusal."""
        where = f"{self.key}, line {self.line}" + (f", {self.field}" if self.field else "")
        return f"{where}: {self.problem}; allowed: {self.allowed}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What all the ConfigMaps together say: the good entries, and what is wrong with the others."""

    budgets: Mapping[str, Budget]
    settings: Settings | None
    errors: tuple[EntryError, ...]

    @property
    def broken(self) -> frozenset[str]:
        """The keys that have no good entry here, so that their last good one stays in force."""
        good = {*self.budgets, *(("_settings",) if self.settings else ())}
        return frozenset(error.key for error in self.errors) - good


class _BadValueError(ValueError):
    """A scalar that its field does not take; the text tells what is allowed."""


class _BadEntryError(ValueError):
    def __init__(self, line: int, field: str, problem: str, allowed: str) -> None:
        super().__init__(problem)
        self.line, self.field, self.problem, self.allowed = line, field, problem, allowed


def read(config_maps: Mapping[str, Mapping[str, str]]) -> Reading:
    """Reads every entry of every ConfigMap (name -> data). A bad entry harms no other.

    ``bursar-budgets`` comes first, the others by name; a key that stands in two is an error of the later
    one's, and the earlier one holds.
    """
    budgets: dict[str, Budget] = {}
    settings: Settings | None = None
    errors: list[EntryError] = []
    seen: dict[str, str] = {}
    for name in sorted(config_maps, key=lambda name: (name != BUDGETS, name)):
        for key, text in config_maps[name].items():
            if key in seen:
                errors.append(_twice(key, seen[key], name))
                continue
            seen[key] = name
            value = read_entry(key, text)
            if isinstance(value, EntryError):
                errors.append(value)
            elif isinstance(value, Settings):
                settings = value
            else:
                budgets[key] = value
    return Reading(budgets, settings, tuple(errors))


def read_entry(key: str, text: str, settled: bool = False) -> Budget | Settings | EntryError:
    """One entry's value, or the first thing that is wrong in it. Never raises, whatever the text.

    ``settled``: the entry took effect long ago, so rules that this release does not know, or lets nobody set,
    are left out and are no error: an upgrade changes no account.
    """
    try:
        fields = _fields(text)
        if key == "_settings":
            return _settings(fields, settled)
        _check_key(key)
        return _budget(fields, settled)
    except _BadEntryError as bad:
        return EntryError(key, bad.line, bad.field, bad.problem, bad.allowed)


def group_key(group: str) -> str:
    """The key under which a group's own budget stands."""
    return f"_group.{group}"


def _twice(key: str, first: str, later: str) -> EntryError:
    problem = f"also in ConfigMap {first}; the entry in {later} is not read"
    return EntryError(key, 1, "", problem, "a key in one ConfigMap", later)


def _check_key(key: str) -> None:
    name = key.removeprefix("_group.")
    if key != "_defaults" and not _NAME.fullmatch(name):
        raise _BadEntryError(1, "", "no such key", "a namespace's name, _group.NAME, _defaults or _settings")


def _fields(text: str) -> dict[str, yaml.Node]:
    """The entry's mapping as field -> node. Duplicate fields, aliases and several documents are refused."""
    if len(text) > LONGEST_ENTRY:
        raise _BadEntryError(1, "", "too long", f"at most {LONGEST_ENTRY} characters")
    root = _compose(text)
    if root is None:
        return {}
    return _pairs(root, "")


def _compose(text: str) -> yaml.Node | None:
    try:
        _check_shape(text)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _BadEntryError(line, "", f"not YAML: {error.problem}", "one mapping of fields") from error
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise _BadEntryError(1, "", f"not YAML: {problem}", "one mapping of fields") from error


def _check_shape(text: str) -> None:
    """Refuses anchors, aliases and deep nesting while the text is still a stream of events, before it can
    cost anything."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if getattr(event, "anchor", None):
            raise _BadEntryError(line, "", "an anchor or alias", "plain fields")
        if depth > DEEPEST:
            raise _BadEntryError(line, "", "nested too deeply", f"at most {DEEPEST} levels")


def _pairs(node: yaml.Node, field: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _BadEntryError(_line(node), field, "not a mapping", "fields as name: value")
    pairs: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        if not name or name in pairs:
            problem = f"the field {name} stands twice" if name else "a field without a name"
            raise _BadEntryError(_line(key), field or name, problem, "each field once")
        pairs[name] = value
    return pairs


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node, field: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _BadEntryError(_line(node), field, "not a single value", "one value")
    return str(node.value)


Reader = Callable[[str], Any]


def _scalars(node: yaml.Node, field: str, reader: Reader) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise _BadEntryError(_line(node), field, "not a list", "a list of values")
    return tuple(_value(each, f"{field}[{place}]", reader) for place, each in enumerate(node.value))


def _one_of(words: Iterable[str]) -> Reader:
    allowed = tuple(words)

    def read_word(text: str) -> str:
        if text not in allowed:
            raise _BadValueError(", ".join(allowed))
        return text

    return read_word


def _hours(text: str) -> int | None:
    if text == "unlimited":
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,8})?", text, re.ASCII):
        raise _BadValueError("a number of GPU-hours with at most 8 decimals, or unlimited")
    return int(Decimal(text) * GPU_HOUR)


def _thousandths(most: int) -> Reader:
    def read_part(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text, re.ASCII) or Decimal(text) > most:
            raise _BadValueError(f"a number from 0 to {most} with at most 3 decimals")
        return int(Decimal(text) * 1000)

    return read_part


def _weight(text: str) -> int:
    weight = _thousandths(1000)(text)
    if weight == 0:
        raise _BadValueError("a number above 0 with at most 3 decimals")
    return int(weight)


def _duration_ms(text: str) -> int:
    if not re.fullmatch(r"([0-9]{1,9}(ms|s|m|h|d))+", text, re.ASCII):
        raise _BadValueError("a duration such as 0s, 90s, 10m, 1h30m or 2d")
    parts = re.findall(r"([0-9]+)(ms|s|m|h|d)", text)
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def _natural(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise _BadValueError("a whole number from 0 to 999999")
    return int(text)


def _price(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text, re.ASCII):
        raise _BadValueError("a price per GPU-hour with at most 6 decimals")
    return text


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise _BadValueError("a name of small letters, digits and -")
    return text


def _who(text: str) -> str:
    if not text or len(text) > LONGEST_NAME or not text.isprintable() or text != text.strip():
        raise _BadValueError("a user or group such as system:serviceaccount:NAMESPACE:NAME")
    return text


def _zone(text: str) -> str:
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _BadValueError("a time zone's name such as UTC or Europe/Berlin") from error
    return text


def _sidecar(text: str) -> str:
    """YAML 1.1 writes on and off as true and false too."""
    return str(_one_of(policy.SIDECARS)({"true": "on", "false": "off"}.get(text, text)))


_BUDGET_FIELDS: dict[str, tuple[str, Reader]] = {
    "gpuHours": ("amount", _hours),
    "period": ("period", _one_of(policy.PERIODS)),
    "carryOver": ("carry_over_milli", _thousandths(1)),
    "onExhausted": ("on_exhausted", _one_of(policy.ON_EXHAUSTED)),
    "warnAt": ("warn_at_milli", _thousandths(1)),
    "group": ("group", _name),
    "policy": ("policy", _one_of(POLICIES)),
    "mode": ("mode", _one_of(policy.MODES)),
    "maxGPUs": ("max_gpus", _natural),
    "price": ("price", _price),
}

_SETTING_FIELDS: dict[str, tuple[str, Reader]] = {
    "timeZone": ("time_zone", _zone),
    "mode": ("mode", _one_of(policy.MODES)),
    "schedulerName": ("scheduler_name", _name),
    "sidecar": ("sidecar", _sidecar),
    "chargeBy": ("charge_by", _one_of(policy.CHARGE_BY)),
    "chargeFrom": ("charge_from", _one_of(policy.CHARGE_FROM)),
    "lookahead": ("lookahead_ms", _duration_ms),
    "startGrace": ("start_grace_ms", _duration_ms),
    "maxGracePeriod": ("max_grace_period_ms", _duration_ms),
    "settleAfter": ("settle_after_ms", _duration_ms),
    "pdbGrace": ("pdb_grace_ms", _duration_ms),
    "unknownStanding": ("unknown_standing", _one_of(("inBudget", "overBudget"))),
}


def _budget(fields: dict[str, yaml.Node], settled: bool) -> Budget:
    if "gpuHours" not in fields:
        raise _BadEntryError(1, "gpuHours", "missing", "a number of GPU-hours, or unlimited")
    values = _read_fields(fields, _BUDGET_FIELDS, ("rules", "exempt"))
    return Budget(**values, **_admission(fields, settled))


def _settings(fields: dict[str, yaml.Node], settled: bool) -> Settings:
    values = _read_fields(fields, _SETTING_FIELDS, ("weights", "priorityClasses", "rules", "exempt"))
    values |= _admission(fields, settled)
    if "weights" in fields:
        pairs = _pairs(fields["weights"], "weights").items()
        values["weights"] = tuple((model, _value(node, f"weights.{model}", _weight)) for model, node in pairs)
    if "priorityClasses" in fields:
        values |= _classes(fields["priorityClasses"])
    return Settings(**values)


def _admission(fields: dict[str, yaml.Node], settled: bool) -> dict[str, Any]:
    """The fields ``rules`` and ``exempt``, which a namespace and the cluster have alike."""
    values: dict[str, Any] = {}
    if "rules" in fields:
        modes = {
            rule: _rule_mode(rule, node, settled) for rule, node in _pairs(fields["rules"], "rules").items()
        }
        values["rules"] = tuple((rule, mode) for rule, mode in modes.items() if mode)
    if "exempt" in fields:
        values["exempt"] = _scalars(fields["exempt"], "exempt", _who)
    return values


def _rule_mode(rule: str, node: yaml.Node, settled: bool) -> str:
    """The mode of one rule; empty for one that is left out."""
    field = f"rules.{rule[:60]}"
    if rule in SETTABLE:
        return str(_value(node, field, _one_of(policy.RULE_MODES)))
    if settled:
        return ""
    if rule not in FIXED:
        raise _BadEntryError(_line(node), field, "no such rule", ", ".join(SETTABLE))
    if _value(node, field, _one_of(policy.RULE_MODES)) != "enforce":
        raise _BadEntryError(_line(node), field, "this rule is always enforced", "enforce, or leaving it out")
    return ""


def _classes(node: yaml.Node) -> dict[str, str]:
    known = {"inBudget": "in_budget_class", "overBudget": "over_budget_class"}
    classes = {}
    for name, value in _pairs(node, "priorityClasses").items():
        if name not in known:
            raise _BadEntryError(_line(value), f"priorityClasses.{name}", "no such field", ", ".join(known))
        classes[known[name]] = _value(value, f"priorityClasses.{name}", _name)
    return classes


def _read_fields(
    fields: dict[str, yaml.Node], known: dict[str, tuple[str, Reader]], nested: tuple[str, ...]
) -> dict[str, Any]:
    values = {}
    for field, node in fields.items():
        if field in known:
            attribute, reader = known[field]
            values[attribute] = _value(node, field, reader)
        elif field not in nested:
            raise _BadEntryError(_line(node), field, "no such field", ", ".join((*known, *nested)))
    return values


def _value(node: yaml.Node, field: str, reader: Reader) -> Any:
    text = _scalar(node, field)
    try:
        return reader(text)
    except _BadValueError as bad:
        raise _BadEntryError(_line(node), field, f'"{text[:60]}" is not taken', str(bad)) from bad
