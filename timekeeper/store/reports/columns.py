"""Report columns that no table has: labels, and fields of budget entries."""

from dataclasses import astuple
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Text,
    cast,
    collate,
    column,
    func,
    literal,
    select,
)

from timekeeper.accounts.usage import DATED, PriceInterval

Expression = ColumnElement[Any]

_DATED = ("namespace", "from_ms", "to_ms", *DATED)


def ordered(dialect: str, value: Expression) -> Expression:
    """Text ordered by its bytes on every database, so that reports are equal."""
    return collate(value, "C") if dialect == "postgresql" else value


def label_of(dialect: str, labels: Expression, name: str) -> Expression:
    """A label's value; empty without one."""
    if dialect == "postgresql":
        value: Expression = cast(labels, JSON).op("->>")(literal(name))
    else:
        value = func.json_extract(labels, literal(f'$."{name}"'))
    return func.coalesce(cast(value, Text), "")


def dated(dialect: str, terms: tuple[PriceInterval, ...]) -> CTE:
    """The price intervals as a table: one parameter for any number."""
    document = orjson.dumps([astuple(each) for each in terms]).decode()
    if dialect == "postgresql":
        given = func.json_array_elements(cast(literal(document), JSON)).table_valued(column("value", JSON))
        values: list[Expression] = [given.c.value.op("->>")(place) for place in range(len(_DATED))]
    else:
        given = func.json_each(literal(document)).table_valued("value")
        values = [func.json_extract(given.c.value, f"$[{place}]") for place in range(len(_DATED))]
    kinds = {"from_ms": BigInteger, "to_ms": BigInteger}
    named = [cast(each, kinds.get(name, Text)).label(name) for name, each in zip(_DATED, values, strict=True)]
    # each value is read once, and not for each row that it is compared with
    return select(*named).cte("dated").prefix_with("MATERIALIZED")
