"""The main thread's queue of events. It waits for another thread's result, a signal or a timeout."""

from __future__ import annotations

import os
import select
import signal
from collections import deque

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from types import FrameType


@value
class End:
    """SIGTERM or SIGINT (Ctrl-C) arrived."""

    signal: int


class EventLoop:
    """A queue of events, first in, first out. Made by the main thread; from then on SIGTERM and SIGINT are
    events.

    A pipe wakes the waiting thread, so a signal that arrives just before the wait is not missed.
    """

    def __init__(self) -> None:
        self._events: deque[object] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)

    def put(self, event: object) -> None:
        """Append an event. Any thread may call this."""
        self._events.append(event)
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # the pipe is full, so the main thread wakes up anyway

    def wait(self, timeout_ms: int | None) -> object:
        """The next event, or None if there is none after ``timeout_ms`` or a little earlier. With None it
        waits until there is one."""
        while not self._events:
            if self._poll.poll(timeout_ms):
                os.read(self._read, 4096)
            if timeout_ms is not None:
                break  # the byte may belong to an event that was taken before
        return self._events.popleft() if self._events else None

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._events.append(End(number))
