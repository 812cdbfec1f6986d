"""Rows that a statement brings along, as a table: one parameter for any number of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    JSON,
    ColumnElement,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.types import TypeEngine


def json_text(rows: Iterable[Any]) -> str:
    """The rows as the text of one parameter."""
    return orjson.dumps(list(rows)).decode()


def json_rows(
    dialect: str, name: str, columns: Mapping[str, type[TypeEngine[Any]]], document: ColumnElement[str]
) -> CTE:
    """The rows of a `json_text` as the table ``name``; each is a tuple in the order of the columns, which are
    given with their types. Each value is read once, and not for each row that it is compared with."""
    if dialect == "postgresql":
        given = func.json_array_elements(cast(document, JSON)).table_valued(column("value", JSON))
        values: list[ColumnElement[Any]] = [given.c.value.op("->>")(place) for place in range(len(columns))]
    else:
        given = func.json_each(document).table_valued("value")
        values = [func.json_extract(given.c.value, f"$[{place}]") for place in range(len(columns))]
    pairs = zip(columns.items(), values, strict=True)
    named = [cast(value, kind).label(each) for (each, kind), value in pairs]
    return select(*named).cte(name).prefix_with("MATERIALIZED")
