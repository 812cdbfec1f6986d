"""The commands of ``kubectl bursar node``; ``charges`` shows the charges on a node, also after it
has left."""

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import click

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import EVERYWHERE, FORM, TIME, ClusterCommand
from timekeeper.cli.nodes.facts import ObservedNode, missing_rights, read_node
from timekeeper.cli.nodes.steps import (
    FRACTIONS,
    WHOLE,
    Plan,
    Planner,
    Step,
    outcome,
    to_fractions,
    to_whole,
    try_it,
)
from timekeeper.cli.output import CommandError, Say, progress
from timekeeper.core.budgets.scalars import duration_ms

_MAX_ROWS = "10000"
_LOOK_S = 1.0
_SHOWN_PODS = 20


@click.command(cls=ClusterCommand, short_help="Who was charged on a node until when")
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
        sheet = client.sheet(form, path, namespace=namespace, from_=begin, to=end, limit=_MAX_ROWS)
    output.show(sheet, form, output.within(namespace))


class NodeCommand(ClusterCommand):
    """A command that asks the API server alone."""

    without = frozenset(
        (
            "account",
            "server",
            "extender",
            "token_file",
            "ca_file",
            "system_namespace",
            "namespace",
            "aggregated",
        )
    )


@click.group(short_help="Who was charged on a node; give it to fractions, and take it back")
def node() -> None:
    """Who was charged on a node until when. Give a node of NVIDIA's device plugin to fractions of cards, and
    take it back."""


node.add_command(charges)


def _changing(command: Callable[..., None]) -> click.Command:
    """A command of the group that changes a node, with its flags."""
    for each in (
        click.option(
            "--timeout", default="15m", show_default=True, metavar="DURATION", help="how long it waits in all"
        ),
        click.option("--wait", is_flag=True, help="wait until the pods in the way have ended"),
        click.option("--dry-run", is_flag=True, help="print each step, and change nothing"),
        click.argument("name", metavar="NODE", shell_complete=words.nodes),
        click.pass_obj,
    ):
        command = each(command)
    return node.command(cls=NodeCommand)(command)


@_changing
def fractions(options: Options, name: str, dry_run: bool, wait: bool, timeout: str) -> None:
    """Take NVIDIA's device plugin off NODE, so that Bursar gives out parts of its cards. Pods with cards must
    end first: without --wait they are named, and nothing changes."""
    _change(options, name, FRACTIONS, dry_run, wait, timeout)


@_changing
def whole(options: Options, name: str, dry_run: bool, wait: bool, timeout: str) -> None:
    """Give NODE back to NVIDIA's device plugin. Pods on its cards must end first."""
    _change(options, name, WHOLE, dry_run, wait, timeout)


def _change(options: Options, name: str, goal: str, dry_run: bool, wait: bool, timeout: str) -> None:
    within_s = _seconds(timeout)
    planner = to_fractions if goal == FRACTIONS else to_whole
    facts = replace(read_node(options.kubectl, name), may_not=missing_rights(options.kubectl))
    plan = planner(facts)
    if dry_run:
        _print(plan)
        return
    if plan.problems:
        raise CommandError("\n".join(plan.problems))
    for note in plan.notes:
        click.echo(note)
    if not wait:
        _refuse(plan, f"nothing was changed; --wait waits for them: {_again(goal, name)} --wait")
    with progress() as say:
        facts = _carry_out(options, name, planner, within_s, wait, say)
    for sentence in outcome(facts):
        click.echo(sentence)
    if facts.closed:
        raise CommandError("the node is closed, and no GPU pod is placed there")
    click.echo(try_it(goal))


def _carry_out(
    options: Options, name: str, planner: Planner, within_s: float, wait: bool, say: Say
) -> ObservedNode:
    """Does or awaits one step after another, each from a new look at the cluster. Raises CommandError where
    one takes longer, and where, without ``wait``, a pod came in between."""
    ends = time.monotonic() + within_s
    said = ""
    while True:
        facts = read_node(options.kubectl, name)
        plan = planner(facts)
        step = next((each for each in plan.steps if not each.is_done), None)
        if step is None:
            return facts
        if not wait:
            _refuse(plan, "the node stays cordoned; the same command goes on once they have ended")
        if time.monotonic() > ends:
            raise CommandError(f"not within the time: {step.sentence}; the same command goes on from here")
        is_new = step.sentence != said
        if is_new:
            click.echo(_shown(step))
            said = step.sentence
        say(step.sentence)
        if not (step.command and is_new):
            time.sleep(_LOOK_S)  # also where the kubelet has written back what a command removed
        if step.command:
            options.kubectl.run(*step.command)


def _refuse(plan: Plan, then: str) -> None:
    """Raises CommandError where pods must end first."""
    pods = [each for step in plan.steps for each in step.pods]
    if pods:
        raise CommandError(f"{len(pods)} pods must end first: {_listed(pods)}; {then}")


def _listed(pods: list[str]) -> str:
    more = len(pods) - _SHOWN_PODS
    return ", ".join(pods[:_SHOWN_PODS]) + (f" and {more} more" if more > 0 else "")


def _print(plan: Plan) -> None:
    """Every step, and what it would touch."""
    for problem in plan.problems:
        click.echo(f"It cannot be done: {problem}.")
    for note in plan.notes:
        click.echo(note)
    for number, step in enumerate(plan.steps, 1):
        click.echo(f"{number}. {_shown(step)}")


def _shown(step: Step) -> str:
    lead = "done: " if step.is_done else "" if step.command else "wait: "
    pods = f": {_listed(list(step.pods))}" if step.pods else ""
    command = f"\n   kubectl {shlex.join(step.command)}" if step.command and not step.is_done else ""
    return f"{lead}{step.sentence}{pods}{command}"


def _again(goal: str, name: str) -> str:
    return f"kubectl bursar node {goal} {name}"


def _seconds(text: str) -> float:
    try:
        return duration_ms(text) / 1000
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from error
