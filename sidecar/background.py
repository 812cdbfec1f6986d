"""Work that may hang, done on a thread of its own.

A name lookup or a call of NVML can stand still for minutes where no signal reaches it: never on the main
thread. ``_thread`` rather than ``threading`` spares 0.2 MiB; nobody waits for such threads when the process
ends.
"""

from __future__ import annotations

import _thread

from sidecar.log import say
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.event_loop import EventLoop


def run_in_background(
    loop: EventLoop,
    work: Callable[[], object],
    otherwise: object,
    start: Callable[[Callable[[], None], tuple[()]], int] = _thread.start_new_thread,
) -> None:
    """Put what the work gives in the inbox, sooner or later; ``otherwise`` where it fails or cannot be
    begun."""

    def run() -> None:
        try:
            done = work()
        except Exception as error:
            # The text stays out of the log: it might quote a header with the token.
            say("fault", where="errand", kind=type(error).__name__)
            done = otherwise
        loop.put(done)

    try:
        start(run, ())
    except RuntimeError:
        loop.put(otherwise)  # as many threads as the machine allows
