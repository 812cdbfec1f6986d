"""``python -m webhook``: serves the webhooks; ``python -m webhook certificates``: keeps the certificates."""

import os
import sys
from collections.abc import Sequence

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("bursar-webhook: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from webhook import settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command until it is told to end; 0 in order, 1 for what could not be done, 2 for settings."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given and given[0] in ("serve", "certificates") else "serve"
    if command == "certificates":
        return _certificates(given)
    return _serve(given)


def _serve(arguments: Sequence[str]) -> int:
    wanted = settings.read(arguments, os.environ)
    from webhook.server import CannotServeError, serve

    try:
        return serve(wanted)
    except CannotServeError as error:
        print(f"bursar-webhook: {error}", file=sys.stderr)
        return 2


def _certificates(arguments: Sequence[str]) -> int:
    wanted = settings.read_certificates(arguments, os.environ)
    # a server must never load these: they bring the Kubernetes client and its memory
    from webhook.certificates.run import CannotRunError, run

    try:
        return run(wanted)
    except CannotRunError as error:
        print(f"bursar-webhook certificates: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
