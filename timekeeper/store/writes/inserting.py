"""Many rows of a table at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, Table, bindparam, func, insert, select

from timekeeper.store.engine.engine import Connection


def insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, all of which have the same columns; no row is nothing to do.

    On PostgreSQL that is one statement however many they are: it has a column's values as one parameter, and
    a trigger of a statement runs once. What SQLAlchemy does there with many rows is a statement for each.
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
