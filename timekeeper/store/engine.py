"""The connection to the database: transactions that read or write, and its failures as two words."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import event, exc

from timekeeper.settings import UnusableError

Connection = sqlalchemy.Connection

PATIENCE_MS = 5_000

_WRITES = "bursar_writes"
_ALLOWED = (
    "it must be a file, such as sqlite:////var/lib/bursar/bursar.db, or PostgreSQL with its package psycopg"
    " installed, such as postgresql+psycopg://user:password@host/bursar"
)
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


def open_store(url: str, patience_ms: int = PATIENCE_MS) -> Store:
    """The store at an SQLAlchemy URL; nothing is connected yet. Raises UnusableError with a sentence for the
    operator.

    ``patience_ms``: how long a writer waits for another one.
    """
    engine = _engine(url)
    if engine.dialect.name == "sqlite":
        sqlite = _Sqlite(patience_ms)
        event.listen(engine, "connect", sqlite.prepare)
        event.listen(engine, "begin", sqlite.begin)
    return Store(engine)


def _engine(url: str) -> sqlalchemy.Engine:
    try:
        read = sqlalchemy.make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise UnusableError(f"--database: not a database URL; {_ALLOWED}") from error
    kind = read.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise UnusableError(
            f"--database: not a database URL that we can use, {kind} is not supported; {_ALLOWED}"
        )
    if kind == "sqlite" and read.database in (None, "", ":memory:"):
        raise UnusableError(
            f"--database: {url} names no file, and each process would have its own; {_ALLOWED}"
        )
    try:
        return sqlalchemy.create_engine(read)
    except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
        why = f"the driver of {read.drivername} cannot be loaded ({error})"
        raise UnusableError(f"--database: not a database URL that we can use, {why}; {_ALLOWED}") from error


@contextmanager
def _failures_as_ours() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise ConflictError(str(error.orig)) from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise UnavailableError(str(getattr(error, "orig", None) or error)) from error
    except exc.DatabaseError as error:
        # its other kinds are faults of ours; the bare one is SQLite's for a file that is damaged or none of
        # its own
        if type(error) is not exc.DatabaseError:
            raise
        raise UnavailableError(str(error.orig)) from error


@dataclass(frozen=True, slots=True)
class _Sqlite:
    """How SQLite is to be used."""

    patience_ms: int

    def prepare(self, connection: Any, _record: object) -> None:
        """WAL lets readers go on beside the one writer.

        ``synchronous=FULL`` writes the log through to the disk at each commit: a grant or a heartbeat that
        was acknowledged survives a power cut. NORMAL would save that write, and lose the last commits;
        heartbeats are committed in groups instead.
        """
        connection.isolation_level = None  # we say BEGIN ourselves
        for pragma in (
            f"busy_timeout = {self.patience_ms}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    def begin(self, connection: Connection) -> None:
        """A writer takes the lock at once: one that first reads and then writes could find its reading
        outdated, and SQLite would refuse it without waiting."""
        if not connection.get_execution_options().get(_WRITES, False):
            connection.exec_driver_sql("BEGIN")
            return
        # SQLite itself waits in ever longer naps, up to a tenth of a second, while the lock comes and goes.
        until = time.monotonic() + self.patience_ms / 1000
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        while not _has_begun(connection, last_try=time.monotonic() > until):
            time.sleep(_NAP_S)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {self.patience_ms}")


def _has_begun(connection: Connection, last_try: bool) -> bool:
    """One try to take the write lock; False where another has it."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except exc.OperationalError as error:
        if last_try or not getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise
        return False
    return True
