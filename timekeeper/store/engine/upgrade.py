"""Brings the database to this release's schema."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import ColumnElement, Select, collate, inspect

from timekeeper.settings import UnusableError
from timekeeper.store.engine.engine import Connection, Store, UnavailableError
from timekeeper.store.engine.schema import METADATA

MIGRATIONS = Path(__file__).parents[2] / "migrations"

_POSTGRESQL_LOCK = 0x627572736172  # "bursar"
_TURN_MS = 60_000
_TABLE_MS = 10_000
_STANDSTILL_MS = 60_000


def upgrade(store: Store, turn_ms: int = _TURN_MS, table_ms: int = _TABLE_MS) -> tuple[str, ...]:
    """Run every revision that the database lacks, in one transaction under a lock.

    Returns the revisions that this release does not know. If there are any, a later release migrated this
    database: nothing is changed, and its schema still serves this release. Two processes that start at once
    take turns, and the second finds nothing to do. Raises UnavailableError, also if the database belongs to
    another program.

    On PostgreSQL, ``turn_ms`` limits the wait for another process's migrations, and ``table_ms`` the wait for
    a table in use (all others queue behind that wait). SQLite waits like any writer.
    """
    with store.writing() as connection:
        lock(connection, turn_ms, table_ms)
        config = _config()
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        later = set(MigrationContext.configure(connection).get_current_heads()) - known
        if later:
            _check_tables(connection)
        else:
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")
        return tuple(sorted(later))


def _check_tables(connection: Connection) -> None:
    """A later release keeps the tables that this release reads. If one is missing, the database is not
    Bursar's."""
    missing = METADATA.tables.keys() - set(inspect(connection).get_table_names())
    if missing:
        raise UnavailableError(f"it belongs to another program: it lacks the table {min(missing)}")


def lock(connection: Connection, turn_ms: int = _TURN_MS, table_ms: int = _TABLE_MS) -> None:
    """Make this the only migration until the transaction ends. SQLite holds its write lock from the start of
    the transaction; PostgreSQL uses an advisory lock. A statement may take as long as it needs."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {turn_ms};"
            f" SET LOCAL idle_in_transaction_session_timeout = {_STANDSTILL_MS}"
        )
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {table_ms}")


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


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
