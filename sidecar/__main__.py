"""``python -m sidecar``: beats for the pod it runs in, until SIGTERM.

It never exits for a reason of its own: a native sidecar that crash-loops takes its pod out of its Services.
What goes wrong is said once and lived with. Where the sidecar is a plain container of a pod that can end, it
ends with the others (``BURSAR_ENDS=over``): nobody else would end it, and the pod would run for ever.
"""

from __future__ import annotations

import os
import sys

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("bursar-sidecar: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from sidecar import settings
from sidecar.event_loop import End, EventLoop
from sidecar.log import tell
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; the exit code is 0 then, and 2 for wrong settings given by hand."""
    given = sys.argv[1:] if arguments is None else arguments
    loop = EventLoop()
    try:
        read = settings.read(given, os.environ)
    except settings.SettingError as wrong:
        by_hand = settings.by_hand(given, os.environ)
        ends = by_hand or bool(os.environ.get(settings.ENDS))
        return _without_settings(f"bursar-sidecar: {wrong}", by_hand, ends, loop)

    # Only now, with SIGTERM in hand: TLS takes a tenth of a second to import, and to the first process of a
    # container a SIGTERM that nothing handles yet is lost.
    from sidecar import run

    if run.until_the_end(read, loop):
        # A thread is stuck in the name lookup, on the network or in NVML: the interpreter's own end, and the
        # driver library's, might wait for it.
        os._exit(0)
    return 0


def _without_settings(sentence: str, by_hand: bool, ends: bool, loop: EventLoop) -> int:
    """In a pod an exit would only be repeated, for ever: say what is wrong and wait for the pod's end. Where
    nobody would end us, nobody repeats us either."""
    rest = "" if by_hand else " No heartbeat is sent from this pod."
    tell(sentence + rest)
    while not (ends or isinstance(loop.wait(None), End)):
        continue
    return 2 if by_hand else 0


if __name__ == "__main__":
    sys.exit(main())
