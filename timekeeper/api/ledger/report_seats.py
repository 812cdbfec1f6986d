"""Limits how many reports are read at a time. A report holds a database connection and a thread, and the
reports of one caller must not keep the others out."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from timekeeper.api.problem import unavailable

WAIT_S = 3.0
MOST_WAITING = 6  # each holds a thread
MOST_WAITING_EACH = 2


@dataclass(frozen=True, slots=True)
class _Reading:
    """``cost``: how much it reads, in any unit; ``number``: its place among the requests; ``is_whole``: by a
    reader of the whole cluster."""

    cost: int
    number: int
    caller: str
    is_whole: bool


class ReportSeats:
    """Seats for reports of one process. A caller that reads single namespaces has one at a time, and one seat
    is kept for readers of the whole cluster. Of those that wait, the cheapest comes first."""

    def __init__(self, seats: int, wait_s: float = WAIT_S) -> None:
        self._seats, self._wait_s = seats, wait_s
        self._numbers = itertools.count()
        self._changed = Condition()
        self._reading: set[_Reading] = set()
        self._waiting: set[_Reading] = set()

    @contextmanager
    def taken(self, caller: str, is_whole: bool, cost: int) -> Iterator[None]:
        """A seat until the end of the block. Raises a Problem (503) if none is free in time."""
        wish = _Reading(cost, next(self._numbers), caller, is_whole)
        self._wait(wish)
        try:
            yield
        finally:
            with self._changed:
                self._reading.discard(wish)
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many requests wait for a seat."""
        return len(self._waiting)

    def _wait(self, wish: _Reading) -> None:
        with self._changed:
            same = sum(each.caller == wish.caller for each in self._waiting)
            if same >= MOST_WAITING_EACH or len(self._waiting) >= MOST_WAITING:
                raise unavailable("too many reports of yours are being read; retry later")
            self._waiting.add(wish)
            try:
                is_next = self._changed.wait_for(lambda: self._next() is wish, self._wait_s)
            finally:
                self._waiting.discard(wish)
                self._changed.notify_all()
            if not is_next:
                raise unavailable("too many reports are being read; ask for less, or retry later")
            self._reading.add(wish)

    def _next(self) -> _Reading | None:
        may = [each for each in self._waiting if self._may(each)]
        return min(may, key=lambda each: (each.cost, each.number), default=None)

    def _may(self, wish: _Reading) -> bool:
        if len(self._reading) >= self._seats:
            return False
        others = [each for each in self._reading if not each.is_whole]
        is_at_it = any(each.caller == wish.caller for each in others)
        return wish.is_whole or (not is_at_it and len(others) < self._seats - 1)
