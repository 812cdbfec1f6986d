"""Runs work that may hang on a thread of its own.

A name lookup or a call of NVML can block for minutes where no signal interrupts it, so neither runs on the
main thread. ``_thread`` takes 0.2 MiB less than ``threading``; the process exits without waiting for such
threads.
"""

from __future__ import annotations

import _thread

from sidecar.log import log
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.event_loop import EventLoop


def run_in_background(
    loop: EventLoop,
    work: Callable[[], object],
    otherwise: object,
    start: Callable[[Callable[[], None], tuple[()]], int] = _thread.start_new_thread,
) -> None:
    """Put the result of ``work`` into the loop when it ends, or ``otherwise`` if it fails or cannot start."""

    def run() -> None:
        try:
            done = work()
        except Exception as error:
            # Without the text: it might quote a header with the token.
            log("fault", level="error", where="background", kind=type(error).__name__)
            done = otherwise
        loop.put(done)

    try:
        start(run, ())
    except RuntimeError:
        loop.put(otherwise)  # the machine allows no more threads
