"""PostgreSQL: the settings of each connection and transaction, and the errors that mean it is unavailable.

Writers run at READ COMMITTED: each statement sees everything committed before it. A transaction that reads
rows and decides what to write therefore locks those rows (``with_for_update``, in key order) or takes a turn
(`take_turn`); a unique key or a CHECK backs that up. SERIALIZABLE would require every transaction to be
repeatable, and its false alarms grow with the number of heartbeats.

Readers run at REPEATABLE READ, READ ONLY: all statements of a report see the same moment, and they block no
writer.
"""

import math
import os
import select
import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Executable, event, exc, text
from sqlalchemy.engine import URL, Dialect, Engine, ExceptionContext

READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

# A writer that stalls inside a transaction (a stopped process) holds its locks this long; then the server
# ends its session and rolls the transaction back.
_STANDSTILL_MS = 10_000
# The limit for a report or a page of an export. Migrations lift it for themselves.
_STATEMENT_MS = 60_000

# libpq's connection parameters, unless the URL sets them. Keepalives detect a silent server after 25 s, also
# while a statement waits for its answer.
_CONNECTION = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

SESSION_ATTRIBUTES = "target_session_attrs"

# Classes of SQLSTATE (PostgreSQL's manual, appendix A) that say nothing about the statement itself: no
# connection, a transaction ended or rolled back by the server, no resources, a lock not given, a shutdown, a
# failing disk, a damaged file.
_AWAY = ("08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX")
DAMAGED = ("XX001", "XX002")  # data and index corrupted
# The ledger's tables are missing, forbidden, or another program's. The operator must mend that, like a
# missing file.
_NOT_OURS = ("42501", "42P01", "42P07", "42701", "42710", "3F000")
_READ_ONLY = "25006"
_STOOD_STILL = "25P03"
_SENT = "bursar_sent_s"  # in a connection's notes: when a statement was last sent
_IDLE = 0  # libpq's PQTRANS_IDLE
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # as `READING` says
_BEFORE = "bursar_before"  # an execution option: what is sent together with a statement, before it


@dataclass(frozen=True, slots=True)
class PostgreSQL:
    """The connection settings. ``patience_ms``: the wait for another transaction's lock."""

    patience_ms: int

    def listen(self, engine: Engine) -> None:
        """Set up every connection of the engine."""
        event.listen(engine, "connect", self._prepare)
        event.listen(engine, "checkout", _obey_default)
        event.listen(engine, "do_execute", _send_before)
        event.listen(engine, "handle_error", _leave_standby)
        event.listen(engine, "begin", _note_time)
        event.listen(engine, "after_cursor_execute", _note_time)
        event.listen(engine, "handle_error", _note_standstill)
        engine.dialect.do_ping = _is_open  # type: ignore[assignment]

    def _prepare(self, connection: Any, _record: object) -> None:
        connection.autocommit = True
        connection.execute(
            f"SET lock_timeout = {self.patience_ms};"
            f" SET statement_timeout = {_STATEMENT_MS};"
            f" SET idle_in_transaction_session_timeout = {_STANDSTILL_MS};"
            " SET timezone = 'UTC'"
        )
        connection.autocommit = False


def _is_open(driver: Any) -> bool:
    """Whether a connection from the pool may be used, without a word to the server: of an idle one it has
    nothing to say but that it ends it. Keepalives end one to a server that is silent."""
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    return not poll.poll(0)


def _obey_default(driver: Any, *_: object) -> None:
    """A transaction that writes begins without ``READ WRITE``, also after a reader's: a primary that was
    fenced by ``default_transaction_read_only`` then refuses it as a standby does."""
    driver.autocommit, driver.read_only = False, None


def _leave_standby(context: ExceptionContext) -> None:
    """A server that may not write is a standby, or is fenced: drop the pool, so that the address is asked
    anew. Its text is translated (``lc_messages``), so it is known by its class."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _note_time(connection: Connection, *_: object) -> None:
    connection.info[_SENT] = time.monotonic()


def _note_standstill(context: ExceptionContext) -> None:
    """Where the server ended the session because a transaction of ours stood still, the error says so. While
    several rows are sent at once, the server's own message is lost."""
    if context.connection is None or not context.is_disconnect:
        return
    quiet_s = time.monotonic() - context.connection.info.get(_SENT, math.inf)
    state = getattr(context.original_exception, "sqlstate", None)
    if state == _STOOD_STILL or quiet_s * 1000 >= _STANDSTILL_MS:
        limit = f"after {_STANDSTILL_MS // 1000} the database ends it"
        context.original_exception.add_note(f"a transaction stood still for {quiet_s:.1f} s, and {limit}:")


def execute_together(
    connection: Connection, asked: Sequence[tuple[Executable, Any]], last: Executable
) -> list[list[Any]]:
    """The rows of each statement with its parameters, None: they are in it; one with a list of them writes,
    and has no rows. All are
    sent with the transaction's BEGIN, and then ``last``: one round trip."""
    from psycopg.rows import namedtuple_row  # a timekeeper on SQLite may lack it

    driver: Any = connection.connection.dbapi_connection
    cursors = [driver.cursor(row_factory=namedtuple_row) for _ in asked]
    before = [
        (cursor, *_sent(statement, given, connection.dialect))
        for cursor, (statement, given) in zip(cursors, asked, strict=True)
    ]
    if driver.info.transaction_status == _IDLE:  # psycopg would wait for its own BEGIN
        driver.autocommit = True
        is_reading = connection.get_execution_options().get("postgresql_readonly", False)
        before.insert(0, (driver.cursor(), _BEGIN_READING if is_reading else _BEGIN, None))
    connection.execute(last, execution_options={_BEFORE: before})
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _sent(statement: Any, given: Any, dialect: Dialect) -> tuple[str, Any]:
    if given is None:
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        return str(compiled), compiled.params
    text, own = _compiled(statement, dialect)
    fixed = {name: value for name, value in own.items() if value is not None}
    if fixed:
        given = [fixed | row for row in given] if isinstance(given, list) else fixed | given
    return text, given


@lru_cache(256)
def _compiled(statement: Any, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """The text, and the values that are in the statement."""
    compiled = statement.compile(dialect=dialect)
    return str(compiled), dict(compiled.params)


def _send_before(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    """Whether it has executed the statement, in a pipeline with what comes before it."""
    before = context.execution_options.get(_BEFORE)
    if before is None:
        return False
    with cursor.connection.pipeline():
        for each, text, given in before:
            (each.executemany if isinstance(given, list) else each.execute)(text, given)
        cursor.execute(statement, parameters)
    return True


def connection_arguments(given: Collection[str], hosts: Collection[str], name: str) -> dict[str, str]:
    """libpq's arguments, except those that the URL sets itself (``given``). Of several hosts it takes the one
    that may write. A single host gets no such attribute: PgBouncer answers by what it read once
    (pgbouncer#859)."""
    arguments = _CONNECTION | {"application_name": name}
    if len(hosts) > 1:
        arguments[SESSION_ATTRIBUTES] = "read-write"
    return {word: value for word, value in arguments.items() if word not in given}


def hosts_of(url: URL) -> tuple[str, ...]:
    """Its hosts, each perhaps with a port, in libpq's order."""
    given = url.query.get("host", ())
    named = (url.host or "").split(",") if not given else [given] if isinstance(given, str) else given
    return tuple(host for each in named for host in each.split(",") if host)


def trust_system(given: Mapping[str, object], paths: ssl.DefaultVerifyPaths | None = None) -> None:
    """Make ``sslrootcert=system`` mean this system's CAs, by OpenSSL's own variables, where neither is set.
    Without them the OpenSSL of psycopg's wheel reads a folder of its own, which no system has."""
    found = paths or ssl.get_default_verify_paths()
    variables = {
        found.openssl_cafile_env: found.openssl_cafile,
        found.openssl_capath_env: found.openssl_capath,
    }
    if given.get("sslrootcert") == "system" and not variables.keys() & os.environ.keys():
        os.environ.update(variables)


def take_turn(connection: Connection, name: str) -> None:
    """Wait for other transactions that took a turn of this name. The turn ends with this transaction."""
    connection.execute(*turn_of(name))


def turn_of(name: str) -> tuple[Executable, dict[str, str]]:
    """Asks for a turn."""
    return _TURN, {"name": f"bursar {name}"}


_TURN = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


def is_away(error: exc.DBAPIError) -> bool:
    """True if the error, of any class, means that the database cannot serve now; it says nothing about the
    statement."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or state.startswith(_AWAY) or state in _NOT_OURS
