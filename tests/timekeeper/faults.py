"""Everything that can happen to a process and its database between any two statements."""

from typing import Any

import sqlalchemy
from sqlalchemy import event

from timekeeper.store.engine.engine import Store


class KilledError(BaseException):
    """No code of ours catches this, like SIGKILL."""


class Fuse:
    """While lit, it counts points: before and after each statement and each commit. At point ``at`` it blows:
    the process is ``killed``, or loses its database. ``written``: a transaction with changes was committed
    while it was lit."""

    def __init__(self, store: Store) -> None:
        self.engine = store.engine
        self.at, self.passed, self.killed = 0, 0, True
        self.away = self.written = self._changing = False
        event.listen(self.engine, "before_cursor_execute", self._before)
        event.listen(self.engine, "after_cursor_execute", self._after)
        event.listen(self.engine, "commit", self._commit)
        event.listen(self.engine, "do_connect", self._connect)

    def light(self, at: int, killed: bool) -> None:
        """The settler is about to tick."""
        self.at, self.passed, self.killed = at, 0, killed
        self.written = self._changing = False

    def out(self) -> None:
        """The tick is over."""
        self.at = 0

    def leave(self) -> None:
        """The database becomes unreachable; open connections are cut."""
        self.away = True
        self.engine.dispose()

    def _before(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self._after(connection, cursor)
        self._changing |= statement.split(None, 1)[0].upper() in ("INSERT", "UPDATE", "DELETE")

    def _after(self, _connection: Any, cursor: Any, *_: Any) -> None:
        try:
            self._point()
        except BaseException:
            cursor.close()  # a dead process has none open, and SQLAlchemy takes its end for a lost connection
            raise

    def _commit(self, connection: sqlalchemy.Connection) -> None:
        self._point()
        if self.at:
            self.written |= self._changing
            if self.passed + 1 == self.at:
                connection.connection.commit()  # and nobody hears of it
            self._changing = False
        self._point()

    def _point(self, *_: Any) -> None:
        self.passed += bool(self.at)
        if not self.at or self.passed != self.at:
            return
        if self.killed:
            raise KilledError
        raise sqlalchemy.exc.OperationalError("", {}, OSError("the server closed the connection"))

    def _connect(self, dialect: Any, *_: Any) -> None:
        if self.away:
            raise dialect.dbapi.OperationalError("the server cannot be reached")
