"""Retention: rolls up old sessions in batches, by command or once a day, deletes old decisions and measured
use, and gives free space of SQLite's file back."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from sqlalchemy import Column, delete, select, tuple_

from timekeeper.log import log
from timekeeper.store.engine.engine import ConflictError, Connection, Store, UnavailableError
from timekeeper.store.engine.schema import CARD_HOURS, DECISIONS, FIGURES, WOULD
from timekeeper.store.fencing import EpochOverError
from timekeeper.store.postings import forget_nodes, roll_up

_BATCH = 200  # sessions per transaction: the settler waits for one batch at most
_INTERVAL_S = 86_400.0
_AGAIN_S = 600.0
_ROWS = 500  # of each table, in one transaction
_FORGET_INTERVAL_S = 600.0
_PAGES = 1_000  # that are given back in one transaction
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


def forget(connection: Connection, at: Column[int], before_ms: int, most: int) -> int:
    """Delete rows whose time ``at`` is before that one, the oldest first, at most ``most``; returns their
    number."""
    key = tuple(at.table.primary_key)
    old = select(*key).where(at < before_ms).order_by(at).limit(most)
    return connection.execute(delete(at.table).where(tuple_(*key).in_(old))).rowcount


def forget_old(
    ledger: Writable, clock: Callable[[], int], decisions_ms: int, use_ms: int, cards_ms: int, stop: Event
) -> None:
    """Every ten minutes delete the decisions that were last taken longer ago than ``decisions_ms``, and what
    would have happened before, and the use, and the cards, of hours that began longer ago than ``use_ms``,
    and ``cards_ms``, until ``stop`` or until the epoch is over. 0: they are kept."""
    every = (
        *((DECISIONS.c.last_ms, decisions_ms), (WOULD.c.at_ms, decisions_ms)),
        *((FIGURES.c.hour_ms, use_ms), (CARD_HOURS.c.hour_ms, cards_ms)),
    )
    pause_s = 0.0
    while not stop.wait(pause_s):
        try:
            with ledger.writing() as connection:
                now_ms = clock()
                counts = [forget(connection, at, now_ms - kept_ms, _ROWS) for at, kept_ms in every if kept_ms]
        except EpochOverError:
            return
        except (UnavailableError, ConflictError) as error:
            log("decisions-not-deleted", level="warning", error=error)
            counts = [0]
        pause_s = _BETWEEN_S if max(counts) == _ROWS else _FORGET_INTERVAL_S


def give_back(store: Store) -> tuple[int, int]:
    """Give the free pages of an SQLite file back to its volume, a few at a time: others write in between.
    Returns the bytes that were given back, and those that stay: a file of an earlier release gives none.
    Raises UnavailableError."""
    given = 0
    while True:
        with store.writing() as connection:
            free = _pragma(connection, "freelist_count")
            pages = min(free, _PAGES) if _pragma(connection, "auto_vacuum") else 0
            for _ in range(pages):  # a statement's first step is one page, and the driver takes no second
                connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
            stay, size = _pragma(connection, "freelist_count"), _pragma(connection, "page_size")
        given += free - stay
        if not pages:
            return given * size, stay * size
        time.sleep(_BETWEEN_S)


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
