"""``python -m sidecar.node``: the agent of one GPU node. Runs until SIGTERM.

No failure of NVML, the API server or the timekeeper ends it. A failure is logged once, and the agent goes on.
"""

from __future__ import annotations

import os
import sys

# Before any import that an older Python could not parse.
if sys.version_info < (3, 11):  # noqa: UP036  (this check is for users of older versions)
    sys.exit("bursar-node: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from sidecar.event_loop import EventLoop
from sidecar.node import run, settings
from sidecar.node.devices import UnusableDevicesError
from timekeeper.edge import log
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM. The exit code is 0 then, 2 for wrong settings, 1 if the port is taken."""
    read = settings.read(sys.argv[1:] if arguments is None else arguments, os.environ)
    log.configure("node-agent", read.log_format)
    try:
        run.until_the_end(read, EventLoop())
    except UnusableDevicesError as error:
        log.write_line(f"bursar-node: {error}")
        return 2
    except OSError as error:
        log.write_line(f"bursar-node: --listen {read.listen[0]}:{read.listen[1]}: {error.strerror or error}")
        return 1
    # A thread may be stuck in NVML or on the network, and the interpreter's own exit would wait for it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
