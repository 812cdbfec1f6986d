"""Files that another process renews: certificates, a CA bundle."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.log import log
from timekeeper.edge.log_events import EventLog, LogEvent

T = TypeVar("T")


class FileWatch(Generic[T]):
    """A value made from files. A call makes it again if they have changed since the last look, ``every_ms``
    ago or longer.

    A mounted Secret changes all its files at once; files written one after another may not fit together for a
    moment. Files that cannot be loaded leave the former value, and are logged once.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        load: Callable[[], T],
        now_ms: Callable[[], int],
        log: EventLog[LogEvent],
        every_ms: int = 1_000,
    ) -> None:
        self._paths, self._load, self._now_ms, self._log = paths, load, now_ms, log
        self._every_ms = every_ms
        self._value: T | None = None
        self._loaded: object = None
        self._failed: object = None
        self._look_at_ms: int | None = None

    def __call__(self) -> T | None:
        """The value; None until the files could be loaded once."""
        now_ms = self._now_ms()
        if self._look_at_ms is None or now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + self._every_ms
            self._look()
        return self._value

    def _look(self) -> None:
        present = _signature(self._paths)
        if present == self._loaded:
            return
        try:
            self._value, self._loaded = self._load(), present
        except (OSError, ValueError) as error:
            if present != self._failed:
                self._log(
                    "not-loaded", level="error", files=" ".join(map(str, self._paths)), error=str(error)
                )
            self._failed = present
        else:
            self._log("loaded", files=" ".join(map(str, self._paths)))


def newest_text(path: Path) -> Callable[[], str]:
    """A function that gives a file's text of this moment; "" where there is no such file."""
    text = FileWatch(
        (path,), lambda: path.read_text() if path.exists() else "", monotonic_ms, log, every_ms=0
    )
    return lambda: text() or ""


def _signature(paths: tuple[Path, ...]) -> object:
    """What differs when a file has been replaced or rewritten; an absent one differs from any that is
    there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return found
