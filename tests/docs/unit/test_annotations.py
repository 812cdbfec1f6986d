"""Names on objects, kinds of decisions and commands of the plugin: the pages have those of the code."""

import re
from pathlib import Path

from timekeeper.cli.main import cli
from timekeeper.core import names
from timekeeper.core.decisions import KINDS

DOCS = Path(__file__).parents[3] / "docs"


def rows(page: str) -> list[str]:
    """What is in the first column of the page's tables, in backquotes."""
    heads = re.findall(r"^\| (`[^|]*`) \|", (DOCS / page).read_text(), re.MULTILINE)
    return [name for head in heads for name in re.findall(r"`([^`]+)`", head)]


def test_every_name_in_an_object_has_one_row() -> None:
    texts = (each for each in vars(names).values() if isinstance(each, str))
    known = {each for each in texts if f"{names.DOMAIN}/" in each}

    assert len(known) > 30
    assert sorted(rows("annotations.md")) == sorted(known)


def test_the_annotations_of_users_are_those_that_admission_allows() -> None:
    part = (DOCS / "annotations.md").read_text().partition("## What users write")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `([^`]+)` \| annotation", part, re.MULTILINE)) == set(names.USER_ANNOTATIONS)


def test_every_kind_of_decision_has_one_row() -> None:
    table = (DOCS / "explain.md").read_text().partition("## What is recorded")[2].partition("\n\n`GET")[0]
    heads = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)

    assert sorted(name for head in heads for name in re.findall(r"`([^`]+)`", head)) == sorted(KINDS)


def test_every_command_of_the_plugin_has_a_row_and_no_other() -> None:
    table = (DOCS / "cli.md").read_text().partition("| command |")[2].partition("\n\n")[0]
    heads = re.findall(r"^\| (`[^|]*`[^|]*) \|", table, re.MULTILINE)
    named = {code.split()[0] for head in heads for code in re.findall(r"`([^`]+)`", head)}

    assert named == set(cli.commands)
