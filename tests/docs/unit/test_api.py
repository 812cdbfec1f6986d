"""The page on REST has what the OpenAPI document has, which is made from the code."""

import re
from pathlib import Path

from timekeeper.api.formats import focus
from timekeeper.api.http.openapi import document
from timekeeper.api.route_table import ROUTES

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
DOCUMENT = document(ROUTES)


def test_every_route_of_the_timekeeper_has_a_row_with_the_right_that_it_needs() -> None:
    rows = dict(re.findall(r"^\| `([A-Z]+ /\S+)` \| (.*?) \|", PAGE, re.MULTILINE))

    assert rows.keys() == {f"{route.method} {route.path}" for route in ROUTES}
    for route in ROUTES:
        if route.right is not None:
            assert f"`{route.right.verb} {route.right.resource}`" in rows[f"{route.method} {route.path}"]


def test_every_parameter_and_field_of_a_question_is_explained() -> None:
    operations = [each for methods in DOCUMENT["paths"].values() for each in methods.values()]
    parameters = {each["name"] for operation in operations for each in operation["parameters"]}
    fields = {*DOCUMENT["components"]["schemas"]["NewGrant"]["properties"]}

    assert [name for name in sorted(parameters | fields) if f"`{name}`" not in PAGE] == []


def test_every_choice_of_a_parameter_is_explained() -> None:
    choices = {word for route in ROUTES for each in route.parameters for word in each.schema.get("enum", ())}

    assert [word for word in sorted(choices - {"all", "false"}) if f"`{word}`" not in PAGE] == []


def test_every_status_that_a_problem_can_have_is_explained() -> None:
    operations = [each for methods in DOCUMENT["paths"].values() for each in methods.values()]
    statuses = {status for operation in operations for status in operation["responses"]} - {"200", "500"}

    assert [status for status in sorted(statuses) if not re.search(rf"\b{status}\b", PAGE)] == []


def test_every_column_of_ours_in_focus_rows_is_named() -> None:
    ours = [name for name in focus.NAMES if name.startswith("x_")]

    assert [name for name in ours if f"`{name}`" not in PAGE] == []
    assert [name for name in re.findall(r"`(x_\w+)`", PAGE) if name not in focus.NAMES] == []


def test_every_column_of_a_report_with_use_is_explained() -> None:
    row = DOCUMENT["components"]["schemas"]["UsageRow"]["properties"]
    columns = row.keys() - {"uid", "models", "labels", "pod", "to", "from"}

    assert [name for name in sorted(columns) if f"`{name}`" not in PAGE] == []
