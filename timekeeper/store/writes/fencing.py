"""The settlers' terms: who begins to settle counts up, and from then on nobody with an older term writes.

This is what keeps the ledger right, whatever an election says: a settler that was stopped for a minute, or
cut off from the API server, wakes up with a term that is over, and the database itself turns it away.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import select, update

from timekeeper.store.engine.engine import ConflictError, Connection, Store
from timekeeper.store.engine.schema import TERMS


@dataclass(frozen=True, slots=True)
class Term:
    """``holder`` names the process that took it."""

    number: int
    holder: str


class OverError(ConflictError):
    """Another settler has begun since: what this one decided is not written."""


# Of PostgreSQL, whose statements of one user may end each other's sessions. Its own timeouts do not see every
# standstill: between the statements of a pipeline a session counts as busy.
_END_STANDSTILLS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE datname = current_database() AND relation = 'terms'::regclass AND mode = 'RowShareLock' AND granted
AND pid <> pg_backend_pid() AND xact_start < now() - interval '2 seconds'
"""


def begin(connection: Connection, holder: str, now_ms: int) -> Term:
    """Count up. Waits for the end of the transaction that the settler before us may be in; one that has stood
    still for 2 s, as of a process that was stopped, is ended."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_END_STANDSTILLS)
    before = connection.execute(select(TERMS.c.term).with_for_update()).scalar_one()
    connection.execute(update(TERMS).values(term=before + 1, holder=holder, since_ms=now_ms))
    return Term(before + 1, holder)


def hold(connection: Connection, term: Term) -> None:
    """Make sure that the term is still ours, and that it stays so until this transaction ends. Raises
    OverError."""
    row = connection.execute(select(TERMS.c.term, TERMS.c.holder).with_for_update()).one()
    _compare(term, Term(*row))


def confirm(connection: Connection, term: Term) -> None:
    """Make sure that the term is still ours at this moment, and lock nothing. Raises OverError."""
    _compare(term, current(connection))


def _compare(mine: Term, newest: Term) -> None:
    if newest.number != mine.number:
        raise OverError(
            f"term {mine.number} of {mine.holder} is over:"
            f" {newest.holder} settles since, in term {newest.number}"
        )


def current(connection: Connection) -> Term:
    """The newest term; number 0 where nobody ever settled."""
    return Term(*connection.execute(select(TERMS.c.term, TERMS.c.holder)).one())


@contextmanager
def writing(store: Store, term: Term) -> Iterator[Connection]:
    """A transaction in which the holder of this term, and nobody else, settles. Raises OverError,
    ConflictError or UnavailableError."""
    with store.writing() as connection:
        hold(connection, term)
        yield connection


@dataclass(frozen=True, slots=True)
class Fenced:
    """A ledger in which everything is written under one term, beside its holder's own transactions."""

    store: Store
    term: Term

    def writing(self) -> AbstractContextManager[Connection]:
        """See `writing`."""
        return writing(self.store, self.term)
