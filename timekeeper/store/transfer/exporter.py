"""The ledger as lines of JSON: a header, one row per line, and a trailer that proves completeness.

Tables, rows and columns have the same order on both databases, so equal ledgers give equal bytes.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Table, Text, select

from timekeeper.settings import UnusableError
from timekeeper.store.engine.engine import Connection, Store, UnavailableError
from timekeeper.store.engine.schema import (
    ACCOUNTS,
    BINDINGS,
    CARD_HOURS,
    CHARGE_CORRECTIONS,
    CLOSED_MONTHS,
    DAYS,
    DECISIONS,
    DECLARED_PODS,
    ENDED,
    ENDS,
    ENTRIES,
    ENTRY_ERRORS,
    FIGURES,
    FOLDED,
    GRANTS,
    HEARTBEATS,
    HELD_PODS,
    LOGINS,
    MAP_NODES,
    MAP_POSTS,
    MAP_WAITING,
    NODE_USES,
    NODES,
    POSTINGS,
    PULSE,
    ROLE_FINDINGS,
    SESSIONS,
    STANDINGS,
    TERMS,
    WAITING,
    WOULD,
    WOULD_SINCE,
)
from timekeeper.store.engine.upgrade import by_bytes, revision, streamed

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
    CARD_HOURS,
    NODE_USES,
    BINDINGS,
    ENDS,
    DECISIONS,
    WOULD,
    WOULD_SINCE,
    CLOSED_MONTHS,
    CHARGE_CORRECTIONS,
    DAYS,
    WAITING,
    HELD_PODS,
    DECLARED_PODS,
    STANDINGS,
    PULSE,
)

# The fencing epoch is not part of the ledger, and it must never decrease, but the header has its cluster; the
# settler writes accounts anew, the extender the map and its findings; people log in anew; nothing reads what
# has ended.
LEFT_OUT = (ACCOUNTS, TERMS, LOGINS, MAP_NODES, MAP_WAITING, MAP_POSTS, ROLE_FINDINGS, *ENDED)


def export(connection: Connection) -> Iterator[bytes]:
    """The whole ledger, line by line, as this transaction sees it."""
    digest, count = hashlib.sha256(), 0
    for line in _lines(connection):
        digest.update(line)
        count += 1
        yield line
    yield _line({"lines": count, "sha256": digest.hexdigest()})


def _lines(connection: Connection) -> Iterator[bytes]:
    about = {"bursar": "ledger", "version": VERSION, "revision": revision(connection)}
    yield _line({**about, "cluster": connection.execute(select(TERMS.c.cluster)).scalar_one()})
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


def back_up(store: Store, target: Path) -> None:
    """Copy the ledger, as of one moment, into a new file. The file is complete once it has its name.

    In WAL mode writers and readers do not wait. Raises UnusableError if the database is not SQLite, or if the
    file exists or cannot be written; UnavailableError if the ledger cannot be read.
    """
    if store.engine.dialect.name != "sqlite":
        raise UnusableError(
            "--database: backup copies SQLite files; PostgreSQL has pg_dump, and `export` is for both"
        )
    if target.exists():
        raise UnusableError(f"FILE: {target} exists already; a backup never overwrites a file")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        with closing(store.engine.raw_connection()) as source, closing(sqlite3.connect(unfinished)) as copy:
            _copy(source.driver_connection, copy)
        _flush(unfinished)
        unfinished.rename(target)
        _flush(target.parent)
    except sqlite3.Error as error:
        raise UnavailableError(str(error)) from error
    except OSError as error:
        raise UnusableError(f"FILE: {target} cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(source: object, copy: sqlite3.Connection) -> None:
    """All pages in one step: one moment, and no restart when another process writes meanwhile."""
    if not isinstance(source, sqlite3.Connection):
        raise AssertionError("SQLite's driver is the standard library's")
    source.backup(copy, pages=-1)
    copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
    (said,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise UnavailableError(f"the copy is damaged, and so is the ledger: {said}")


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
