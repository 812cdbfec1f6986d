"""Report columns that no table has: labels, and fields of budget entries."""

from operator import attrgetter
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Text,
    cast,
    collate,
    func,
    literal,
    literal_column,
)

from timekeeper.accounts.usage import DATED, PriceInterval
from timekeeper.store.sessions import json_rows, json_text

Expression = ColumnElement[Any]

_DATED = ("namespace", "from_ms", "to_ms", *DATED)


def ordered(dialect: str, value: Expression) -> Expression:
    """Text ordered by its bytes on every database, so that reports are equal."""
    return collate(value, "C") if dialect == "postgresql" else value


def without_index(dialect: str, found: Expression) -> Expression:
    """A column that SQLite compares and sorts without an index (sqlite.org/optoverview.html, "unary +").
    By the session's number it would look up posting after posting all over the file."""
    return literal_column(f"+{found}", found.type).label(found.key) if dialect == "sqlite" else found


def label_of(dialect: str, labels: Expression, name: str) -> Expression:
    """A label's value; empty without one."""
    if dialect == "postgresql":
        value: Expression = cast(labels, JSON).op("->>")(literal(name))
    else:
        value = func.json_extract(labels, literal(f'$."{name}"'))
    return func.coalesce(cast(value, Text), "")


def dated(dialect: str, terms: tuple[PriceInterval, ...]) -> CTE:
    """The price intervals as a table: one parameter for any number."""
    columns = dict.fromkeys(_DATED, Text) | {"from_ms": BigInteger, "to_ms": BigInteger}
    return json_rows(dialect, "dated", columns, literal(json_text(map(attrgetter(*_DATED), terms))))
