"""The leash of a child: it ends when the process that started it is gone, however that came about."""

import os
from collections.abc import Callable
from threading import Thread


def hold(leash: int, last: Callable[[], None] = lambda: None) -> None:
    """From here on the process ends with its parent. ``leash`` is the reading end of a pipe, as a file
    descriptor; the parent alone holds the other end. Everything is safe on disk at any moment, so there is
    nothing to put in order. A thread does not survive a fork: each process asks for itself. ``last`` is
    called before the process ends so."""
    Thread(target=_end_with_parent, args=(leash, last), name="leash", daemon=True).start()


def _end_with_parent(leash: int, last: Callable[[], None]) -> None:
    while os.read(leash, 1):
        continue
    try:
        last()
    finally:
        os._exit(1)
