"""``python -m sidecar``: sends heartbeats for its pod until SIGTERM.

It never exits because of a failure: a native sidecar that crash-loops takes its pod out of its Services. A
failure is logged once, and the sidecar goes on.
"""

from __future__ import annotations

import os
import sys

# Before any import that an older Python could not parse.
if sys.version_info < (3, 11):  # noqa: UP036  (this check is for users of older versions)
    sys.exit("bursar-sidecar: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from sidecar import settings
from sidecar.event_loop import End, EventLoop
from timekeeper.edge import log
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM. The exit code is 0 then, and 2 for wrong settings at a terminal."""
    given = sys.argv[1:] if arguments is None else arguments
    loop = EventLoop()
    try:
        read = settings.read(given, os.environ)
    except settings.SettingError as error:
        return _without_settings(f"bursar-sidecar: {error}", settings.by_hand(given, os.environ), loop)

    log.configure("sidecar", read.log_format)
    # Imported after the signal handlers are set: TLS takes 0.1 s to import, and a SIGTERM that a container's
    # first process does not handle yet is lost.
    from sidecar import run

    if run.until_the_end(read, loop):
        # A thread is stuck in the name lookup, on the network or in NVML; the interpreter's own exit, and the
        # driver library's, might wait for it.
        os._exit(0)
    return 0


def _without_settings(sentence: str, by_hand: bool, loop: EventLoop) -> int:
    """In a pod an exit would only lead to restarts: write the error and wait for the pod's end."""
    rest = "" if by_hand else " No heartbeat is sent from this pod."
    log.write_line(sentence + rest)
    while not (by_hand or isinstance(loop.wait(None), End)):
        continue
    return 2 if by_hand else 0


if __name__ == "__main__":
    sys.exit(main())
