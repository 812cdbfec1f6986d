"""``python -m timekeeper``: see ``--help``."""

import os
import sys
from collections.abc import Sequence

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("bursar-timekeeper: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from timekeeper.edge.log import configure, report_uncaught
from timekeeper.settings import AUDITING, TimekeeperSettings, exit_code, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command until its end; 2, with a sentence, where the settings are wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    settings = read(given, os.environ)
    role = "settler" if settings.command == "settle" else "timekeeper"
    configure(role, settings.log_format, settings.logs_problems)
    report_uncaught()
    return exit_code(lambda: _run(settings))


def _run(settings: TimekeeperSettings) -> int:
    """Each command imports only what it needs: the settler needs no web server, --help needs nothing."""
    if settings.command == "settle":
        from timekeeper.settler.process import settle

        return settle(settings, settings.new_holder())
    if settings.command == "workers":
        from timekeeper.serving.gunicorn_app import serve as serve_workers

        serve_workers(settings)
        return 0
    if settings.command == "migrate":
        from timekeeper.operations.migrate import migrate

        migrate(settings)
        return 0
    if settings.command in AUDITING:
        from timekeeper.operations.commands import run

        return run(settings)
    from timekeeper.process import supervisor

    return supervisor.serve(settings)


if __name__ == "__main__":
    sys.exit(main())
