"""The ledger as lines of JSON: a header, one row per line, and a trailer that proves completeness.

Tables, rows and columns have the same order on both databases, so equal ledgers give equal bytes.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import orjson
from sqlalchemy import Table, Text, select

from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import (
    BINDINGS,
    DAYS,
    DECISIONS,
    DECLARED_PODS,
    ENDS,
    ENTRIES,
    ENTRY_ERRORS,
    FIGURES,
    FOLDED,
    GRANTS,
    HEARTBEATS,
    HELD_PODS,
    MAP_NODES,
    MAP_WAITING,
    NODE_USES,
    NODES,
    NOTIFIED,
    POSTINGS,
    PULSE,
    SESSIONS,
    STANDINGS,
    TERMS,
    WAITING,
)
from timekeeper.store.queries.snapshot import by_bytes, revision, streamed

VERSION = 1

# In this order no row refers to a later one.
TABLES = (
    ENTRIES,
    ENTRY_ERRORS,
    GRANTS,
    SESSIONS,
    NODES,
    HEARTBEATS,
    POSTINGS,
    FOLDED,
    FIGURES,
    NODE_USES,
    BINDINGS,
    ENDS,
    DECISIONS,
    NOTIFIED,
    DAYS,
    WAITING,
    HELD_PODS,
    DECLARED_PODS,
    STANDINGS,
    PULSE,
)

# The fencing epoch is not part of the ledger, and it must never decrease; the extender posts the map anew.
LEFT_OUT = (TERMS, MAP_NODES, MAP_WAITING)


def export(connection: Connection) -> Iterator[bytes]:
    """The whole ledger, line by line, as this transaction sees it."""
    digest, count = hashlib.sha256(), 0
    for line in _lines(connection):
        digest.update(line)
        count += 1
        yield line
    yield _line({"lines": count, "sha256": digest.hexdigest()})


def _lines(connection: Connection) -> Iterator[bytes]:
    yield _line({"bursar": "ledger", "version": VERSION, "revision": revision(connection)})
    for table in TABLES:
        names = tuple(str(name) for name in table.c.keys())  # noqa: SIM118 -- columns, not a dict
        for row in streamed(connection, select(table).order_by(*_order(connection, table))):
            yield _line({"table": table.name, "row": dict(zip(names, row, strict=True))})


def _order(connection: Connection, table: Table) -> list[Any]:
    return [
        by_bytes(connection, column) if isinstance(column.type, Text) else column
        for column in table.primary_key.columns
    ]


def _line(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document) + b"\n"
