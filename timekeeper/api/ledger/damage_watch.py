"""Looks for damage of the database's file while it is used."""

import time
from collections.abc import Callable
from threading import Event, Thread

from timekeeper.runtime.log import log

_EACH_S = 5.0
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
        pause_s = _EACH_S
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self.look()
            pause_s = max(_EACH_S, _PART * (time.monotonic() - began))

    def look(self) -> None:
        """Check once. Each finding is logged once."""
        damage = self._check()
        if damage and damage != self.damage:
            log("database-damaged", level="error", error=damage)
        self.damage = damage
