"""How a process of any role learns that it should end: SIGTERM or SIGINT (Ctrl-C)."""

import os
import signal
from threading import Event, Thread

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def event_of_end_signals() -> Event:
    """An Event that the first SIGTERM or SIGINT sets. The main thread calls this once.

    Python runs a handler in the main thread, between two of its instructions. A handler that calls
    `Event.set` waits for ever if the main thread holds that Event's lock, as it does at moments of each
    `Event.wait`. So the handler does nothing. The interpreter writes the signal's number to a pipe, and a
    thread that reads the pipe sets the Event.
    """
    stop = Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def set_at_first() -> None:
        while os.read(read_end, 1)[0] not in END_SIGNALS:
            continue
        stop.set()

    Thread(target=set_at_first, name="end-signals", daemon=True).start()
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in END_SIGNALS:
        signal.signal(number, _do_nothing)
    return stop


def _do_nothing(_number: int, _frame: object) -> None:
    """With a handler of Python, a signal is written to the pipe and does not end the process."""
