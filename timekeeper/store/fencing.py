"""Fencing: starting a settler increments the epoch; writes with an older epoch are rejected.

This keeps the ledger right whatever an election says: a settler that was stopped for a minute, or cut off
from the API server, resumes with an old epoch, and the database itself rejects its writes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import or_, select, update

from timekeeper.core.texts import moment
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.engine import ConflictError, Connection, Store, read_together
from timekeeper.store.engine.schema import PULSE, TERMS


@dataclass(frozen=True, slots=True)
class Epoch:
    """A settler's epoch. ``holder`` names the process that started it."""

    number: int
    holder: str


class EpochOverError(ConflictError):
    """Another settler has started since; this one's decision is not written."""


class WentBackError(ConflictError):
    """The database has lost what this settler wrote last: a standby took over that had not received it, or a
    backup was restored. The next settler begins with what is there."""


# PostgreSQL lets a user terminate its own sessions. Its timeouts miss some stalls: between the statements of
# a pipeline a session counts as busy.
_END_STANDSTILLS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE datname = current_database() AND relation = 'terms'::regclass AND mode = 'RowShareLock' AND granted
AND pid <> pg_backend_pid() AND xact_start < now() - interval '2 seconds'
"""


def begin(connection: Connection, holder: str, now_ms: int) -> Epoch:
    """Start the next epoch. It waits for the previous settler's open transaction; one that has been open for
    2 s (a stopped process) is terminated."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_END_STANDSTILLS)
    before = connection.execute(select(TERMS.c.term).with_for_update()).scalar_one()
    connection.execute(update(TERMS).values(term=before + 1, holder=holder, since_ms=now_ms))
    return Epoch(before + 1, holder)


def claim(connection: Connection, cluster: str, adopted: str) -> str:
    """The UID of the cluster whose ledger it is: this one's if it had none, or the ``adopted`` one."""
    is_free = or_(TERMS.c.cluster.is_(None), TERMS.c.cluster == adopted)
    connection.execute(update(TERMS).where(is_free).values(cluster=cluster))
    return str(connection.execute(select(TERMS.c.cluster)).scalar_one())


def require_current(connection: Connection, epoch: Epoch, last_ms: int | None = None, turn: str = "") -> None:
    """Check that the epoch is current, and keep it current until this transaction ends. ``last_ms``: the
    settler's last write of a pulse must still be there, 0: none; ``turn``: see
    `Store.writing`. Raises EpochOverError or WentBackError."""
    written = select(PULSE.c.tick_ms).scalar_subquery()
    term = select(TERMS.c.term, TERMS.c.holder, written).with_for_update(of=TERMS)
    takes_turn = turn and connection.dialect.name == "postgresql"
    ((number, holder, found_ms),), *_ = read_together(
        connection, (term, None), *([postgresql.turn_of(turn)] if takes_turn else [])
    )
    _compare(epoch, Epoch(number, holder))
    if last_ms not in (None, found_ms or 0):
        raise WentBackError(
            f"the database has the settler's state of {moment(found_ms or 0)}, and lost that of"
            f" {moment(last_ms or 0)}: charges are made again from the cluster; grants, heartbeats and"
            " decisions of that time may be lost"
        )


def confirm(connection: Connection, epoch: Epoch) -> None:
    """Check that the epoch is current now, without a lock. Raises EpochOverError."""
    _compare(epoch, current(connection))


def _compare(mine: Epoch, newest: Epoch) -> None:
    """After an asynchronous failover two settlers can have the same number."""
    if newest != mine:
        raise EpochOverError(
            f"epoch {mine.number} of {mine.holder} is over: {newest.holder} has started epoch {newest.number}"
        )


def current(connection: Connection) -> Epoch:
    """The newest epoch; number 0 if no settler ever started."""
    return Epoch(*connection.execute(select(TERMS.c.term, TERMS.c.holder)).one())


@contextmanager
def writing(store: Store, epoch: Epoch, last_ms: int | None = None, turn: str = "") -> Iterator[Connection]:
    """A transaction that only the holder of this epoch can commit. See `require_current`. Raises
    ConflictError or UnavailableError too."""
    with store.writing() as connection:
        require_current(connection, epoch, last_ms, turn)
        yield connection


@dataclass(frozen=True, slots=True)
class FencedStore:
    """A store whose writes all belong to one epoch, beside the settler's own transactions."""

    store: Store
    epoch: Epoch

    def writing(self) -> AbstractContextManager[Connection]:
        """See `writing`."""
        return writing(self.store, self.epoch)
