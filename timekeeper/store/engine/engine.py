"""The connection to the database: transactions that read or write, and two kinds of failure."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy
from sqlalchemy import ARRAY, Executable, Table, bindparam, exc, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.engine import URL

from timekeeper.settings import UnusableError
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.postgresql import PostgreSQL
from timekeeper.store.engine.sqlite import MOUNTS, Sqlite, beside, file_of, network_file_system

Connection = sqlalchemy.Connection

PATIENCE_MS = 5_000
CONNECTIONS = 8
AT_ONCE = 2_000  # rows of one statement: a transaction stands still while a statement is put together
_RECYCLE_S = 300  # a new connection sees what ALTER DATABASE has set, and where the address leads

_WRITES = "bursar_writes"
_ALLOWED = (
    "it must be a file, such as sqlite:////var/lib/bursar/bursar.db, or PostgreSQL with its package psycopg"
    " installed, such as postgresql+psycopg://user:password@host/bursar"
)
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


class UnavailableError(Exception):
    """The database is unreachable, locked for too long, or full. Nothing was written; retry later."""


class NoSpaceError(UnavailableError):
    """A statement sorts so much that its temporary files would fill the volume of the ledger."""

    def __init__(self) -> None:
        super().__init__(
            "this needs temporary files that would leave less than 1 GiB of the ledger's volume free: ask for"
            " a shorter time, or enlarge the volume"
        )


class ConflictError(Exception):
    """The write contradicts what the database holds: another process wrote first, or a constraint forbids
    it."""


class Store:
    """Bursar's database. ``engine`` is for migrations and tests."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine
        self._readers = engine.execution_options(**postgresql.READING) if self.is_shared else engine
        self._writers = engine.execution_options(**{_WRITES: True})

    @property
    def is_shared(self) -> bool:
        """True for PostgreSQL: several timekeepers may use it at once."""
        return self.engine.dialect.name == "postgresql"

    @property
    def shown(self) -> str:
        """The database's address without user and password."""
        return _shown(self.engine.url)

    @property
    def session_attributes(self) -> str:
        """libpq's ``target_session_attrs`` of its connections; "": it has none, as on SQLite."""
        url = self.engine.url
        if not self.is_shared:
            return ""
        chosen = postgresql.connection_arguments(url.query, postgresql.hosts_of(url), "") | dict(url.query)
        return str(chosen.get(postgresql.SESSION_ATTRIBUTES, ""))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database, and may not write. Raises
        UnavailableError."""
        with _failures_as_ours(), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, turn: str = "") -> Iterator[Connection]:
        """A transaction that commits at its end or not at all.

        On SQLite it takes the write lock with its first statement and runs alone. On PostgreSQL writers run
        side by side, except those that name the same ``turn``; `timekeeper.store.engine.postgresql` says what
        must be locked. Raises UnavailableError or ConflictError.
        """
        with _failures_as_ours(), self._writers.begin() as connection:
            if turn and self.is_shared:
                postgresql.take_turn(connection, turn)
            yield connection

    def check_writable(self) -> None:
        """Raises UnavailableError on a PostgreSQL that may not write, as a standby. It leaves no trace."""
        if self.is_shared:
            with self.writing() as connection:
                connection.exec_driver_sql("DELETE FROM terms WHERE false")

    def space(self) -> tuple[int, int | None]:
        """The bytes of the database, and those free on its volume; None: unknown. Raises UnavailableError or
        OSError."""
        if self.is_shared:
            with self.reading() as connection:
                size = select(func.pg_database_size(func.current_database()))
                return int(connection.execute(size).scalar_one()), None
        file = file_of(self.engine.url).absolute()
        there = (path for path in (file, *beside(file)) if path.exists())
        return sum(path.stat().st_size for path in there), shutil.disk_usage(file.parent).free

    def close(self) -> None:
        """Close what is idle."""
        self.engine.dispose()


def open_store(
    url: str, patience_ms: int = PATIENCE_MS, connections: int = CONNECTIONS, name: str = "bursar"
) -> Store:
    """The store at an SQLAlchemy URL; it does not connect yet. Raises UnusableError with a sentence for the
    operator.

    ``patience_ms``: how long a writer waits for another writer. ``connections``: the most PostgreSQL
    connections of this process; ``name``: their application name there.
    """
    read = _read(url)
    try:
        if read.get_backend_name() == "sqlite":
            # one connection per thread: a file has no limit
            engine = sqlalchemy.create_engine(read, max_overflow=-1)
            Sqlite(patience_ms).listen(engine, _WRITES)
        else:
            engine = _pool(read, patience_ms, connections, name)
            PostgreSQL(patience_ms).listen(engine)
    except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
        why = f"the driver of {read.drivername} cannot be loaded ({error})"
        raise UnusableError(f"--database: not a supported database URL: {why}; {_ALLOWED}") from error
    return Store(engine)


def _pool(read: URL, patience_ms: int, connections: int, name: str) -> sqlalchemy.Engine:
    """Connections open on demand and stay open for a while. Each is looked at before use, so a restart of the
    server causes no error."""
    postgresql.trust_system(read.query)
    return sqlalchemy.create_engine(
        read,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=patience_ms / 1000,
        pool_pre_ping=True,
        pool_recycle=_RECYCLE_S,
        pool_use_lifo=True,
        connect_args=postgresql.connection_arguments(read.query, postgresql.hosts_of(read), name),
    )


def _read(url: str) -> URL:
    first, comma, _ = url.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(",")
    if comma and ":" in first:
        several = "postgresql://USER:PASSWORD@/NAME?host=a:5432&host=b:5432"
        raise UnusableError(f"--database: not a database URL; several hosts with ports are written {several}")
    try:
        read = sqlalchemy.make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise UnusableError(f"--database: not a database URL; {_ALLOWED}") from error
    kind = read.drivername.partition("+")[0]
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise UnusableError(f"--database: not a supported database URL: {kind} is not supported; {_ALLOWED}")
    if kind == "sqlite":
        _check_file(read)
        return read
    if read.drivername not in _POSTGRESQL:
        driver = f"the driver of {read.drivername} is not psycopg"
        raise UnusableError(f"--database: not a supported database URL: {driver}; {_ALLOWED}")
    return read.set(drivername="postgresql+psycopg")


def _check_file(read: URL) -> None:
    """SQLite needs a file on a local disk."""
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
    """The URL without user, password and options; any of them may be a secret."""
    if url.get_backend_name() == "sqlite":
        return str(url)
    if "host" in url.query:
        return f"postgresql://{','.join(postgresql.hosts_of(url))}/{url.database}"
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
        if _lacks_space(error):
            raise NoSpaceError from error
        if not _is_away(error):
            raise
        raise UnavailableError(_sentence(error)) from error


def _is_away(error: exc.DBAPIError) -> bool:
    """False for errors that are defects of ours."""
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or postgresql.is_away(error):
        return True
    # SQLite raises the bare class for a damaged file or a file of another format
    return type(error) is exc.DatabaseError


def _lacks_space(error: exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def _sentence(error: exc.DBAPIError) -> str:
    """The database's message on one line, after what we know of it."""
    said = " ".join(" ".join((*getattr(error.orig, "__notes__", ()), str(error.orig))).split())
    return f"it is damaged: {said}" if _is_damage(error) else said


def _is_damage(error: exc.DBAPIError) -> bool:
    name, state = getattr(error.orig, "sqlite_errorname", ""), getattr(error.orig, "sqlstate", None)
    return str(name).startswith(_DAMAGED) or state in postgresql.DAMAGED


_NOTHING, _COMMIT = text("SELECT 1"), text("COMMIT")


def read_together(connection: Connection, *asked: tuple[Executable, Any]) -> list[Sequence[Any]]:
    """The rows of each statement with its parameters; on PostgreSQL of one round trip with BEGIN, if it is
    the transaction's first."""
    if connection.dialect.name == "postgresql":
        return list(postgresql.execute_together(connection, asked, _NOTHING))
    return [connection.execute(*each).all() for each in asked]


def commit_together(connection: Connection, changes: Sequence[tuple[Executable, Any]]) -> None:
    """Write these lists of rows as the last of a transaction; on PostgreSQL of one round trip with COMMIT."""
    if connection.dialect.name == "postgresql":
        postgresql.execute_together(connection, changes, _COMMIT)
        return
    for change in changes:
        connection.execute(*change)


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows of a table, each of which sets these columns of the row that has its primary key already."""

    table: Table
    columns: tuple[str, ...]


# the rows of a table, or those for each of which a statement is executed
Written = tuple[Table | Upsert | Executable, Sequence[Mapping[str, Any]]]


def write_all(connection: Connection, written: Iterable[Written], is_last: bool = False) -> None:
    """Write these in their order, `AT_ONCE` rows in a statement; on PostgreSQL in one round trip, with COMMIT
    if it is the last of the transaction."""
    portions = [
        (what, list(map(dict, rows[start : start + AT_ONCE])))
        for what, rows in written
        for start in range(0, len(rows), AT_ONCE)
    ]
    if connection.dialect.name != "postgresql":
        for what, rows in portions:
            connection.execute(_inserting(what) if isinstance(what, Table | Upsert) else what, rows)
        return
    asked: list[tuple[Executable, Any]] = []
    for what, rows in portions:
        if not isinstance(what, Table | Upsert):
            asked.append((what, rows))
            continue
        names = tuple(rows[0])
        asked.append((_inserting_arrays(what, names), {name: [row[name] for row in rows] for name in names}))
    if asked:
        postgresql.execute_together(connection, asked, _COMMIT if is_last else _NOTHING)


def insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that all have the same columns; no rows is no statement."""
    write_all(connection, [(table, rows)])


@cache
def _inserting(what: Table | Upsert) -> Executable:
    if isinstance(what, Table):
        return insert(what)
    return _replacing(what, sqlite_insert(what.table))


@cache
def _inserting_arrays(what: Table | Upsert, names: tuple[str, ...]) -> Executable:
    """One statement for many rows: each column's values are one array parameter, and a statement trigger runs
    once. SQLAlchemy itself would send one statement a row."""
    table = what if isinstance(what, Table) else what.table
    values = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in names]
    given = func.unnest(*values).table_valued(*names).render_derived()
    inserted = postgresql_insert(table).from_select(names, select(*given.c))
    return inserted if isinstance(what, Table) else _replacing(what, inserted)


def _replacing(what: Upsert, inserted: Any) -> Executable:
    own = list(what.table.primary_key.columns)
    new = {name: inserted.excluded[name] for name in what.columns}
    replacing: Executable = inserted.on_conflict_do_update(index_elements=own, set_=new)
    return replacing
