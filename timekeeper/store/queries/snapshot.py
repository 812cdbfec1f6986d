"""One moment of the whole ledger, for whoever reads all of it: audit, export."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import ColumnElement, Select, collate

from timekeeper.settings import UnusableError
from timekeeper.store.engine.engine import Connection, Store
from timekeeper.store.engine.upgrade import MIGRATIONS

_ROWS = 2_000  # rows that are in memory at a time


@contextmanager
def snapshot(store: Store) -> Iterator[Connection]:
    """A transaction that sees the same moment in all its statements, on both databases, while others write.

    Raises UnavailableError, and UnusableError where the schema is another release's.
    """
    with store.reading() as connection:
        take_time(connection)
        check_revision(connection)
        yield connection


def take_time(connection: Connection) -> None:
    """Let this transaction last for as long as it takes to go through the whole ledger, and through a file or
    a pipe beside it."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def revision(connection: Connection) -> str:
    """The revision of the database's schema; empty where there is none."""
    return ",".join(sorted(MigrationContext.configure(connection).get_current_heads()))


@functools.cache
def newest_revision() -> str:
    """The revision of this release's schema."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head() or ""


def check_revision(connection: Connection) -> None:
    """Raises UnusableError where the database is not at this release's schema: what is read or written whole
    must be known whole."""
    found, wanted = revision(connection), newest_revision()
    if found != wanted:
        has = f"has the schema {found}" if found else "holds no ledger"
        raise UnusableError(
            f"--database: it {has}, and this release works on {wanted};"
            " run `bursar-timekeeper migrate` of the release that shall work on it"
        )


def by_bytes(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column in the one order that both databases have: that of the text's bytes."""
    return collate(column, "C") if connection.dialect.name == "postgresql" else column


def streamed(connection: Connection, statement: Select[Any]) -> Iterator[Any]:
    """The rows of a statement, few of them in memory at a time."""
    return iter(connection.execute(statement, execution_options={"yield_per": _ROWS}))
