"""``python -m scheduler_ext``: kube-scheduler's extender for cards."""

import os
import sys
from collections.abc import Sequence

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("bursar-extender: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from scheduler_ext import settings
from timekeeper.edge.log import configure, report_uncaught
from timekeeper.runtime.flags import UnusableError, lacking


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Returns 0 in order, 2 for settings or an address that cannot be used."""
    wanted = settings.read(sys.argv[1:] if arguments is None else arguments, os.environ)
    configure("extender", wanted.log_format)
    report_uncaught()
    try:
        from scheduler_ext.server import serve
        from timekeeper.runtime.http.server import CannotListenError
    except ModuleNotFoundError as error:
        print(f"bursar-extender: {lacking(error, 'scheduler')}", file=sys.stderr)
        return 2
    try:
        return serve(wanted)
    except (CannotListenError, UnusableError) as error:
        print(f"bursar-extender: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
