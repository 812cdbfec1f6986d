"""The connection to the database: transactions that read or write, and its failures as two words."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.engine import URL

from timekeeper.settings import UnusableError
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.postgresql import PostgreSQL
from timekeeper.store.engine.sqlite import MOUNTS, Sqlite, file_of, network_file_system

Connection = sqlalchemy.Connection

PATIENCE_MS = 5_000
CONNECTIONS = 5

_WRITES = "bursar_writes"
_ALLOWED = (
    "it must be a file, such as sqlite:////var/lib/bursar/bursar.db, or PostgreSQL with its package psycopg"
    " installed, such as postgresql+psycopg://user:password@host/bursar"
)
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


class UnavailableError(Exception):
    """The database cannot be reached, is locked for too long, or is full: nothing was written; try again."""


class ConflictError(Exception):
    """What was to be written contradicts what is there: another has written it, or a constraint forbids
    it."""


class Store:
    """A database of ours. ``engine`` is for migrations and tests."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine
        self._readers = engine.execution_options(**postgresql.READING) if self.is_shared else engine
        self._writers = engine.execution_options(**{_WRITES: True})

    @property
    def is_shared(self) -> bool:
        """Whether several timekeepers may use it at once: PostgreSQL, and no file."""
        return self.engine.dialect.name == "postgresql"

    @property
    def shown(self) -> str:
        """Where it is, without user and password."""
        return _shown(self.engine.url)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database, and may not write. Raises
        UnavailableError."""
        with _failures_as_ours(), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, turn: str = "") -> Iterator[Connection]:
        """A transaction that commits at its end or not at all.

        On SQLite it holds the write lock from its first statement, and is alone. On PostgreSQL others write
        beside it, but for those with the same ``turn``, if it names one; see
        `timekeeper.store.engine.postgresql` for what must be locked. Raises UnavailableError or
        ConflictError.
        """
        with _failures_as_ours(), self._writers.begin() as connection:
            if turn and self.is_shared:
                postgresql.take_turn(connection, turn)
            yield connection

    def close(self) -> None:
        """Close what is idle."""
        self.engine.dispose()


def open_store(
    url: str, patience_ms: int = PATIENCE_MS, connections: int = CONNECTIONS, name: str = "bursar"
) -> Store:
    """The store at an SQLAlchemy URL; nothing is connected yet. Raises UnusableError with a sentence for the
    operator.

    ``patience_ms``: how long a writer waits for another one. ``connections``: how many to PostgreSQL this
    process may have at a time, and ``name`` what they are called there.
    """
    read = _read(url)
    try:
        if read.get_backend_name() == "sqlite":
            # as many connections as there are threads: a file has no limit
            engine = sqlalchemy.create_engine(read, max_overflow=-1)
            Sqlite(patience_ms).listen(engine, _WRITES)
        else:
            engine = _pool(read, patience_ms, connections, name)
            PostgreSQL(patience_ms).listen(engine)
    except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
        why = f"the driver of {read.drivername} cannot be loaded ({error})"
        raise UnusableError(f"--database: not a database URL that we can use, {why}; {_ALLOWED}") from error
    return Store(engine)


def _pool(read: URL, patience_ms: int, connections: int, name: str) -> sqlalchemy.Engine:
    """Connections are opened when they are needed and kept. Each is tried before it is used, so that a server
    that was started anew costs nobody an error."""
    return sqlalchemy.create_engine(
        read,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=patience_ms / 1000,
        pool_pre_ping=True,
        pool_use_lifo=True,
        connect_args=postgresql.connection_arguments(read.query, name),
    )


def _read(url: str) -> URL:
    try:
        read = sqlalchemy.make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise UnusableError(f"--database: not a database URL; {_ALLOWED}") from error
    kind = read.drivername.partition("+")[0]
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise UnusableError(
            f"--database: not a database URL that we can use, {kind} is not supported; {_ALLOWED}"
        )
    if kind == "sqlite":
        _check_file(read)
        return read
    if read.drivername not in _POSTGRESQL:
        driver = f"the driver of {read.drivername} is not psycopg"
        raise UnusableError(f"--database: not a database URL that we can use, {driver}; {_ALLOWED}")
    return read.set(drivername="postgresql+psycopg")


def _check_file(read: URL) -> None:
    """SQLite needs a file, and a disk of this machine's own below it."""
    if read.database in (None, "", ":memory:"):
        raise UnusableError(
            f"--database: {read} names no file, and each process would have its own; {_ALLOWED}"
        )
    kind = network_file_system(file_of(read), MOUNTS.read_text()) if MOUNTS.exists() else ""
    if kind:
        raise UnusableError(
            f"--database: {_shown(read)} lies on a network file system ({kind}), where SQLite's locks do not"
            " hold and the ledger would be damaged; it must be on a disk of this machine, such as a"
            " ReadWriteOncePod volume of block storage, or PostgreSQL"
        )


def _shown(url: URL) -> str:
    """Without user, password and options, any of which may be a secret."""
    if url.get_backend_name() == "sqlite":
        return str(url)
    return str(URL.create("postgresql", host=url.host, port=url.port, database=url.database))


@contextmanager
def _failures_as_ours() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise ConflictError(_sentence(error)) from error
    except exc.TimeoutError as error:
        raise UnavailableError("all connections of this process are in use") from error
    except exc.DBAPIError as error:
        if not _is_away(error):
            raise
        raise UnavailableError(_sentence(error)) from error


def _is_away(error: exc.DBAPIError) -> bool:
    """Other errors are faults of ours."""
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or postgresql.is_away(error):
        return True
    # the bare one is SQLite's for a file that is damaged or none of its own
    return type(error) is exc.DatabaseError


def _sentence(error: exc.DBAPIError) -> str:
    """What the database says, on one line."""
    return " ".join(str(error.orig).split())
