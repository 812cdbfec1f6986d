"""Which worker takes the next client."""

import mmap

_MOST_WORKERS = 256


class Seats:
    """How many connections each worker holds, in memory that workers share when it is made before the fork.

    A client stays with the worker that took it, and the kernel lets the one that is awake take them all: of
    two workers one would do nothing.
    """

    def __init__(self) -> None:
        self._taken = memoryview(mmap.mmap(-1, 2 * _MOST_WORKERS)).cast("H")  # 0: no worker, 1: no connection

    def hold(self, worker: int, connections: int) -> None:
        """A worker, by its number, holds so many now."""
        self._taken[worker % _MOST_WORKERS] = connections + 1

    def leave(self, worker: int) -> None:
        """The worker is no more."""
        self._taken[worker % _MOST_WORKERS] = 0

    def another_has_fewer(self, connections: int) -> bool:
        """True where the next client is better left to another worker."""
        return any(0 < each <= connections for each in self._taken)
