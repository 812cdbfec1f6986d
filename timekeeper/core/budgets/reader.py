"""The only reader of the budget ConfigMaps: text into values, or errors with key, line and field."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from timekeeper.core.accelerators import UNKNOWN_ACCELERATORS
from timekeeper.core.budgets import policy, scalars
from timekeeper.core.budgets.drivers_field import FIELD as DRIVERS
from timekeeper.core.budgets.drivers_field import read_drivers
from timekeeper.core.budgets.mistakes import BadEntryError, EntryError, Mistakes, meant_field, unknown_field
from timekeeper.core.budgets.policy import Budget, BudgetSettings, group_key
from timekeeper.core.budgets.protect_field import FIELD as PROTECT
from timekeeper.core.budgets.protect_field import read_protection
from timekeeper.core.budgets.rule_ids import FIXED, SETTABLE
from timekeeper.core.budgets.yaml_nodes import fields_of, line_of, pairs_of, value_of, values_of
from timekeeper.core.names import BUDGET_CONFIG_MAPS
from timekeeper.core.request.request import POLICIES

MAX_ERRORS = 20  # reported of one entry


@dataclass(frozen=True, slots=True)
class ParsedBudgets:
    """What the ConfigMaps say."""

    budgets: Mapping[str, Budget]  # key -> valid entry
    settings: BudgetSettings | None  # None: there is no valid entry ``_settings``
    errors: tuple[EntryError, ...]  # of the other entries
    texts: Mapping[str, str]  # key -> effective text
    mode: BudgetSettings | None = None  # what ``bursar-mode`` says; None: nothing valid

    @property
    def in_force(self) -> BudgetSettings:
        """The cluster's settings by all of these ConfigMaps."""
        return policy.in_mode(self.settings, self.mode)

    def missing_groups(self, keys: Iterable[str]) -> tuple[EntryError, ...]:
        """A warning for each of these budgets whose group has no entry, not even a broken one: such a group
        has no limit."""
        return tuple(
            _missing_group(key, group_key(self.budgets[key].group), self.texts[key])
            for key in keys
            if self.budgets[key].group and group_key(self.budgets[key].group) not in self.texts
        )


def _missing_group(key: str, group: str, text: str) -> EntryError:
    problem = f"{group} is not defined in any budget ConfigMap, so the group has no limit"
    return EntryError(key, line_of(fields_of(text)["group"]), "group", problem, "a group with an entry")


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
    settings: dict[str, BudgetSettings] = {}
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
                settings[key] = value
            else:
                budgets[key] = value
    own, mode = settings.get(policy.SETTINGS), settings.get(policy.MODE)
    return ParsedBudgets(budgets, own, tuple(errors), texts, mode)


def precedence(config_map: str) -> tuple[int, str]:
    """Sorts names of ConfigMaps: those that are read without the label in their order, then the others."""
    if config_map in BUDGET_CONFIG_MAPS:
        return BUDGET_CONFIG_MAPS.index(config_map), config_map
    return len(BUDGET_CONFIG_MAPS), config_map


def read_entry(key: str, text: str, lenient: bool = False) -> Budget | BudgetSettings | EntryError:
    """One entry's value, or its errors, `MAX_ERRORS` at most. Never raises, whatever the text.

    ``lenient``: the entry took effect in the past, so rules that this release does not know or does not allow
    to set are ignored without an error. An upgrade changes no account.
    """
    mistakes = Mistakes()
    value = mistakes.tried(_entry, key, text, lenient, mistakes)
    if value is not None and not mistakes.found:
        return value
    first, *others = sorted(mistakes.found, key=lambda bad: bad.line)[:MAX_ERRORS]
    return replace(first.of(key), others=tuple(bad.of(key) for bad in others))


def _entry(key: str, text: str, lenient: bool, mistakes: Mistakes) -> Budget | BudgetSettings | None:
    """The entry's value; None where there are mistakes."""
    fields = fields_of(text)
    if key == policy.SETTINGS:
        return _settings(fields, lenient, mistakes)
    if key == policy.MODE:
        values = _read_fields(fields, _MODE_FIELDS, (), mistakes)
        if "mode" not in fields and not mistakes.found:
            raise BadEntryError(1, "mode", "missing", ", ".join(policy.MODES))
        return None if mistakes.found else BudgetSettings(**values)
    _check_key(key)
    budget = _budget(fields, lenient, mistakes)
    if not lenient:
        mistakes.found += _without_effect(key, fields, budget)
    return budget


def ended_fields(key: str, text: str) -> tuple[EntryError, ...]:
    """The fields of an entry's text that have ended; none of a text that cannot be read."""
    fields = Mistakes().tried(fields_of, text) or {}
    known = _ENDED if key == policy.SETTINGS else _ENDED_OF_BUDGETS
    return tuple(ended.of(key) for ended in _ended(fields, known))


def _ended(fields: Mapping[str, yaml.Node], known: Mapping[str, tuple[str, str]]) -> Iterator[BadEntryError]:
    for field, (value, problem) in known.items():
        node = fields.get(field)
        if node is not None and value in ("", getattr(node, "value", None)):
            yield BadEntryError(line_of(node), field, problem, "omit the field")


def _without_effect(
    key: str, fields: Mapping[str, yaml.Node], budget: Budget | None
) -> Iterator[BadEntryError]:
    """A mistake for each field that nothing would read. A group's entry is an account: what concerns the pods
    stands in their namespaces' entries."""
    for field in _OF_NAMESPACES if key.startswith(policy.GROUP) else ():
        if field in fields:
            problem = "a group cannot be in a group" if field == "group" else "a group's entry cannot set it"
            yield BadEntryError(line_of(fields[field]), field, problem, "omit the field")
    if key == "_defaults" and PROTECT in fields:
        problem = "a floor for every namespace, also for those to come, is no bound"
        yield BadEntryError(
            line_of(fields[PROTECT]), PROTECT, problem, "the field in a namespace's own entry"
        )
    if SPLIT in fields:
        yield from _mistaken_split(key, line_of(fields[SPLIT]), budget)
    if LEADS in fields and not key.startswith(policy.GROUP):
        problem = "a group alone has leads"
        yield BadEntryError(line_of(fields[LEADS]), LEADS, problem, "the field in _group.NAME")
    if budget is not None and budget.carry_over_milli > 0 and budget.period == "once":
        problem = "nothing is carried over where the period is once"
        yield BadEntryError(line_of(fields["carryOver"]), "carryOver", problem, "omit the field")


def _mistaken_split(key: str, line: int, budget: Budget | None) -> Iterator[BadEntryError]:
    """A group passes on what it has, and no more."""
    if not key.startswith(policy.GROUP):
        yield BadEntryError(line, SPLIT, "a group alone has a budget to split", "the field in _group.NAME")
    elif budget is not None and budget.amount is None:
        yield BadEntryError(
            line, SPLIT, "a group without a limit has nothing to split", "a limit in gpuHours"
        )
    elif budget is not None and sum(part for _, part in budget.split) > (budget.amount or 0):
        problem = "its parts are together more than gpuHours"
        yield BadEntryError(line, SPLIT, problem, "parts that are together at most gpuHours")


def _duplicate_key(key: str, first: str, later: str) -> EntryError:
    problem = f"also defined in ConfigMap {first}; the entry in {later} is ignored"
    return EntryError(key, 1, "", problem, "a key in one ConfigMap", later)


def _check_key(key: str) -> None:
    name = key.removeprefix(policy.GROUP)
    if key != "_defaults" and not scalars.NAME.fullmatch(name):
        raise BadEntryError(1, "", "no such key", "a namespace's name, _group.NAME, _defaults or _settings")


SPLIT, LEADS = "split", "leads"
MOST_LEADS = 16
CLASSES, KEEP = "priorityClasses", "keep"
FAIR = "fairShare"
_FAIR_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "weight": ("share_milli", scalars.thousandths(1000)),
    "halfLife": ("half_life_ms", scalars.half_life_ms),
}
_PRICES = "prices"  # becomes the attributes price and later_prices

_BUDGET_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "gpuHours": ("amount", scalars.hours),
    "period": ("period", scalars.one_of(policy.PERIODS)),
    "carryOver": ("carry_over_milli", scalars.thousandths(1)),
    "onExhausted": ("on_exhausted", scalars.one_of(policy.ON_EXHAUSTED)),
    "warnAt": ("warn_at_milli", scalars.thousandths(1)),
    "group": ("group", scalars.name),
    "policy": ("policy", scalars.one_of(POLICIES)),
    "mode": ("mode", scalars.one_of(policy.MODES)),
    "placement": ("placement", scalars.on_or_off),
    "wholeCards": ("whole_cards", scalars.one_of(policy.WHOLE_CARDS)),
    "sidecar": ("sidecar", scalars.on_or_off),
    "maxGPUs": ("max_gpus_milli", scalars.cards),
    "maxGPUsPerPod": ("max_gpus_per_pod_milli", scalars.cards),
    "maxWaiting": ("max_waiting", scalars.count),
    "price": (_PRICES, scalars.prices),
    "overuse": ("overuse", scalars.one_of(policy.OVERUSE)),
    "overuseGrace": ("overuse_grace_ms", scalars.duration_ms),
    "evictGrace": ("evict_grace_ms", scalars.duration_ms),
    "evictRate": ("evict_rate", scalars.per_minute),
    "idle": ("idle", scalars.idle),
    "reserve": ("reserve", scalars.one_of(policy.RESERVE)),
    "requireDuration": ("require_duration", scalars.yes_or_no),
    "overtime": ("overtime", scalars.one_of(policy.OVERTIME)),
    "hostShare": ("host_share_milli", scalars.weight),
    "gangs": ("gangs", scalars.one_of(policy.GANGS)),
    "kueue": ("kueue", scalars.one_of(policy.KUEUE)),
}

_OF_NAMESPACES = (
    "group",
    "mode",
    "placement",
    "wholeCards",
    "sidecar",
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
    "hostShare",
    "gangs",
    "kueue",
    PROTECT,
)

_SETTING_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "timeZone": ("time_zone", scalars.zone),
    "placement": ("placement", scalars.on_or_off),
    "wholeCards": ("whole_cards", scalars.one_of(policy.WHOLE_CARDS)),
    "schedulerName": ("scheduler_name", scalars.name),
    "sidecar": ("sidecar", scalars.on_or_off),
    "chargeBy": ("charge_by", scalars.one_of(policy.CHARGE_BY)),
    "lookahead": ("lookahead_ms", scalars.duration_ms),
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
    "hostShare": ("host_share_milli", scalars.weight),
    "unknownStanding": ("unknown_standing", scalars.one_of(("inBudget", "overBudget"))),
    "unknownAccelerators": ("unknown_accelerators", scalars.one_of(UNKNOWN_ACCELERATORS)),
    "price": (_PRICES, scalars.prices),
    "currency": ("currency", scalars.currency),
    "clusterName": ("cluster_name", scalars.cluster),
    FAIR: ("fair_share", scalars.on_or_off),
}


_MODE_FIELDS = {"mode": _BUDGET_FIELDS["mode"], "placement": _SETTING_FIELDS["placement"]}
RESERVATION = "reservationNamespaces"
# Fields of earlier releases: the value that ended, "" for any; what it did, and what is done now.
_BY_ALERTMANAGER = "it has ended: Alertmanager sends alerts on budgets, by their label namespace"
_ENDED_OF_BUDGETS = {"notify": ("", _BY_ALERTMANAGER), "notifyFormat": ("", _BY_ALERTMANAGER)}
_BY_BINDING = "every pod is charged from its binding"
_ENDED = {
    "chargeFrom": ("", f"it has ended: it chose from when a pod was charged; {_BY_BINDING}"),
    "startGrace": ("", f"it has ended: a pod that did not start was charged after it; {_BY_BINDING}"),
    "mode": (
        "",
        "it is of the ConfigMap bursar-mode now; here it counts only until that one has taken effect",
    ),
    "sidecar": ("container", "container has ended and reads as on: the sidecar is a native one"),
    "chargeBy": (
        "dominant-host",
        "dominant-host has ended and reads as dominant: it charged for CPU and memory, which the rule"
        " host-share bounds",
    ),
}

_FIGURE_FIELDS: dict[str, tuple[str, scalars.Reader]] = {
    "weights": ("weights", scalars.weight),
    "unitCosts": ("unit_costs", scalars.unit_cost),
    "devices": ("devices", scalars.model),
}


def _budget(fields: dict[str, yaml.Node], lenient: bool, mistakes: Mistakes) -> Budget | None:
    fields, ended = _without_ended(fields, _ENDED_OF_BUDGETS)
    values = _read_fields(
        fields, _BUDGET_FIELDS, ("rules", "exempt", CLASSES, SPLIT, LEADS, PROTECT, FAIR), mistakes
    )
    if SPLIT in fields:
        values["split"] = _split(fields[SPLIT], mistakes)
    if LEADS in fields:
        values["leads"] = _leads(fields[LEADS], mistakes)
    if PROTECT in fields:
        values["protect"] = read_protection(fields[PROTECT], mistakes)
    if CLASSES in fields:
        values |= _classes(fields[CLASSES], mistakes)
    if FAIR in fields:
        values |= _fair_share(fields[FAIR], mistakes)
    if "gpuHours" not in fields and not any(
        meant_field(field, ("gpuHours",)) for field in list(fields)[:MAX_ERRORS]
    ):
        mistakes.found.append(BadEntryError(1, "gpuHours", "missing", "a number of GPU-hours, or unlimited"))
    values |= _admission(fields, lenient, mistakes)
    return None if mistakes.found else Budget(**_with_prices(values), ended=ended)


def _split(node: yaml.Node, mistakes: Mistakes) -> tuple[tuple[str, int], ...]:
    parts = mistakes.tried(pairs_of, node, SPLIT) or {}
    for name, value in parts.items():
        if not scalars.NAME.fullmatch(name):
            problem = f'"{name[:60]}" is not a namespace\'s name'
            mistakes.found.append(BadEntryError(line_of(value), SPLIT, problem, "namespaces of the group"))
    amounts = {
        name: mistakes.tried(value_of, value, f"{SPLIT}.{name[:60]}", scalars.part_hours)
        for name, value in parts.items()
    }
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount is not None))


def _leads(node: yaml.Node, mistakes: Mistakes) -> tuple[str, ...]:
    names = mistakes.tried(values_of, node, LEADS, scalars.person, mistakes) or ()
    if len(names) > MOST_LEADS:
        problem = f"{len(names)} names are too many"
        mistakes.found.append(BadEntryError(line_of(node), LEADS, problem, f"at most {MOST_LEADS} names"))
    return names


def _settings(fields: dict[str, yaml.Node], lenient: bool, mistakes: Mistakes) -> BudgetSettings | None:
    own = {"mode": fields["mode"]} if "mode" in fields else {}
    fields, ended = _without_ended(fields, _ENDED)
    values = _read_fields(own, _MODE_FIELDS, (), mistakes) | _read_fields(
        fields,
        _SETTING_FIELDS,
        (*_FIGURE_FIELDS, CLASSES, "rules", "exempt", RESERVATION, DRIVERS),
        mistakes,
    )
    values |= _admission(fields, lenient, mistakes)
    for field, (attribute, reader) in _FIGURE_FIELDS.items():
        if field in fields:
            pairs = mistakes.tried(pairs_of, fields[field], field) or {}
            values[attribute] = tuple(
                (name, mistakes.tried(value_of, node, f"{field}.{name}", reader))
                for name, node in pairs.items()
            )
    if RESERVATION in fields:
        values["reservation_namespaces"] = mistakes.tried(
            values_of, fields[RESERVATION], RESERVATION, scalars.name, mistakes
        )
    if DRIVERS in fields:
        values["drivers"] = read_drivers(fields[DRIVERS], mistakes)
    if CLASSES in fields:
        values |= _classes(fields[CLASSES], mistakes)
    return None if mistakes.found else BudgetSettings(**_with_prices(values), ended=ended)


def _without_ended(
    fields: dict[str, yaml.Node], known: Mapping[str, tuple[str, str]]
) -> tuple[dict[str, yaml.Node], tuple[str, ...]]:
    """The fields that count, and a sentence on each that has ended."""
    ended = {bad.field: f"{bad.field}: {bad.problem}" for bad in _ended(fields, known)}
    return {field: node for field, node in fields.items() if field not in ended}, tuple(ended.values())


def _with_prices(values: dict[str, Any]) -> dict[str, Any]:
    if _PRICES in values:
        values["price"], values["later_prices"] = values.pop(_PRICES)
    return values


def _admission(fields: dict[str, yaml.Node], lenient: bool, mistakes: Mistakes) -> dict[str, Any]:
    """The fields ``rules`` and ``exempt``, which namespaces and the cluster have in common."""
    values: dict[str, Any] = {}
    if "rules" in fields:
        pairs = mistakes.tried(pairs_of, fields["rules"], "rules") or {}
        modes = {rule: mistakes.tried(_rule_mode, rule, node, lenient) for rule, node in pairs.items()}
        values["rules"] = tuple((rule, mode) for rule, mode in modes.items() if mode)
    if "exempt" in fields:
        values["exempt"] = mistakes.tried(
            values_of, fields["exempt"], "exempt", scalars.user_or_group, mistakes
        )
    return values


def _rule_mode(rule: str, node: yaml.Node, lenient: bool) -> str:
    """The mode of one rule; "" for an ignored rule."""
    field = f"rules.{rule[:60]}"
    if rule in SETTABLE:
        return str(value_of(node, field, scalars.one_of(policy.RULE_MODES)))
    if lenient:
        return ""
    if rule not in FIXED:
        raise BadEntryError(line_of(node), field, "no such rule", ", ".join(SETTABLE))
    if value_of(node, field, scalars.one_of(policy.RULE_MODES)) != "enforce":
        raise BadEntryError(line_of(node), field, "this rule is always enforced", "enforce, or omit the rule")
    return ""


def _classes(node: yaml.Node, mistakes: Mistakes) -> dict[str, Any]:
    known = {"inBudget": "in_budget_class", "overBudget": "over_budget_class"}
    if getattr(node, "value", "") == KEEP:
        return {"keeps_classes": True}
    classes = {}
    for name, value in (mistakes.tried(pairs_of, node, CLASSES) or {}).items():
        field = f"{CLASSES}.{name}"
        if name in known:
            classes[known[name]] = mistakes.tried(value_of, value, field, scalars.name)
        else:
            mistakes.found.append(unknown_field(line_of(value), field, name, tuple(known)))
    named = {attribute: name for attribute, name in classes.items() if name != KEEP}
    return named if named == classes else {**named, "keeps_classes": True}


def _fair_share(node: yaml.Node, mistakes: Mistakes) -> dict[str, Any]:
    shares = {}
    for name, value in (mistakes.tried(pairs_of, node, FAIR) or {}).items():
        field = f"{FAIR}.{name}"
        if name in _FAIR_FIELDS:
            attribute, reader = _FAIR_FIELDS[name]
            shares[attribute] = mistakes.tried(value_of, value, field, reader)
        else:
            mistakes.found.append(unknown_field(line_of(value), field, name, tuple(_FAIR_FIELDS)))
    return shares


def _read_fields(
    fields: dict[str, yaml.Node],
    known: dict[str, tuple[str, scalars.Reader]],
    nested: tuple[str, ...],
    mistakes: Mistakes,
) -> dict[str, Any]:
    values = {}
    for field, node in fields.items():
        if len(mistakes.found) >= MAX_ERRORS:
            break
        if field in known:
            attribute, reader = known[field]
            values[attribute] = mistakes.tried(value_of, node, field, reader)
        elif field not in nested:
            home = _home_of(field)
            mistakes.found.append(unknown_field(line_of(node), field, field, (*known, *nested), home))
    return values


def _home_of(field: str) -> str:
    """The entries that have this field; "" if none has."""
    if field in (*_BUDGET_FIELDS, PROTECT, FAIR):
        return "budgets"
    return policy.SETTINGS if field in (*_SETTING_FIELDS, *_FIGURE_FIELDS, DRIVERS) else ""
