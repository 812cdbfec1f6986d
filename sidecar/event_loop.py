"""Where the main thread waits: for what the other threads bring, for a signal to end, or for a moment to
come."""

from __future__ import annotations

import os
import select
import signal
from collections import deque

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from types import FrameType


@value
class End:
    """SIGTERM, or Ctrl-C, asked the sidecar to end."""

    signal: int


class EventLoop:
    """Events in the order they came. From its making on, SIGTERM and SIGINT are events; made by the main
    thread.

    A pipe wakes the waiting thread, so that a signal that comes just before the wait is not slept over.
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
            signal.signal(each, self._signalled)

    def put(self, event: object) -> None:
        """Bring an event; any thread may."""
        self._events.append(event)
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # full of calls to wake up: one more would add nothing

    def wait(self, timeout_ms: int | None) -> object:
        """The next event, or None where there is none after ``timeout_ms`` or a little earlier (None: wait
        for one as long as it takes)."""
        while not self._events:
            if self._poll.poll(timeout_ms):
                os.read(self._read, 4096)
            if timeout_ms is not None:
                break  # an event already taken may have left its call to wake up
        return self._events.popleft() if self._events else None

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._events.append(End(number))
