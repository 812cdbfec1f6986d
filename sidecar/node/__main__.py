"""``python -m sidecar.node``: the agent of one GPU node, until SIGTERM.

NVML's failures, the API server's and the timekeeper's never end it: what goes wrong is said once and lived
with.
"""

from __future__ import annotations

import os
import sys

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("bursar-node: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from sidecar.event_loop import EventLoop
from sidecar.log import tell
from sidecar.node import run, settings
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; the exit code is 0 then, 2 for wrong settings, 1 where the port is taken."""
    read = settings.read(sys.argv[1:] if arguments is None else arguments, os.environ)
    try:
        run.until_the_end(read, EventLoop())
    except OSError as error:
        tell(f"bursar-node: --listen {read.host}:{read.port}: {error.strerror or error}")
        return 1
    # A thread may be stuck in NVML or on the network: the interpreter's own end would wait for it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
