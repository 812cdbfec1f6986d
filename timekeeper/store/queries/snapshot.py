"""One moment of the whole ledger, for audit and export."""

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
    """A transaction in which all statements see the same moment, on both databases, while others write.

    Raises UnavailableError, and UnusableError if the schema belongs to another release.
    """
    with store.reading() as connection:
        take_time(connection)
        check_revision(connection)
        yield connection


def take_time(connection: Connection) -> None:
    """Lift the time limits of this transaction: it reads the whole ledger, perhaps through a slow file or
    pipe."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def revision(connection: Connection) -> str:
    """The schema's revision; empty if there is none."""
    return ",".join(sorted(MigrationContext.configure(connection).get_current_heads()))


@functools.cache
def newest_revision() -> str:
    """The revision of this release's schema."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head() or ""


def check_revision(connection: Connection) -> None:
    """Raises UnusableError unless the database has this release's schema: whole-ledger reads and writes must
    know every column."""
    found, wanted = revision(connection), newest_revision()
    if found != wanted:
        has = f"has the schema {found}" if found else "holds no ledger"
        raise UnusableError(
            f"--database: it {has}, and this release works on {wanted};"
            " run `bursar-timekeeper migrate` of the release that you want to use"
        )


def by_bytes(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column ordered by the bytes of its text, the one order that both databases have."""
    return collate(column, "C") if connection.dialect.name == "postgresql" else column


def streamed(connection: Connection, statement: Select[Any]) -> Iterator[Any]:
    """The rows of a statement, a few at a time in memory."""
    return iter(connection.execute(statement, execution_options={"yield_per": _ROWS}))
