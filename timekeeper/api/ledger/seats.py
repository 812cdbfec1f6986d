"""Limits how many reports are read at a time, and shares these seats out. A report holds a database
connection and a thread, and the reports of one account or about one namespace must not keep the others
out."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

from timekeeper.runtime.http.problem_details import unavailable

SEATS = 3
WAIT_S = 20.0
MAX_WAITING = 8  # each holds a thread
MAX_WAITING_EACH = 4  # of one account


@dataclass(frozen=True, slots=True)
class ReportKey:
    """Whose report it is: the caller's account, and the namespace or group that it reads; "": all of them,
    which only readers of the whole cluster may."""

    account: str
    subject: str

    @property
    def is_whole(self) -> bool:
        """Whether it reads the whole cluster."""
        return not self.subject

    def meets(self, other: "ReportKey") -> bool:
        """Whether both count toward one share: they have the account or the namespace in common."""
        return self.account == other.account or (self.subject == other.subject and not self.is_whole)


@dataclass(frozen=True, slots=True)
class _Wish:
    """``turn``: the round in which it is served; ``cost``: how much it reads, in any unit; ``number``: its
    place among the requests."""

    turn: int
    cost: int
    number: int
    key: ReportKey = field(compare=False)

    @property
    def order(self) -> tuple[int, int, int]:
        """What is least comes first."""
        return self.turn, self.cost, self.number


class ReportSeats:
    """Seats for reports of one process, of which one is kept for readers of the whole cluster. At most one
    report of an account and one about a namespace is read at a time; readers of the whole cluster have no
    such limit.

    What waits is served in rounds: in each, one report of each account and about each namespace, the
    cheapest first. So a caller waits for at most two reports of each of the others. What waits is bounded
    too: a request beyond an account's own part is refused, and where all places are taken, the last of the
    account or namespace that has most of them gives way to one that has fewer."""

    def __init__(self, seats: int = SEATS, wait_s: float = WAIT_S) -> None:
        self._seats, self._wait_s = seats, wait_s
        self._numbers = itertools.count()
        self._changed = Condition()
        self._turn = 0  # of the last that was served
        self._reading: set[_Wish] = set()
        self._waiting: set[_Wish] = set()

    @contextmanager
    def taken(self, key: ReportKey, cost: int) -> Iterator[None]:
        """A seat until the end of the block. Raises a Problem (503) if there is no place to wait, or no seat
        in time."""
        wish = self._wait(key, cost)
        try:
            yield
        finally:
            with self._changed:
                self._reading.discard(wish)
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many requests wait for a seat."""
        return len(self._waiting)

    def _wait(self, key: ReportKey, cost: int) -> _Wish:
        with self._changed:
            self._make_place(key)
            wish = _Wish(self._turn_of(key), cost, next(self._numbers), key)
            self._waiting.add(wish)
            try:
                self._changed.wait_for(
                    lambda: wish not in self._waiting or self._next() is wish, self._wait_s
                )
                is_next = wish in self._waiting and self._next() is wish
            finally:
                self._waiting.discard(wish)
                self._changed.notify_all()
            if not is_next:
                raise unavailable("too many reports are being read; ask for less, or retry later")
            self._turn = max(self._turn, wish.turn)
            self._reading.add(wish)
            return wish

    def _turn_of(self, key: ReportKey) -> int:
        """After all of its own account and namespace, and not before the present round."""
        own = (each.turn for each in self._reading | self._waiting if each.key.meets(key))
        return max((turn + 1 for turn in own), default=self._turn)

    def _make_place(self, key: ReportKey) -> None:
        """Raises a Problem if there is no place to wait for this one."""
        if sum(each.key.account == key.account for each in self._waiting) >= MAX_WAITING_EACH:
            raise unavailable(
                f"{MAX_WAITING_EACH} reports of yours wait already, and one is read at a time; retry later"
            )
        if len(self._waiting) < MAX_WAITING:
            return
        last = max(self._waiting, key=lambda each: (self._crowd(each.key), each.number))
        if self._crowd(last.key) <= self._crowd(key) + 1:
            raise unavailable("too many reports are being read; ask for less, or retry later")
        self._waiting.discard(last)
        self._changed.notify_all()

    def _crowd(self, key: ReportKey) -> int:
        """How many wait of its account or about its namespace, whichever are more."""
        of_account = sum(each.key.account == key.account for each in self._waiting)
        return max(of_account, sum(each.key.subject == key.subject != "" for each in self._waiting))

    def _next(self) -> _Wish | None:
        may = (each for each in self._waiting if self._may(each.key))
        return min(may, key=lambda each: each.order, default=None)

    def _may(self, key: ReportKey) -> bool:
        if len(self._reading) >= self._seats:
            return False
        others = [each.key for each in self._reading if not each.key.is_whole]
        return key.is_whole or (not any(each.meets(key) for each in others) and len(others) < self._seats - 1)
