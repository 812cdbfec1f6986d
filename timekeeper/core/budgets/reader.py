"""The only reader of the budget ConfigMaps: text into values, or errors with key, line and field.

Scalars are read as text with line marks (PyYAML's composer), so 0.1 is exactly a tenth and ``on`` is not
True. Anchors and aliases are refused: budgets do not need them, and they can be made to expand without limit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from timekeeper.core.budgets import policy, scalars
from timekeeper.core.budgets.mistakes import BadEntryError, EntryError, Mistakes, meant_field, unknown_field
from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.budgets.rule_ids import FIXED, SETTABLE
from timekeeper.core.names import BUDGET_CONFIG_MAPS
from timekeeper.core.request.request import POLICIES

LONGEST_ENTRY = 16 * 1024  # characters; an entry is a dozen lines
MOST_ERRORS = 20  # reported of one entry
DEEPEST = 4  # levels of nesting; the deepest value of an entry is a rule's mode


@dataclass(frozen=True, slots=True)
class ParsedBudgets:
    budgets: Mapping[str, Budget]  # key -> valid entry
    settings: BudgetSettings | None  # None: there is no valid entry ``_settings``
    errors: tuple[EntryError, ...]  # of the other entries
    warnings: tuple[EntryError, ...] = ()  # valid entries that refer to missing ones

    @property
    def broken(self) -> frozenset[str]:
        """Keys without a valid entry here: their last good entry stays in force."""
        good = {*self.budgets, *(("_settings",) if self.settings else ())}
        return frozenset(error.key for error in self.errors) - good


def read(
    config_maps: Mapping[str, Mapping[str, str]],
    read_one: Callable[[str, str], Budget | BudgetSettings | EntryError] | None = None,
) -> ParsedBudgets:
    """Reads every entry of every ConfigMap (name -> data). A bad entry does not affect others. ``read_one``:
    `read_entry` or an equivalent.

    If a key is in two ConfigMaps, the one that `precedence` puts first is effective and the other has an
    error.
    """
    budgets: dict[str, Budget] = {}
    settings: BudgetSettings | None = None
    errors: list[EntryError] = []
    seen: dict[str, str] = {}
    texts: dict[str, str] = {}
    for name in sorted(config_maps, key=precedence):
        for key, text in config_maps[name].items():
            if key in seen:
                errors.append(_duplicate_key(key, seen[key], name))
                continue
            seen[key] = name
            texts[key] = text
            value = (read_one or read_entry)(key, text)
            if isinstance(value, EntryError):
                errors.extend(value.each())
            elif isinstance(value, BudgetSettings):
                settings = value
            else:
                budgets[key] = value
    return ParsedBudgets(budgets, settings, tuple(errors), tuple(_missing_groups(budgets, texts)))


def precedence(config_map: str) -> tuple[int, str]:
    """Sorts names of ConfigMaps: ``bursar-settings``, then ``bursar-budgets``, then the others by name."""
    if config_map in BUDGET_CONFIG_MAPS:
        return BUDGET_CONFIG_MAPS.index(config_map), config_map
    return len(BUDGET_CONFIG_MAPS), config_map


def read_entry(key: str, text: str, settled: bool = False) -> Budget | BudgetSettings | EntryError:
    """One entry's value, or its errors, `MOST_ERRORS` at most. Never raises, whatever the text.

    ``settled``: the entry took effect in the past, so rules that this release does not know or does not allow
    to set are ignored without an error. An upgrade changes no account.
    """
    mistakes = Mistakes()
    value = mistakes.tried(_entry, key, text, settled, mistakes)
    if value is not None and not mistakes.found:
        return value
    first, *others = sorted(mistakes.found, key=lambda bad: bad.line)[:MOST_ERRORS]
    return replace(first.of(key), others=tuple(bad.of(key) for bad in others))


def _entry(key: str, text: str, settled: bool, mistakes: Mistakes) -> Budget | BudgetSettings | None:
    """The entry's value; None where there are mistakes."""
    fields = _fields(text)
    if key == "_settings":
        return _settings(fields, settled, mistakes)
    _check_key(key)
    budget = _budget(fields, settled, mistakes)
    if not settled:
        mistakes.found += _without_effect(key, fields, budget)
    return budget


def _without_effect(
    key: str, fields: Mapping[str, yaml.Node], budget: Budget | None
) -> Iterator[BadEntryError]:
    """A mistake for each field that nothing would read. A group's entry is an account: what concerns the pods
    stands in their namespaces' entries."""
    for field in _OF_NAMESPACES if key.startswith("_group.") else ():
        if field in fields:
            problem = "a group cannot be in a group" if field == "group" else "a group's entry cannot set it"
            yield BadEntryError(_line(fields[field]), field, problem, "omit the field")
    if budget is not None and budget.carry_over_milli > 0 and budget.period == "once":
        problem = "nothing is carried over where the period is once"
        yield BadEntryError(_line(fields["carryOver"]), "carryOver", problem, "omit the field")


def group_key(group: str) -> str:
    """The key of a group's own entry."""
    return f"_group.{group}"


def _missing_groups(budgets: Mapping[str, Budget], texts: Mapping[str, str]) -> Iterator[EntryError]:
    """A warning for each budget whose group has no entry, not even a broken one: such a group has no
    limit."""
    for key, budget in budgets.items():
        if budget.group and group_key(budget.group) not in texts:
            line = _line(_fields(texts[key])["group"])
            problem = (
                f"{group_key(budget.group)} is not defined in any budget ConfigMap, so the group has no limit"
            )
            yield EntryError(key, line, "group", problem, "a group with an entry")


def _duplicate_key(key: str, first: str, later: str) -> EntryError:
    problem = f"also defined in ConfigMap {first}; the entry in {later} is ignored"
    return EntryError(key, 1, "", problem, "a key in one ConfigMap", later)


def _check_key(key: str) -> None:
    name = key.removeprefix("_group.")
    if key != "_defaults" and not scalars.NAME.fullmatch(name):
        raise BadEntryError(1, "", "no such key", "a namespace's name, _group.NAME, _defaults or _settings")


def _fields(text: str) -> dict[str, yaml.Node]:
    """The entry's mapping as field -> node. Refuses duplicate fields, aliases and several documents."""
    if len(text) > LONGEST_ENTRY:
        raise BadEntryError(1, "", "too long", f"at most {LONGEST_ENTRY} characters")
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
        raise BadEntryError(line, "", f"not YAML: {error.problem}", "one mapping of fields") from error
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise BadEntryError(1, "", f"not YAML: {problem}", "one mapping of fields") from error


def _check_shape(text: str) -> None:
    """Refuses anchors, aliases and deep nesting while the text is a stream of events, before it can use
    memory."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if getattr(event, "anchor", None):
            raise BadEntryError(line, "", "anchors and aliases are not allowed", "plain fields")
        if depth > DEEPEST:
            raise BadEntryError(line, "", "nested too deeply", f"at most {DEEPEST} levels")


def _pairs(node: yaml.Node, field: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise BadEntryError(_line(node), field, "not a mapping", "fields as name: value")
    pairs: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        if not name or name in pairs:
            problem = f"the field {name} appears twice" if name else "a field without a name"
            raise BadEntryError(_line(key), field or name, problem, "each field once")
        pairs[name] = value
    return pairs


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node, field: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise BadEntryError(_line(node), field, "not a single value", "one value")
    return str(node.value)


def _scalars(node: yaml.Node, field: str, reader: scalars.Reader, mistakes: Mistakes) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise BadEntryError(_line(node), field, "not a list", "a list of values")
    return tuple(
        mistakes.tried(_value, each, f"{field}[{place}]", reader) for place, each in enumerate(node.value)
    )


_BUDGET_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "gpuHours": ("amount", scalars.hours),
    "period": ("period", scalars.one_of(policy.PERIODS)),
    "carryOver": ("carry_over_milli", scalars.thousandths(1)),
    "onExhausted": ("on_exhausted", scalars.one_of(policy.ON_EXHAUSTED)),
    "warnAt": ("warn_at_milli", scalars.thousandths(1)),
    "group": ("group", scalars.name),
    "policy": ("policy", scalars.one_of(POLICIES)),
    "mode": ("mode", scalars.one_of(policy.MODES)),
    "maxGPUs": ("max_gpus_milli", scalars.cards),
    "maxGPUsPerPod": ("max_gpus_per_pod_milli", scalars.cards),
    "maxWaiting": ("max_waiting", scalars.count),
    "price": ("price", scalars.price),
    "notify": ("notify", scalars.url),
    "notifyFormat": ("notify_format", scalars.one_of(policy.NOTIFY_FORMATS)),
    "overuse": ("overuse", scalars.one_of(policy.OVERUSE)),
    "overuseGrace": ("overuse_grace_ms", scalars.duration_ms),
    "evictGrace": ("evict_grace_ms", scalars.duration_ms),
    "evictRate": ("evict_rate", scalars.per_minute),
    "idle": ("idle", scalars.idle),
    "reserve": ("reserve", scalars.one_of(policy.RESERVE)),
    "requireDuration": ("require_duration", scalars.yes_or_no),
    "overtime": ("overtime", scalars.one_of(policy.OVERTIME)),
}

_OF_NAMESPACES = (
    "group",
    "mode",
    "rules",
    "exempt",
    "policy",
    "price",
    "overuse",
    "overuseGrace",
    "idle",
    "maxWaiting",
    "reserve",
    "requireDuration",
    "overtime",
)

_SETTING_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "timeZone": ("time_zone", scalars.zone),
    "mode": ("mode", scalars.one_of(policy.MODES)),
    "schedulerName": ("scheduler_name", scalars.name),
    "sidecar": ("sidecar", scalars.sidecar),
    "chargeBy": ("charge_by", scalars.one_of(policy.CHARGE_BY)),
    "chargeFrom": ("charge_from", scalars.one_of(policy.CHARGE_FROM)),
    "lookahead": ("lookahead_ms", scalars.duration_ms),
    "startGrace": ("start_grace_ms", scalars.duration_ms),
    "maxGracePeriod": ("max_grace_period_ms", scalars.duration_ms),
    "settleAfter": ("settle_after_ms", scalars.duration_ms),
    "pdbGrace": ("pdb_grace_ms", scalars.duration_ms),
    "overuse": ("overuse", scalars.one_of(policy.OVERUSE)),
    "overuseGrace": ("overuse_grace_ms", scalars.duration_ms),
    "evictGrace": ("evict_grace_ms", scalars.duration_ms),
    "evictRate": ("evict_rate", scalars.per_minute),
    "idle": ("idle", scalars.idle),
    "idleBelow": ("idle_below_milli", scalars.thousandths(1)),
    "idleAfter": ("idle_after_ms", scalars.duration_ms),
    "idleGrace": ("idle_grace_ms", scalars.duration_ms),
    "overtime": ("overtime", scalars.one_of(policy.OVERTIME)),
    "unknownStanding": ("unknown_standing", scalars.one_of(("inBudget", "overBudget"))),
    "price": ("price", scalars.price),
    "currency": ("currency", scalars.currency),
}


_FIGURE_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "weights": ("weights", scalars.weight),
    "unitCosts": ("unit_costs", scalars.unit_cost),
}


def _budget(fields: dict[str, yaml.Node], settled: bool, mistakes: Mistakes) -> Budget | None:
    values = _read_fields(fields, _BUDGET_FIELDS, ("rules", "exempt"), mistakes)
    if "gpuHours" not in fields and not any(
        meant_field(field, ("gpuHours",)) for field in list(fields)[:MOST_ERRORS]
    ):
        mistakes.found.append(BadEntryError(1, "gpuHours", "missing", "a number of GPU-hours, or unlimited"))
    values |= _admission(fields, settled, mistakes)
    return None if mistakes.found else Budget(**values)


def _settings(fields: dict[str, yaml.Node], settled: bool, mistakes: Mistakes) -> BudgetSettings | None:
    values = _read_fields(
        fields, _SETTING_FIELDS, (*_FIGURE_FIELDS, "priorityClasses", "rules", "exempt"), mistakes
    )
    values |= _admission(fields, settled, mistakes)
    for field, (attribute, reader) in _FIGURE_FIELDS.items():
        if field in fields:
            pairs = mistakes.tried(_pairs, fields[field], field) or {}
            values[attribute] = tuple(
                (name, mistakes.tried(_value, node, f"{field}.{name}", reader))
                for name, node in pairs.items()
            )
    if "priorityClasses" in fields:
        values |= _classes(fields["priorityClasses"], mistakes)
    return None if mistakes.found else BudgetSettings(**values)


def _admission(fields: dict[str, yaml.Node], settled: bool, mistakes: Mistakes) -> dict[str, Any]:
    """The fields ``rules`` and ``exempt``, which namespaces and the cluster have in common."""
    values: dict[str, Any] = {}
    if "rules" in fields:
        pairs = mistakes.tried(_pairs, fields["rules"], "rules") or {}
        modes = {rule: mistakes.tried(_rule_mode, rule, node, settled) for rule, node in pairs.items()}
        values["rules"] = tuple((rule, mode) for rule, mode in modes.items() if mode)
    if "exempt" in fields:
        values["exempt"] = mistakes.tried(
            _scalars, fields["exempt"], "exempt", scalars.user_or_group, mistakes
        )
    return values


def _rule_mode(rule: str, node: yaml.Node, settled: bool) -> str:
    """The mode of one rule; "" for an ignored rule."""
    field = f"rules.{rule[:60]}"
    if rule in SETTABLE:
        return str(_value(node, field, scalars.one_of(policy.RULE_MODES)))
    if settled:
        return ""
    if rule not in FIXED:
        raise BadEntryError(_line(node), field, "no such rule", ", ".join(SETTABLE))
    if _value(node, field, scalars.one_of(policy.RULE_MODES)) != "enforce":
        raise BadEntryError(_line(node), field, "this rule is always enforced", "enforce, or omit the rule")
    return ""


def _classes(node: yaml.Node, mistakes: Mistakes) -> dict[str, Any]:
    known = {"inBudget": "in_budget_class", "overBudget": "over_budget_class"}
    classes = {}
    for name, value in (mistakes.tried(_pairs, node, "priorityClasses") or {}).items():
        field = f"priorityClasses.{name}"
        if name in known:
            classes[known[name]] = mistakes.tried(_value, value, field, scalars.name)
        else:
            mistakes.found.append(unknown_field(_line(value), field, name, tuple(known)))
    return classes


def _read_fields(
    fields: dict[str, yaml.Node],
    known: dict[str, tuple[str, scalars.Reader]],
    nested: tuple[str, ...],
    mistakes: Mistakes,
) -> dict[str, Any]:
    values = {}
    for field, node in fields.items():
        if len(mistakes.found) >= MOST_ERRORS:
            break
        if field in known:
            attribute, reader = known[field]
            values[attribute] = mistakes.tried(_value, node, field, reader)
        elif field not in nested:
            mistakes.found.append(unknown_field(_line(node), field, field, (*known, *nested)))
    return values


def _value(node: yaml.Node, field: str, reader: scalars.Reader) -> Any:
    text = _scalar(node, field)
    try:
        return reader(text)
    except scalars.BadValueError as bad:
        raise BadEntryError(_line(node), field, f'"{text[:60]}" is not a valid value', str(bad)) from bad
