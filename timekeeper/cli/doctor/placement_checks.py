"""Where Bursar places no pods, and which fields have no effect there."""

from collections.abc import Iterator
from dataclasses import replace

from timekeeper.cli.doctor.facts import CheckResult, Facts, NotReadable, items
from timekeeper.core.budgets.policy import Budget, BudgetSettings, ineffective_fields, places
from timekeeper.core.budgets.reader import ParsedBudgets, read
from timekeeper.core.json_values import mapping
from timekeeper.core.names import BUDGET_CONFIG_MAPS, BUDGETS_LABEL

_PAGE = "docs/budget-settings.md"


def needs_scheduler(facts: Facts) -> bool:
    """Whether some namespace's pods are placed by Bursar; also where the budgets cannot be read."""
    found, settings = _read(facts)
    return settings.placement == "on" or any(each.placement == "on" for each in found.budgets.values())


def placement(facts: Facts) -> Iterator[CheckResult]:
    """The entries with `placement: off`, and the fields that have no effect there. The check of the budgets
    says what cannot be read."""
    found, settings = _read(facts)
    keys = sorted(key for key, each in found.budgets.items() if not places(each, settings))
    if settings.placement == "off":
        keys = ["_settings", *(key for key in keys if found.budgets[key].placement == "off")]
    if keys:
        sentence = f"it is off by {', '.join(keys)}: pods keep their scheduler, and get no cards of Bursar"
        yield CheckResult("ok", "placement", sentence)
    for key, each in found.budgets.items():
        for sentence in set(ineffective_fields(each, settings.placement)) - set(_elsewhere(each)):
            yield CheckResult("warning", "placement", f"{key}: {sentence}", f"change the entry ({_PAGE})")


def _elsewhere(each: Budget) -> tuple[str, ...]:
    return ineffective_fields(replace(each, placement="on"))


def _read(facts: Facts) -> tuple[ParsedBudgets, BudgetSettings]:
    listed = [] if isinstance(facts.budgets, NotReadable) else items(facts.budgets)
    found = read(
        {
            str(each["metadata"]["name"]): mapping(each.get("data"))
            for each in listed
            if each["metadata"]["name"] in BUDGET_CONFIG_MAPS
            or mapping(each["metadata"].get("labels")).get(BUDGETS_LABEL) == "true"
        }
    )
    return found, found.settings or BudgetSettings()
