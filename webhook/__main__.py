"""``python -m webhook`` serves the webhooks. Other commands: ``certificates`` keeps the certificates,
``review`` judges manifests without a cluster, ``audit`` judges the objects in one."""

import os
import sys
from collections.abc import Callable, Sequence

# before imports that an old Python could not parse
if sys.version_info < (3, 11):  # noqa: UP036  (this is for older versions)
    sys.exit("bursar-webhook: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from timekeeper.edge.log import configure, report_uncaught
from timekeeper.runtime.flags import lacking
from webhook.settings.certificates import read_certificates
from webhook.settings.serve import read

COMMANDS = ("serve", "certificates", "review", "audit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command until it ends; 0 success, 1 failure, 2 invalid settings, 130 Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given and given[0] in COMMANDS else "serve"
    if command == "certificates":
        return _certificates(given)
    if command in ("review", "audit"):
        return _once(_review if command == "review" else _audit, given)
    return _serve(given)


def _serve(arguments: Sequence[str]) -> int:
    wanted = read(arguments, os.environ)
    configure("webhook", wanted.log_format)
    report_uncaught()
    try:
        from timekeeper.runtime.http.server import CannotListenError
        from webhook.server.gunicorn_app import serve
    except ModuleNotFoundError as error:
        print(f"bursar-webhook: {lacking(error, 'webhook')}", file=sys.stderr)
        return 2
    try:
        return serve(wanted)
    except CannotListenError as error:
        print(f"bursar-webhook: {error}", file=sys.stderr)
        return 2


def _certificates(arguments: Sequence[str]) -> int:
    wanted = read_certificates(arguments, os.environ)
    configure("certificates", wanted.log_format)
    report_uncaught()
    from timekeeper.runtime.flags import UnusableError

    try:
        # a server must not load this: it loads the Kubernetes client with its memory
        from webhook.controller.run import run

        return run(wanted)
    except ModuleNotFoundError as error:
        print(f"bursar-webhook certificates: {lacking(error, 'webhook')}", file=sys.stderr)
        return 2
    except UnusableError as error:
        print(f"bursar-webhook certificates: {error}", file=sys.stderr)
        return 2


def _once(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return command(arguments)
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _review(arguments: Sequence[str]) -> int:
    # a server needs neither PyYAML nor reports
    from webhook.dryrun.flags import program, read_review
    from webhook.dryrun.inputs import CannotReviewError
    from webhook.dryrun.run import run

    wanted = read_review(arguments)
    try:
        return run(wanted, sys.stdin.buffer)
    except CannotReviewError as error:
        print(f"{program('review')}: {error}", file=sys.stderr)
        return 2


def _audit(arguments: Sequence[str]) -> int:
    from webhook.dryrun.flags import program, read_audit
    from webhook.dryrun.inputs import CannotReviewError

    wanted = read_audit(arguments)
    try:
        # a server must not load this: it loads the Kubernetes client with its memory
        from webhook.audit.run import run

        return run(wanted, sys.stdin.buffer)
    except ModuleNotFoundError as error:
        print(f"{program('audit')}: {lacking(error, 'kubeconfig')}", file=sys.stderr)
        return 2
    except CannotReviewError as error:
        print(f"{program('audit')}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
