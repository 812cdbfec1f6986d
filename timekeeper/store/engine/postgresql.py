"""How PostgreSQL is used: what each connection and each kind of transaction is told, and which of its errors
mean that it is away.

Writers run at READ COMMITTED: every statement sees what was committed before it. So where a transaction
reads something and decides by it what to write, it locks what it read (``with_for_update``, in the order of
the key) or takes a turn (`take_turn`), and a unique key or a CHECK stands behind that. SERIALIZABLE would
need each transaction to be one that can be run again, and its false alarms grow with the number of
heartbeats.

Readers run at REPEATABLE READ, READ ONLY: all statements of a report see one moment, and block nobody.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event, exc
from sqlalchemy.engine import Engine

READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

# A writer that stands still inside a transaction, such as a process that was stopped, holds its locks for so
# long; then the server ends its session, and nothing of the transaction is there.
_STANDSTILL_MS = 10_000
# What a report or a page of an export may take. Migrations lift it for themselves.
_STATEMENT_MS = 60_000

# What can be said in a connection string of libpq, where the URL does not say otherwise. A server that is
# gone without a word is found out by the keepalives after 25 s, while waiting for an answer too.
_CONNECTION = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

# Classes of SQLSTATE (PostgreSQL's manual, appendix A) that say nothing against what was to be written: no
# connection, a transaction ended or rolled back by the server, no resources, a lock not given, a shutdown, a
# failing disk, a damaged file.
_AWAY = ("08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX")
# The ledger's tables are not there or may not be used, or another program's are: the operator's to mend, as a
# missing file is.
_NOT_OURS = ("42501", "42P01", "42P07", "42701", "42710", "3F000")


@dataclass(frozen=True, slots=True)
class PostgreSQL:
    """How PostgreSQL is to be used. ``patience_ms``: how long one waits for another's lock."""

    patience_ms: int

    def listen(self, engine: Engine) -> None:
        """Set up every connection of the engine."""
        event.listen(engine, "connect", self._prepare)

    def _prepare(self, connection: Any, _record: object) -> None:
        connection.autocommit = True
        connection.execute(
            f"SET lock_timeout = {self.patience_ms};"
            f" SET statement_timeout = {_STATEMENT_MS};"
            f" SET idle_in_transaction_session_timeout = {_STANDSTILL_MS};"
            " SET timezone = 'UTC'"
        )
        connection.autocommit = False


def connection_arguments(given: Collection[str], name: str) -> dict[str, str]:
    """What to tell libpq beside what the URL, whose parameters are ``given``, tells it."""
    told = _CONNECTION | {"application_name": name}
    return {word: value for word, value in told.items() if word not in given}


def take_turn(connection: Connection, name: str) -> None:
    """Wait for the others that took a turn of this name in their transaction; it ends with ours."""
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"bursar {name}",))


def is_away(error: exc.DBAPIError) -> bool:
    """Whether the error, of whatever class, says that the database cannot serve now, and nothing about what
    was asked of it."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or state.startswith(_AWAY) or state in _NOT_OURS
