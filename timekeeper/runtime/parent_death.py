"""The leash of a child: it ends when the process that started it is gone, however that came about."""

import os
from collections.abc import Callable
from threading import Thread


def hold(last: Callable[[], None] = lambda: None) -> None:
    """From here on the process ends with its standard input: a pipe that only the one that started us holds
    open. Everything is safe on disk at any moment, so there is nothing to put in order. A thread does not
    survive a fork: each process asks for itself. ``last``: called before the process ends so."""
    Thread(target=_end_with_parent, args=(last,), name="leash", daemon=True).start()


def _end_with_parent(last: Callable[[], None]) -> None:
    while os.read(0, 1):
        continue
    try:
        last()
    finally:
        os._exit(1)
