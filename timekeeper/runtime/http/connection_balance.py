"""Which worker process accepts the next connection."""

import mmap

_MAX_WORKERS = 256


class ConnectionBalance:
    """How many connections each worker holds, in memory that the workers share if it is made before the fork.

    A connection stays with the worker that accepted it, and the kernel would give all of them to the worker
    that happens to be awake: of two workers one would do nothing.
    """

    def __init__(self, tolerance: int = 0) -> None:
        """``tolerance``: a difference that is not worth the moment which a new client then waits."""
        self._tolerance = tolerance
        self._connections = memoryview(mmap.mmap(-1, 4 * _MAX_WORKERS)).cast("I")  # 0: no worker, 1: none

    def set(self, worker: int, connections: int) -> None:
        """A worker, by its number, now holds that many."""
        self._connections[worker % _MAX_WORKERS] = connections + 1

    def leave(self, worker: int) -> None:
        """The worker accepts no more connections."""
        self._connections[worker % _MAX_WORKERS] = 0

    def another_has_fewer(self, connections: int) -> bool:
        """True if a worker with that many should leave the next client to another one."""
        return any(0 < each <= connections - self._tolerance for each in self._connections)
