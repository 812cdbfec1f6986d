"""Inserts many rows at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, Table, bindparam, func, insert, select

from timekeeper.store.engine.engine import Connection


def insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that all have the same columns; no rows is no statement.

    On PostgreSQL it is one statement for any number of rows: each column's values are one array parameter,
    and a statement trigger runs once. SQLAlchemy itself would send one statement per row.
    """
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(insert(table), [dict(row) for row in rows])
        return
    names = list(rows[0])
    values = [bindparam(name, [row[name] for row in rows], ARRAY(table.c[name].type)) for name in names]
    given = func.unnest(*values).table_valued(*names).render_derived()
    connection.execute(insert(table).from_select(names, select(*given.c)))
