"""Annotations of users and commands of the plugin: tables and pages have those of the code."""

import re
from pathlib import Path

from timekeeper.cli.main import cli
from timekeeper.core import names
from timekeeper.core.object_names import OBJECT_NAMES

DOCS = Path(__file__).parents[3] / "docs"


def test_the_annotations_of_users_are_those_that_admission_allows() -> None:
    of_users = {name for name, each in OBJECT_NAMES.items() if (each.kind, each.by) == ("annotation", "user")}

    assert of_users == {*names.USER_ANNOTATIONS, *names.GANG_ANNOTATIONS}


def test_every_mark_that_bursar_leaves_on_a_pod_is_documented() -> None:
    page = (DOCS / "annotations.md").read_text()

    for name in (names.GOVERNED, names.REQUEST, names.STANDING, names.DEVICES, *names.BY_CONTAINER):
        assert f"`{name}`" in page


def test_every_command_of_the_plugin_has_a_row_and_no_other() -> None:
    table = (DOCS / "cli.md").read_text().partition("| command |")[2].partition("\n\n")[0]
    heads = re.findall(r"^\| (`[^|]*`[^|]*) \|", table, re.MULTILINE)
    named = {code.split()[0] for head in heads for code in re.findall(r"`([^`]+)`", head)}

    assert named == set(cli.commands)
