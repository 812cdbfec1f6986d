"""The command line of ``kubectl bursar``."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import quote

import click
from click.core import ParameterSource

from timekeeper.cli import bill, output, words
from timekeeper.cli.client import BILL, FOCUS, MAX_ROWS
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.dashboard import dashboard
from timekeeper.cli.examples import add_examples
from timekeeper.cli.flags import (
    BILL_FORM,
    EVERYWHERE,
    FORM,
    MINUS,
    TIME,
    AmountCommand,
    ClusterCommand,
    ConnectionGroup,
    by_columns,
)
from timekeeper.cli.months import correct
from timekeeper.cli.output import CommandError, RefusedError
from timekeeper.cli.save.command import save
from timekeeper.cli.simulation import simulate
from timekeeper.cli.top import top
from timekeeper.cli.unknown import check_node, check_subject, with_suspension
from timekeeper.cli.webhook_commands import audit, check
from timekeeper.cli.would import would
from timekeeper.core import __version__
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.decisions import KINDS
from timekeeper.core.texts import is_unknown

_OF_LEADS = "The lead of a group passes its hours on, and takes them back, with --group NAME."


@click.group(cls=ConnectionGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl bursar")
def cli() -> None:
    """Budgets of GPU time, their use, and the state of Bursar in this cluster."""


@cli.command(cls=ClusterCommand, unless=("names",), short_help="Budgets: granted, used, left")
@click.pass_obj
@click.argument("names", nargs=-1, metavar="[NAMESPACE | _group.NAME]...", shell_complete=words.subjects)
@EVERYWHERE
@FORM
def budget(options: Options, names: tuple[str, ...], all_namespaces: bool, form: str) -> None:
    """What each namespace has been granted, has used, and has left. -A lists those with a budget, and -n
    _group.NAME a group with its namespaces; usage -A lists all that were charged."""
    key = "" if all_namespaces else options.namespace
    if all_namespaces or key.startswith(GROUP):
        if names:
            raise click.UsageError("--all-namespaces and a name exclude each other")
        with connected(options, key) as client:
            group = key.removeprefix(GROUP) or None
            sheet = client.sheet(form, "/v1/budgets", "groups", "budgets", group=group)
        output.show(sheet, form, output.within(key))
        return
    wanted = names or (options.one_namespace(),)
    home = wanted[0] if len(set(wanted)) == 1 else ""
    with connected(options, home) as client:
        found = {name: client.sheet(form, f"/v1/budgets/{quote(name, safe='')}") for name in wanted}
    is_object = form in output.OBJECTS
    absent = [
        name for name, each in found.items() if (is_unknown(each.answer) if is_object else not each.rows)
    ]
    sheets = [each for name, each in found.items() if name not in absent]
    if sheets:
        output.show(sheets[0] if len(wanted) == 1 else output.joined(sheets), form)
    if absent:
        have = "has no budget and uses" if len(absent) == 1 else "have no budget and use"
        raise CommandError(f"{', '.join(absent)} {have} nothing. -A lists the names with one.")


@cli.command(cls=ClusterCommand, name="usage", short_help="Charges of a time, grouped")
@click.pass_obj
@EVERYWHERE
@click.option("--from", "begin", type=TIME, help="a time, a day, or 7d or 36h ago; this month without it")
@click.option("--to", "end", type=TIME, help="a time, a day, or 7d or 36h ago")
@click.option("--month", metavar="YYYY-MM", help="a month, in place of --from and --to")
@by_columns("namespace")
@click.option("--by", type=click.Choice(("hour", "day", "month")), help="a row for each")
@click.option("--use", is_flag=True, help="also what was requested, and how busy it was")
@FORM
def used(
    options: Options,
    all_namespaces: bool,
    begin: str | None,
    end: str | None,
    month: str | None,
    group: str,
    by: str | None,
    use: bool,
    form: str,
) -> None:
    """What was charged in a time, by namespace, owner, workload, pod, node, model or label."""
    namespace = options.scope(all_namespaces)
    is_file = form == "csv"  # all rows, which the server has in pages where it does not sort them
    with connected(options, namespace or "") as client:
        sheet = client.sheet(
            form,
            "/v1/usage",
            "rows",
            namespace=namespace,
            from_=begin,
            to=end,
            month=month,
            group=group,
            by=by,
            sort=None if by or is_file else "-gpuHours",
            use="true" if use else None,
        )
    if is_file and not by:
        try:
            rows = sorted(sheet.rows, key=lambda row: -Decimal(row["gpuHours"] or 0))
        except InvalidOperation as error:
            raise CommandError("the timekeeper is older than this command; -o json is exact") from error
        sheet = replace(sheet, rows=tuple(rows))
    elif not by and len(sheet.rows) >= MAX_ROWS:
        said = f"Only the {MAX_ROWS} largest are listed, and there may be more: -o csv has all."
        sheet = replace(sheet, warnings=(*sheet.warnings, said))
    output.show(sheet, form)


@cli.command(cls=ClusterCommand, short_help="The month's bill")
@click.pass_obj
@EVERYWHERE
@click.option("--month", metavar="YYYY-MM", help="this month so far without it")
@by_columns("namespace,owner")
@BILL_FORM
def report(options: Options, all_namespaces: bool, month: str | None, group: str, form: str) -> None:
    """The month's bill: hours, price, cost, and their total, by cost within a currency. csv and focus are for
    spreadsheets and tools, and have no total."""
    namespace = options.scope(all_namespaces)
    asked, columns = {"format": "csv", "use": "true", "group": group, "sort": "-gpuHours"}, BILL
    if form == output.FOCUS:
        if click.get_current_context().get_parameter_source("group") is not ParameterSource.DEFAULT:
            raise click.UsageError("--group and -o focus exclude each other: FOCUS has columns of its own")
        asked, columns = {"format": "focus-csv"}, FOCUS
    with connected(options, namespace or "") as client:
        text = client.csv("/v1/usage", columns, namespace=namespace, month=month, **asked)
    if form in ("csv", output.FOCUS):
        print(text, end="")
    else:
        output.show(bill.bill(text), form)


@cli.command(cls=ClusterCommand, unless=("subject", "group"), short_help="Grants of a namespace or group")
@click.pass_obj
@click.argument("subject", required=False, metavar="[NAMESPACE | _group.NAME]", shell_complete=words.subjects)
@EVERYWHERE
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=words.groups,
    help="what this group has passed on to its namespaces",
)
@FORM
def grants(options: Options, subject: str | None, all_namespaces: bool, group: str | None, form: str) -> None:
    """The grants of a namespace or group, the newest last; or how a group's budget is split."""
    if sum((bool(subject), all_namespaces, bool(group))) > 1:
        raise click.UsageError("a name, --all-namespaces and --group exclude each other")
    if group:
        with connected(options, f"{GROUP}{group}") as client:
            sheet = client.sheet(form, f"/v1/groups/{quote(group)}/grants")
        output.show(sheet, form)
        return
    wanted = subject or options.scope(all_namespaces)
    with connected(options, wanted or "") as client:
        sheet = client.list(form, "/v1/grants", "grants", subject=wanted)
    output.show(sheet, form)


@cli.command(cls=AmountCommand, without=("namespace",), short_help="Grant, move or take back GPU-hours")
@click.pass_obj
@click.argument("subject", metavar="NAMESPACE | _group.NAME", shell_complete=words.subjects)
@click.argument("gpu_hours", metavar="GPU_HOURS")
@click.option("--reason", required=True, help="stored with the grant")
@click.option(
    "--from",
    "giver",
    metavar="NAMESPACE",
    shell_complete=words.namespaces,
    help="move the hours from this namespace of the same group",
)
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=words.groups,
    help="pass the hours on from this group's budget; negative ones are taken back",
)
@click.option("--correction", is_flag=True, help="a correction; a negative one takes a grant back")
@click.option(
    "--key", default="", metavar="TEXT", help="the key of an earlier try, so that nothing is granted twice"
)
@FORM
def grant(
    options: Options,
    subject: str,
    gpu_hours: str,
    reason: str,
    giver: str | None,
    group: str | None,
    correction: bool,
    key: str,
    form: str,
) -> None:
    """Grant GPU-hours for the running period."""
    if sum((bool(giver), bool(group), correction)) > 1:
        raise click.UsageError("--from, --group and --correction exclude each other")
    amount = gpu_hours.replace(MINUS, "-")
    path, body = "/v1/grants", {"subject": subject, "gpuHours": amount, "reason": reason}
    if group:
        path, body = f"/v1/groups/{quote(group)}/grants", {"namespace": body.pop("subject"), **body}
    if correction:
        body["kind"] = "correction"
    if giver:
        body["from"] = giver
    try:
        with connected(options, "", writes=True) as client:
            sheet = client.post_once(form, path, body, "grants", key, "granting twice")
    except RefusedError as error:
        if group or "answered 403" not in error.message:
            raise
        raise RefusedError(f"{error.message}\n{_OF_LEADS}") from error
    output.show(sheet, form)


@cli.command(cls=ClusterCommand, short_help="Why a pod waits, was refused or charged")
@click.pass_obj
@click.argument("target", metavar="POD | KIND/NAME", shell_complete=words.pods_and_controllers)
@click.option("--uid", default=None, metavar="UID", help="of one pod among several of this name")
@FORM
def explain(options: Options, target: str, uid: str | None, form: str) -> None:
    """Why a pod was refused, placed, evicted or charged, or why it waits; KIND/NAME for a controller's pods,
    claim/NAME for a device claim. Its other name is why. Exit code 1 where neither the ledger nor the API
    server knows it."""
    namespace = options.one_namespace()
    with connected(options, namespace) as client:
        path = f"/v1/explain/{quote(namespace)}/{quote(target)}"
        sheet, answer = client.answered(form, path, uid=uid)
        check_subject(client, options.kubectl, answer)
        sheet = with_suspension(client, options.kubectl, sheet, answer)
    output.show(sheet, form)


cli.add_command(explain, "why")
cli.add_command(simulate)


@cli.command(name="decisions", cls=ClusterCommand, short_help="Decisions about pods and budgets")
@click.pass_obj
@EVERYWHERE
@click.option(
    "--kind",
    default=None,
    metavar="KIND",
    shell_complete=words.kinds,
    help="such as refused, placed or evicted",
)
@click.option("--pod", default=None, metavar="NAME", shell_complete=words.pods, help="about this pod alone")
@click.option("--from", "begin", type=TIME, help="a time, a day, or 7d or 36h ago")
@click.option("--to", "end", type=TIME, help="a time, a day, or 7d or 36h ago")
@click.option(
    "--most",
    default=100,
    show_default=True,
    type=click.IntRange(1, MAX_ROWS),
    metavar="NUMBER",
    help="how many, the newest",
)
@FORM
def decided(
    options: Options,
    all_namespaces: bool,
    kind: str | None,
    pod: str | None,
    begin: str | None,
    end: str | None,
    most: int,
    form: str,
) -> None:
    """What was decided about pods and budgets, the newest first."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        asked = {"namespace": namespace, "kind": kind, "pod": pod, "from_": begin, "to": end}
        sheet = client.sheet(form, "/v1/decisions", "decisions", most=most, **asked)
    known = f"; {kind} is none of the kinds {', '.join(KINDS)}" if kind and kind not in KINDS else ""
    output.show(sheet, form, known)


@cli.command(cls=ClusterCommand, short_help="Pods behind Bursar's scheduling gate")
@click.pass_obj
@EVERYWHERE
@FORM
def held(options: Options, all_namespaces: bool, form: str) -> None:
    """The pods that wait behind Bursar's scheduling gate, in the order of their release."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        sheet = client.list(form, "/v1/held", "held", namespace=namespace)
    output.show(sheet, form, output.within(namespace))


@cli.command(
    name="map", cls=ClusterCommand, without=("namespace",), short_help="Every card, and the pods on it"
)
@click.pass_obj
@click.option("--node", default=None, metavar="NAME", shell_complete=words.nodes, help="only this node")
@FORM
def map_(options: Options, node: str | None, form: str) -> None:
    """Every card with what is given out of it, and the pods on it, the fullest nodes first, as the extender
    posted them last."""
    with connected(options, "") as client:
        if node:
            check_node(client, options.kubectl, node)
        sheet = client.list(form, "/v1/cluster", "nodes", node=node)
    output.show(sheet, form)


@cli.command(cls=ClusterCommand, short_help="Cards that are free now, by model")
@click.pass_obj
@click.option("-l", "--selector", metavar="SELECTOR", help="only nodes with such labels: pool=h100")
@EVERYWHERE
@FORM
def free(options: Options, selector: str | None, all_namespaces: bool, form: str) -> None:
    """The cards of all nodes that are free now, whole and in parts, and on how many nodes 1, 2, 4 and 8 whole
    ones are. With -A by the right to read all namespaces, else by that to read one."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        sheet = client.sheet(form, "/v1/free", "models", namespace=namespace, labelSelector=selector)
    output.show(sheet, form)


@cli.command(cls=ClusterCommand, short_help="GPU pods that are not bound, and why")
@click.pass_obj
@click.argument("pod", required=False, metavar="[POD]", shell_complete=words.pods)
@EVERYWHERE
@FORM
def waiting(options: Options, pod: str | None, all_namespaces: bool, form: str) -> None:
    """The GPU pods that are not bound, and why, as the extender posted them last."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        sheet = client.sheet(form, "/v1/waiting", "pods", namespace=namespace, pod=pod)
    why = f": {pod} is bound, or there is no such pod" if pod else ""
    output.show(sheet, form, f"{output.within(namespace)}{why}")


@cli.group(short_help="Who was charged on a node until when")
def node() -> None:
    """What the ledger says of a node."""


@node.command(cls=ClusterCommand, short_help="Who was charged on a node until when")
@click.pass_obj
@click.argument("name", metavar="NODE", shell_complete=words.nodes)
@EVERYWHERE
@click.option(
    "--from",
    "begin",
    type=TIME,
    help="a time, a day, or 7d or 36h ago; without it a day before the node was last heard",
)
@click.option("--to", "end", type=TIME, help="a time, a day, or 7d or 36h ago")
@FORM
def charges(
    options: Options, name: str, all_namespaces: bool, begin: str | None, end: str | None, form: str
) -> None:
    """Who was charged for cards of NODE until when, and why no longer; also of a node that is silent or has
    left."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        path = f"/v1/nodes/{quote(name, safe='')}"
        asked: Any = {"namespace": namespace, "from_": begin, "to": end, "limit": str(MAX_ROWS)}
        if form in output.OBJECTS:
            sheet = output.PrintedSheet(answer=client.whole(path, "charges", **asked))
        else:
            sheet = client.sheet(form, path, **asked)
    output.show(sheet, form, output.within(namespace))


@cli.command(cls=ClusterCommand, without=("namespace",), short_help="What is wrong, and what mends it")
@click.pass_obj
@FORM
def doctor(options: Options, form: str) -> None:
    """What is missing or wrong in this cluster, in order, and the command that mends it; exit code 1 if it
    found an error."""
    from timekeeper.cli.doctor.checks import examine  # a third of what all commands import

    sheet, failed = examine(options)
    output.show(sheet, form)
    if failed:
        raise SystemExit(1)


cli.add_command(check)
cli.add_command(audit)
cli.add_command(correct)
cli.add_command(save)
cli.add_command(top)
cli.add_command(would)
cli.add_command(dashboard)
add_examples(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; exit codes: 0 success, 1 failure, 2 a wrong command line. Output that cannot be written
    is a failure, without a word where its reader has closed the pipe."""
    try:
        try:
            cli(arguments, prog_name="kubectl bursar")
        finally:
            if sys.stdout is not None:  # None: it was closed before the start
                sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is not written yet
        if not isinstance(error, BrokenPipeError):
            print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
