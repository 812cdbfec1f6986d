"""Retention: old sessions folded, batch by batch, by hand or once a day."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from timekeeper.runtime.log import say
from timekeeper.store.engine.engine import ConflictError, Connection, UnavailableError
from timekeeper.store.writes.fencing import OverError
from timekeeper.store.writes.rollup import fold

_BATCH = 200  # sessions in one transaction: the settler waits for no more than these
_EACH_S = 86_400.0
_AGAIN_S = 600.0


class Ledger(Protocol):
    """A store, or what a settler may write in one."""

    def writing(self) -> AbstractContextManager[Connection]:
        """See `Store.writing`."""


@dataclass(frozen=True, slots=True)
class Total:
    """What all batches did together."""

    sessions: int
    rows: int
    doubtful: tuple[str, ...]


def fold_all(
    ledger: Ledger,
    clock: Callable[[], int],
    older_than_ms: int,
    batch: int = _BATCH,
    stop: Event | None = None,
) -> Total:
    """Fold every session that ended and was settled longer ago than that, each batch in a transaction of its
    own: whenever this ends, each session is folded or as it was. Raises UnavailableError or ConflictError."""
    total, after = Total(0, 0, ()), ""
    before_ms = clock() - older_than_ms
    while not (stop and stop.is_set()):
        with ledger.writing() as connection:
            done = fold(connection, before_ms, clock(), after, batch)
        total = Total(
            total.sessions + done.sessions, total.rows + done.rows, (*total.doubtful, *done.doubtful)
        )
        if done.last_uid is None:
            break
        after = done.last_uid
    return total


def keep_folding(ledger: Ledger, clock: Callable[[], int], retain_ms: int, stop: Event) -> None:
    """Fold once a day until ``stop``, or until the term is over. Where the database is away it is tried again
    a little later."""
    pause_s = 0.0
    while not stop.wait(pause_s):
        try:
            total = fold_all(ledger, clock, retain_ms, stop=stop)
        except OverError as error:
            say("folding ends", reason="another settles, and folds", error=error)
            return
        except (UnavailableError, ConflictError) as error:
            say("sessions not folded", error=error)
            pause_s = _AGAIN_S
            continue
        say("sessions folded", sessions=total.sessions, rows=total.rows, left=len(total.doubtful))
        for uid in total.doubtful:
            say("session not folded", uid=uid, reason="its postings are not what one session is charged")
        pause_s = _EACH_S
