"""What the page on REST says by hand of fields and columns is what the OpenAPI document and FOCUS have."""

import re
from pathlib import Path

from timekeeper.api import report_formats
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.openapi import document

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
DOCUMENT = document(ROUTES)


def test_every_field_of_a_new_grant_is_explained() -> None:
    fields = DOCUMENT["components"]["schemas"]["NewGrant"]["properties"]

    assert [name for name in sorted(fields) if f"`{name}`" not in PAGE] == []


def test_every_column_of_ours_in_focus_rows_is_named() -> None:
    ours = [name for name in report_formats.NAMES if name.startswith("x_")]

    assert [name for name in ours if f"`{name}`" not in PAGE] == []
    assert [name for name in re.findall(r"`(x_\w+)`", PAGE) if name not in report_formats.NAMES] == []


def test_every_column_of_a_report_with_use_is_explained() -> None:
    row = DOCUMENT["components"]["schemas"]["UsageRow"]["properties"]
    columns = row.keys() - {"uid", "models", "labels", "pod", "to", "from"}

    assert [name for name in sorted(columns) if f"`{name}`" not in PAGE] == []
