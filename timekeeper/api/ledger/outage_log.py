"""Logs that the database is away once, and not for each request that fails because of it."""

from threading import Lock

from timekeeper.runtime.log import log


class OutageLog:
    """One per process. Reads and writes fail apart: a full disk can still be read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._away: set[str] = set()

    def failed(self, kind: str, route: str, error: Exception) -> None:
        """A request could not be answered. ``kind``: ``read`` or ``write``."""
        with self._lock:
            is_first = kind not in self._away
            self._away.add(kind)
        if is_first:
            log("database-unavailable", level="error", kind=kind, route=route, error=error)

    def worked(self, kind: str) -> None:
        """Such a request was answered."""
        if kind not in self._away:
            return
        with self._lock:
            self._away.discard(kind)
        log("database-recovered", kind=kind)
