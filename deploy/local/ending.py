"""The end by a signal: Ctrl-C (SIGINT), SIGTERM, or a closed terminal (SIGHUP)."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it, the first of these signals raises KeyboardInterrupt or SystemExit, and every later one is
    ignored until this process has ended: what was started is stopped completely. Signals that are ignored
    already (nohup) stay so."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    handled = [each for each in _SIGNALS if before[each] != signal.SIG_IGN]
    is_ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        is_ending = True
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    for each in handled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in () if is_ending else handled:
            signal.signal(each, before[each])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within it, a signal for which this process has a handler waits until the end, so that the handler's
    exception does not leave a removal half done. Only the main thread runs handlers; others need nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {each: signal.getsignal(each) for each in _SIGNALS}
    waiting = {each: handler for each, handler in handlers.items() if callable(handler)}
    for each in waiting:
        signal.signal(each, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for each, handler in waiting.items():
            signal.signal(each, handler)
    for number in came[:1]:
        signal.raise_signal(number)
