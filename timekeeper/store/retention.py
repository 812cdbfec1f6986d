"""Retention: rolls up old sessions in batches, by command or once a day, and deletes old decisions."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from timekeeper.log import log
from timekeeper.store import decisions, would
from timekeeper.store.engine.engine import ConflictError, Connection, UnavailableError
from timekeeper.store.fencing import EpochOverError
from timekeeper.store.postings import forget_nodes, roll_up

_BATCH = 200  # sessions per transaction: the settler waits for one batch at most
_INTERVAL_S = 86_400.0
_AGAIN_S = 600.0
_DECISIONS = 500  # in one transaction
_DECISIONS_INTERVAL_S = 600.0
_BETWEEN_S = 0.1  # two such transactions: others write in between


class Writable(Protocol):
    """Whatever opens a writing transaction: a `Store`, or a `FencedStore` one."""

    def writing(self) -> AbstractContextManager[Connection]:
        """See `Store.writing`."""


@dataclass(frozen=True, slots=True)
class RollupTotal:
    """The sum over all batches."""

    sessions: int
    rows: int
    doubtful: tuple[str, ...]


def roll_up_all(
    ledger: Writable,
    clock: Callable[[], int],
    older_than_ms: int,
    batch: int = _BATCH,
    stop: Event | None = None,
) -> RollupTotal:
    """Roll up every session that ended and was settled before the cut-off, each batch in a transaction of its
    own; then forget the nodes that no session names any more.

    If it ends early, each session is either rolled up or unchanged. Raises UnavailableError or ConflictError.
    """
    total, after = RollupTotal(0, 0, ()), ""
    before_ms = clock() - older_than_ms
    while not (stop and stop.is_set()):
        with ledger.writing() as connection:
            done = roll_up(connection, before_ms, clock(), after, batch)
        total = RollupTotal(
            total.sessions + done.sessions, total.rows + done.rows, (*total.doubtful, *done.doubtful)
        )
        if done.last_uid is None:
            with ledger.writing() as connection:
                forget_nodes(connection, before_ms)
            break
        after = done.last_uid
    return total


def roll_up_daily(ledger: Writable, clock: Callable[[], int], retain_ms: int, stop: Event) -> None:
    """Roll up once a day until ``stop``, or until the epoch is over. While the database is away it retries
    after ten minutes."""
    pause_s = 0.0
    while not stop.wait(pause_s):
        try:
            total = roll_up_all(ledger, clock, retain_ms, stop=stop)
        except EpochOverError as error:
            log(
                "folding-ends",
                level="warning",
                reason="another process is the settler, and folds",
                error=error,
            )
            return
        except (UnavailableError, ConflictError) as error:
            log("sessions-not-folded", level="warning", error=error)
            pause_s = _AGAIN_S
            continue
        log("sessions-folded", sessions=total.sessions, rows=total.rows, left=len(total.doubtful))
        for uid in total.doubtful:
            log(
                "session-not-folded",
                level="warning",
                uid=uid,
                reason="its postings do not add up to one session's charge",
            )
        pause_s = _INTERVAL_S


def forget_decisions(ledger: Writable, clock: Callable[[], int], retain_ms: int, stop: Event) -> None:
    """Every ten minutes delete the decisions that were last taken longer ago, and what would have happened
    before, until ``stop`` or until the epoch is over."""
    pause_s = 0.0
    while not stop.wait(pause_s):
        try:
            with ledger.writing() as connection:
                before_ms = clock() - retain_ms
                found = [each.forget(connection, before_ms, _DECISIONS) for each in (decisions, would)]
                count = max(found)
        except EpochOverError:
            return
        except (UnavailableError, ConflictError) as error:
            log("decisions-not-deleted", level="warning", error=error)
            count = 0
        pause_s = _BETWEEN_S if count == _DECISIONS else _DECISIONS_INTERVAL_S
