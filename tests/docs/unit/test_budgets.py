"""The pages on budgets are code: what they show is read without a word, and no field is missing."""

import re
from pathlib import Path

import pytest
import yaml

from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import ineffective_fields
from timekeeper.core.budgets.reader import read, read_entry

DOCS = Path(__file__).parents[3] / "docs"
PAGE, SETTINGS = (DOCS / "budgets.md").read_text(), (DOCS / "budget-settings.md").read_text()


def fields(key: str, text: str) -> list[str]:
    """Every field that an entry takes, by the refusal of one that it does not."""
    error = read_entry(key, text)
    assert isinstance(error, EntryError)
    return error.allowed.split(", ")


def test_the_budgets_that_are_shown_are_read_and_acted_on() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    reading = read({"bursar-budgets": yaml.safe_load(block)["data"]})

    assert (reading.errors, reading.warnings) == ((), ())
    assert [ineffective_fields(budget) for budget in reading.budgets.values()] == [()] * 5


def section(begin: str, end: str) -> str:
    """A part of the page of settings."""
    return SETTINGS[SETTINGS.index(begin) : SETTINGS.index(end)]


@pytest.mark.parametrize("field", fields("team-a", "gpuHours: 1\nnothing: 1"))
def test_every_field_of_a_budget_is_explained(field: str) -> None:
    assert f"`{field}`" in section("Fields of a budget:", "Fields of `_settings`:")


@pytest.mark.parametrize("field", fields("_settings", "nothing: 1"))
def test_every_field_of_the_settings_is_explained(field: str) -> None:
    assert f"`{field}`" in section("Fields of `_settings`:", "Durations are written")
