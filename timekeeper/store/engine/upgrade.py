"""Bringing the database to the schema of this release."""

from pathlib import Path

import alembic.command
import alembic.config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from timekeeper.store.engine.engine import Connection, Store, UnavailableError
from timekeeper.store.engine.schema import METADATA

MIGRATIONS = Path(__file__).parents[2] / "migrations"

_POSTGRESQL_LOCK = 0x627572736172  # "bursar"
_TURN_MS = 60_000
_TABLE_MS = 10_000
_STANDSTILL_MS = 60_000


def upgrade(store: Store, turn_ms: int = _TURN_MS, table_ms: int = _TABLE_MS) -> tuple[str, ...]:
    """Run every revision that the database does not have yet, in one transaction under a lock.

    Returns the revisions found that this release does not know: then a later one was here, nothing is done,
    and its schema serves us all the same. Two processes that start at once take turns, and the second finds
    nothing to do. Raises UnavailableError, also where the database is another program's.

    On PostgreSQL, ``turn_ms``: how long to wait for another's migrations; ``table_ms``: how long for a table
    that is in use, before which all others wait meanwhile. SQLite waits as every writer does.
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
    """A later release keeps the tables that we read; where they are missing, no release of ours was here."""
    missing = METADATA.tables.keys() - set(inspect(connection).get_table_names())
    if missing:
        raise UnavailableError(f"it is another program's, without the table {min(missing)}")


def lock(connection: Connection, turn_ms: int = _TURN_MS, table_ms: int = _TABLE_MS) -> None:
    """Be the only one that migrates until the transaction ends. SQLite holds its write lock from the
    transaction's beginning; PostgreSQL has a lock for such ends. A statement may take as long as it needs."""
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
