"""A sheet: what a command prints, before it is a table, CSV, JSON or YAML."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """``key``: the name in CSV; ``title``: the heading of the table."""

    key: str
    title: str
    is_number: bool = False  # aligned to the right
    blank: str = ""  # what the table shows for an empty cell


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows by the columns' keys. ``styles``: text of a cell -> its style on a terminal. ``answer``: what JSON
    and YAML print instead of rows, the API's whole answer."""

    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, str], ...]
    answer: Any = None
    styles: Mapping[str, str] = field(default_factory=dict)
    empty: str = "nothing found"


def within(namespace: str | None) -> str:
    """The part of a sentence about nothing found that names the only namespace looked at; "" for all."""
    return f" in namespace {namespace} (-A looks at all)" if namespace else ""
