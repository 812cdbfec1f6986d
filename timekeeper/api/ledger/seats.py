"""Limits how many requests of a kind are answered at a time, and shares these seats out. A report holds a
database connection and a thread, a simulation the other roles; those of one account or about one namespace
must not keep the others out."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

from timekeeper.runtime.http.problem_details import Problem, unavailable

SEATS = 3
WAIT_S = 20.0
YIELD_S = 10.0  # for so long a client that keeps its answer waiting keeps its seat from others
MAX_WAITING = 8  # each holds a thread
MAX_WAITING_EACH = 4  # of one account

IsWanted = Callable[[], bool]  # whether another could have the seat now


@dataclass(frozen=True, slots=True)
class SeatKey:
    """Whose request it is: the caller's account, and the namespace or group that it is about; "": all of
    them, which only readers of the whole cluster may."""

    account: str
    subject: str

    @property
    def is_whole(self) -> bool:
        """Whether it reads the whole cluster."""
        return not self.subject

    def meets(self, other: "SeatKey") -> bool:
        """Whether both count toward one share: they have the account or the namespace in common."""
        return self.account == other.account or (self.subject == other.subject and not self.is_whole)


@dataclass(frozen=True, slots=True)
class _Wish:
    """``turn``: the round in which it is served; ``cost``: how much it reads, in any unit; ``number``: its
    place among the requests."""

    turn: int
    cost: int
    number: int
    key: SeatKey = field(compare=False)

    @property
    def order(self) -> tuple[int, int, int]:
        """What is least comes first."""
        return self.turn, self.cost, self.number


class Seats:
    """Seats for ``what`` of one process, of which one is kept for readers of the whole cluster. At most one
    report of an account and one about a namespace is read at a time; readers of the whole cluster have no
    such limit.

    What waits is served in rounds: in each, one report of each account and about each namespace, the
    cheapest first. So a caller waits for at most two reports of each of the others. What waits is bounded
    too: a request beyond an account's own part is refused, and where all places are taken, the last of the
    account or namespace that has most of them gives way to one that has fewer."""

    def __init__(self, seats: int = SEATS, wait_s: float = WAIT_S, what: str = "reports") -> None:
        self._seats, self._wait_s, self._what = seats, wait_s, what
        self._numbers = itertools.count()
        self._changed = Condition()
        self._turn = 0  # of the last that was served
        self._reading: set[_Wish] = set()
        self._waiting: set[_Wish] = set()

    @contextmanager
    def taken(self, key: SeatKey, cost: int = 1) -> Iterator[IsWanted]:
        """A seat until the end of the block; whether another could have it now. Raises a Problem (503) if
        there is no place to wait, or no seat in time."""
        wish = self._wait(key, cost)
        try:
            yield lambda: self._next(without=wish) is not None
        finally:
            with self._changed:
                self._reading.discard(wish)
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many requests wait for a seat."""
        return len(self._waiting)

    def _wait(self, key: SeatKey, cost: int) -> _Wish:
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
                raise self._crowded()
            self._turn = max(self._turn, wish.turn)
            self._reading.add(wish)
            return wish

    def _turn_of(self, key: SeatKey) -> int:
        """After all of its own account and namespace, and not before the present round."""
        own = (each.turn for each in self._reading | self._waiting if each.key.meets(key))
        return max((turn + 1 for turn in own), default=self._turn)

    def _make_place(self, key: SeatKey) -> None:
        """Raises a Problem if there is no place to wait for this one."""
        if sum(each.key.account == key.account for each in self._waiting) >= MAX_WAITING_EACH:
            raise unavailable(
                f"{MAX_WAITING_EACH} {self._what} of yours wait already, and one is answered at a time;"
                " retry later"
            )
        if len(self._waiting) < MAX_WAITING:
            return
        last = max(self._waiting, key=lambda each: (self._crowd(each.key), each.number))
        if self._crowd(last.key) <= self._crowd(key) + 1:
            raise self._crowded()
        self._waiting.discard(last)
        self._changed.notify_all()

    def _crowded(self) -> Problem:
        return unavailable(f"too many {self._what} are being answered; ask for less, or retry later")

    def _crowd(self, key: SeatKey) -> int:
        """How many wait of its account or about its namespace, whichever are more."""
        of_account = sum(each.key.account == key.account for each in self._waiting)
        return max(of_account, sum(each.key.subject == key.subject != "" for each in self._waiting))

    def _next(self, without: _Wish | None = None) -> _Wish | None:
        reading = [wish.key for wish in self._reading.copy() if wish is not without]
        may = (wish for wish in self._waiting.copy() if self._may(wish.key, reading))
        return min(may, key=lambda wish: wish.order, default=None)

    def _may(self, key: SeatKey, reading: Sequence[SeatKey]) -> bool:
        if len(reading) >= self._seats:
            return False
        others = [other for other in reading if not other.is_whole]
        return key.is_whole or (
            not any(other.meets(key) for other in others) and len(others) < self._seats - 1
        )
