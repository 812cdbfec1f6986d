"""Which worker takes the next client."""

import mmap

_MOST_WORKERS = 256
_ABOUT_AS_MANY = 4


class Seats:
    """How many connections each worker holds, in memory that workers share when it is made before the fork.

    A client stays with the worker that took it, and the kernel lets the one that is awake take them all: of
    two workers one would do nothing.
    """

    def __init__(self) -> None:
        self._taken = memoryview(mmap.mmap(-1, 4 * _MOST_WORKERS)).cast("I")  # 0: no worker, 1: none

    def hold(self, worker: int, connections: int) -> None:
        """A worker, by its number, holds so many now."""
        self._taken[worker % _MOST_WORKERS] = connections + 1

    def leave(self, worker: int) -> None:
        """The worker takes no more."""
        self._taken[worker % _MOST_WORKERS] = 0

    def another_has_fewer(self, connections: int) -> bool:
        """True where the next client is better left to another worker, which has clearly fewer than so
        many."""
        return any(0 < each <= connections - _ABOUT_AS_MANY for each in self._taken)
