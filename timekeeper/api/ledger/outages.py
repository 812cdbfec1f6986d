"""Logs that the database is away once, and not for each request that fails because of it."""

import time
from collections.abc import Callable
from threading import Event, Lock, Thread

from timekeeper.edge.clock import now_ms
from timekeeper.log import log

NO_DATABASE = "the database cannot be reached or written"


class OutageLog:
    """One per process. Reads and writes fail apart: a full disk can still be read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._away: dict[str, int] = {}  # since when, in milliseconds since 1970

    def failed(self, kind: str, route: str, error: Exception) -> int:
        """A request could not be answered. ``kind``: ``read`` or ``write``. Since when none could, in
        milliseconds since 1970, as this process saw it."""
        at_ms = now_ms()
        with self._lock:
            is_first = kind not in self._away
            since_ms = self._away.setdefault(kind, at_ms)
        if is_first:
            log("database-unavailable", level="error", kind=kind, route=route, error=error)
        return since_ms

    def worked(self, kind: str) -> None:
        """Such a request was answered."""
        if kind not in self._away:
            return
        with self._lock:
            self._away.pop(kind, None)
        log("database-recovered", kind=kind)


_INTERVAL_S = 5.0
_PART = 100  # a check takes at most 1/100 of the time


class DamageWatch:
    """One per process, made after the fork. ``check`` says what is wrong, "" if nothing is."""

    def __init__(self, check: Callable[[], str]) -> None:
        self._check = check
        self._stop = Event()
        self.damage = ""  # as of the last check

    def start(self) -> None:
        """Check from now on, in a thread."""
        Thread(target=self._run, name="damage", daemon=True).start()

    def _run(self) -> None:
        pause_s = _INTERVAL_S
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self.look()
            pause_s = max(_INTERVAL_S, _PART * (time.monotonic() - began))

    def look(self) -> None:
        """Check once. Each finding is logged once."""
        damage = self._check()
        if damage and damage != self.damage:
            log("database-damaged", level="error", error=damage)
        self.damage = damage
