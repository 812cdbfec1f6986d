"""The connection to the database: transactions that read or write, and its failures as two words."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import event, exc

Connection = sqlalchemy.Connection

_WRITES = "bursar_writes"
_BUSY_TIMEOUT_MS = 5000
_NAP_S = 0.001


class UnavailableError(Exception):
    """The database cannot be reached, is locked for too long, or is full: nothing was written; try again."""


class ConflictError(Exception):
    """What was to be written contradicts what is there: another has written it, or a constraint forbids
    it."""


class Store:
    """A database of ours. ``engine`` is for migrations and tests."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database. Raises UnavailableError."""
        with _failures_as_ours(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its first statement, and commits at its end or not at
        all.

        Raises UnavailableError or ConflictError.
        """
        writer = self.engine.execution_options(**{_WRITES: True})
        with _failures_as_ours(), writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close what is idle."""
        self.engine.dispose()


def open_store(url: str) -> Store:
    """The store at an SQLAlchemy URL; nothing is connected yet. Raises ValueError with a sentence for the
    operator."""
    try:
        engine = sqlalchemy.create_engine(url)
    except (exc.ArgumentError, exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise ValueError(f"not a database URL: {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return Store(engine)


@contextmanager
def _failures_as_ours() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise ConflictError(str(error.orig)) from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise UnavailableError(str(getattr(error, "orig", None) or error)) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """WAL lets readers go on beside the one writer.

    ``synchronous=FULL`` writes the log through to the disk at each commit: a grant or a heartbeat that was
    acknowledged survives a power cut. NORMAL would save that write, and lose the last commits; heartbeats are
    committed in groups instead.
    """
    connection.isolation_level = None  # we say BEGIN ourselves, see _begin_sqlite
    for pragma in (
        f"busy_timeout = {_BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: one that first reads and then writes could find its reading outdated,
    and SQLite would refuse it without waiting."""
    if not connection.get_execution_options().get(_WRITES, False):
        connection.exec_driver_sql("BEGIN")
        return
    # SQLite itself would wait in ever longer naps, up to a tenth of a second, while the lock comes and goes.
    until = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    while not _has_begun(connection, last_try=time.monotonic() > until):
        time.sleep(_NAP_S)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _has_begun(connection: Connection, last_try: bool) -> bool:
    """One try to take the write lock; False where another has it."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except exc.OperationalError as error:
        if last_try or getattr(error.orig, "sqlite_errorname", "") != "SQLITE_BUSY":
            raise
        return False
    return True
