"""Report columns that no table has: labels, and fields of budget entries."""

from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    collate,
    column,
    func,
    literal,
    literal_column,
    select,
)

from timekeeper.accounts.usage import DATED, PriceInterval
from timekeeper.store.sessions import json_rows, json_text

Expression = ColumnElement[Any]

_OF_DEVICE = {"classes": ("class",), "drivers": ("driver",), "devices": ("pool", "device")}
_DATED = ("namespace", "from_ms", "to_ms", *DATED)


def of_namespaces(dialect: str, namespace: Expression, only: str | None, some: str) -> list[Expression]:
    """The conditions for the rows of one namespace, of those in the parameter ``some``, or of all ("")."""
    if only is not None:
        return [namespace == only]
    if not some:
        return []
    if dialect == "postgresql":
        return [namespace == any_(bindparam(some, type_=ARRAY(Text)))]
    given = func.json_each(bindparam(some, type_=Text)).table_valued(column("value", Text))
    return [namespace.in_(select(given.c.value))]


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


def claimed(dialect: str, rows: Any, name: str) -> Expression:
    """One of `CLAIMED` of a row of sessions; empty for a pod's, and where its devices are not kept. A device
    is named as POOL/DEVICE: its driver stands beside it."""
    is_claim = rows.kind == "claim"
    if name == "claim":
        return case((is_claim, rows.name), else_="")
    of_device = _OF_DEVICE[name]
    if dialect == "postgresql":
        each = func.json_array_elements(cast(rows.devices, JSON)).table_valued(column("value", JSON))
        parts = [cast(each.c.value.op("->>")(literal(part)), Text) for part in of_device]
    else:
        each = func.json_each(rows.devices).table_valued("value")
        parts = [cast(func.json_extract(each.c.value, literal(f"$.{part}")), Text) for part in of_device]
    text = parts[0] if len(parts) == 1 else parts[0] + literal("/") + parts[1]
    found = select(ordered(dialect, text).label("text")).distinct().order_by("text").subquery()
    joined = func.string_agg if dialect == "postgresql" else func.group_concat
    texts = select(joined(found.c.text, literal(","))).select_from(found).scalar_subquery()
    return case((and_(is_claim, rows.devices != ""), func.coalesce(texts, "")), else_="")


def dated(dialect: str, terms: tuple[PriceInterval, ...]) -> CTE:
    """The price intervals as a table: one parameter for any number."""
    columns = dict.fromkeys(_DATED, Text) | {"from_ms": BigInteger, "to_ms": BigInteger}
    return json_rows(dialect, "dated", columns, literal(json_text(map(attrgetter(*_DATED), terms))))
