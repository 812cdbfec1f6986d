"""``kubectl bursar check`` and ``audit``, which are commands of ``bursar-webhook``."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import click

from timekeeper.cli import words
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.months import month
from timekeeper.cli.output import CommandError
from timekeeper.core.names import BUDGET_CONFIG_MAPS, BUDGETS_LABEL, NAMESPACE

_ANSWER_S = 3
_STANDINGS = ("in-budget", "over-budget", "unlimited", "unknown")


class WebhookCommand(click.Command):
    """A command whose words ``bursar-webhook`` reads. Its parameters are what ``--help`` shows and a shell
    offers; the callback gets the words alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Called by click; ``resilient_parsing``: for a shell."""
        asks_help = not {"-h", "--help"}.isdisjoint(args) and not _is_of_month(args)
        if ctx.resilient_parsing or asks_help:
            return super().parse_args(ctx, ["--help"] if asks_help else args)
        ctx.params["arguments"] = args
        return []


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of both commands."""
    for flag in (
        click.option(
            "--template-path",
            multiple=True,
            metavar="GROUP/KIND=PATH",
            help="path of the pod templates of another kind; may be repeated",
        ),
        click.option(
            "--other-schedulers", metavar="NAMES", help="as the webhook's flag, separated by commas"
        ),
        click.option(
            "--mode",
            type=click.Choice(("enforce", "observe", "meter")),
            help="overrides the mode of --budgets",
        ),
        click.option(
            "--budgets",
            multiple=True,
            metavar="FILE",
            shell_complete=words.files,
            help="file with budget ConfigMaps, whose settings, rules and budgets apply; may be repeated",
        ),
    ):
        command = flag(command)
    return command


def _output(*forms: str) -> Callable[..., Any]:
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help="the form"
    )


@click.command(cls=WebhookCommand, short_help="Check manifests before they are created")
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=words.files)
@_output("text", "json", "yaml", "diff")
@click.option(
    "--standing",
    type=click.Choice(_STANDINGS),
    help="of every namespace; without it in-budget, or unlimited where --budgets has no budget for it",
)
@click.option(
    *("-n", "--namespace"),
    default="default",
    show_default=True,
    metavar="NAME",
    shell_complete=words.namespaces,
    help="namespace of objects without one",
)
@click.option(
    "--priority-class",
    multiple=True,
    metavar="NAME=VALUE",
    help="value of a priority class that pods use; may be repeated",
)
@_shared
def check(arguments: list[str]) -> None:
    """Check manifests by the rules of admission, as bursar-webhook review does: without --budgets by those of
    the cluster, where one answers. Exit code: 0 everything is admitted, 1 something is refused, 2 something
    cannot be read."""
    if any(word.partition("=")[0] == "--budgets" for word in arguments):
        _run("check", "review", arguments)
    config_maps = _budgets_of_the_cluster()
    if config_maps is None:
        click.echo("The budgets are not known here, so none is judged: --budgets FILE names them.", err=True)
        _run("check", "review", arguments)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"apiVersion": "v1", "kind": "List", "items": config_maps}, file)
        file.flush()
        run, environment = _command("check", "review", ["--budgets", file.name, *arguments])
        raise SystemExit(subprocess.run(run, env=environment, check=False).returncode)


def _budgets_of_the_cluster() -> list[Any] | None:
    """Its ConfigMaps of budgets; None where no cluster answers, or they may not be read."""
    of = ("configmaps", "-n", NAMESPACE, "--request-timeout", f"{_ANSWER_S}s", "-o", "json")
    try:
        listed = json.loads(Kubectl().run("get", *of, within_s=2 * _ANSWER_S))["items"]
    except (CommandError, ValueError):
        return None
    found = [row for row in listed if _holds_budgets(row["metadata"])]
    return found or None


def _holds_budgets(metadata: Any) -> bool:
    is_labelled = (metadata.get("labels") or {}).get(BUDGETS_LABEL) == "true"
    return is_labelled or metadata["name"] in BUDGET_CONFIG_MAPS


@click.command(cls=WebhookCommand, short_help="Check the cluster's objects")
@click.option("--kubeconfig", metavar="FILE", shell_complete=words.files, help="as kubectl's")
@click.option("--context", metavar="NAME", shell_complete=words.contexts, help="as kubectl's")
@click.option(
    *("-n", "--namespace"),
    metavar="NAME",
    shell_complete=words.namespaces,
    help="read only this namespace; all of them without it",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="read all namespaces, as without -n")
@_output("text", "json")
@click.option("--month", metavar="YYYY-MM", help="whether this month of the ledger is as when it was closed")
@click.option("--use", is_flag=True, help="print what the running pods hold, and would cost in a month")
@_shared
def audit(arguments: list[str]) -> None:
    """Check the cluster's objects by the rules of admission, as bursar-webhook audit does. Exit code: 0 no
    findings, 1 findings, 2 the cluster could not be read. With --month: whether a closed month of the ledger
    is as it was, with the flags of budget; 0 closed and unchanged, 1 changed, 2 nothing is proved."""
    if _is_of_month(arguments):
        month.main(arguments, prog_name="kubectl bursar audit")
    _run("audit", "audit", arguments)


def _is_of_month(arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--month" for word in arguments)


def _run(name: str, command: str, arguments: list[str]) -> None:
    """Replaces this process, so that output and exit code are that command's, which messages call by this
    name. Without -P, Python would take a folder `webhook` where the user is for the package."""
    run, environment = _command(name, command, arguments)
    sys.stdout.flush()
    os.execve(sys.executable, run, environment)  # noqa: S606


def _command(name: str, command: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    run = [sys.executable, "-P", "-m", "webhook", command, *arguments]
    return run, {**os.environ, "BURSAR_PROGRAM": f"kubectl bursar {name}"}
