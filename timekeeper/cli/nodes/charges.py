"""``kubectl bursar node charges``: who was charged on a node until when, also where it has left."""

from typing import Any
from urllib.parse import quote

import click

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import EVERYWHERE, FORM, ClusterCommand
from timekeeper.cli.output import Column, Sheet
from timekeeper.core.texts import gpus, hours

_MAX_ROWS = "10000"
_COLUMNS = (
    Column("namespace", "NAMESPACE"),
    Column("group", "GROUP", blank="<none>"),
    Column("pod", "POD"),
    Column("held", "CARDS", True),
    Column("from", "FROM"),
    Column("to", "CHARGED UNTIL", blank="runs"),
    Column("gpuHours", "GPU-HOURS", True),
    Column("why", "WHY"),
)


@click.command(cls=ClusterCommand, short_help="Who was charged on a node until when")
@click.pass_obj
@click.argument("name", metavar="NODE", shell_complete=words.nodes)
@EVERYWHERE
@click.option(
    "--from", "begin", metavar="TIME", help="a time or a day; a day before the node was last heard without it"
)
@click.option("--to", "end", metavar="TIME", help="a time or a day")
@FORM
def charges(
    options: Options, name: str, all_namespaces: bool, begin: str | None, end: str | None, form: str
) -> None:
    """Who was charged for cards of NODE until when, and why no longer; also of a node that is silent or has
    left."""
    namespace = options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        answer = client.get(
            f"/v1/nodes/{quote(name, safe='')}", namespace=namespace, from_=begin, to=end, limit=_MAX_ROWS
        )
    if form == "table":
        click.echo(sentence(answer))
    output.show(sheet(answer, namespace), form)
    if form == "table" and answer["next"]:
        click.echo("There are more: --from, --to and a namespace choose.")


def sentence(answer: Any) -> str:
    """Whether the node is there, and until when it was heard."""
    node, heard, left = answer["node"], _time(answer["heard"]), _time(answer["left"])
    last = f"last heard with a pod on it at {heard}" if heard else "never heard with a pod on it"
    match answer["state"]:
        case "left":
            return f"Node {node} has left: it was {last}, and the API server has no such Node since {left}."
        case "silent":
            return f"Node {node} is silent: it was {last}; the API server still has it."
        case _:
            return f"Node {node} is there; it was {last}."


def sheet(answer: Any, namespace: str | None) -> Sheet:
    """A row for each charge, those that run first, and their sum."""
    rows = [
        {
            **{key: raw[key] for key in ("namespace", "group", "pod", "why")},
            "held": gpus(raw["heldMilli"]),
            "from": _time(raw["from"]),
            "to": _time(raw["to"]),
            "gpuHours": hours(raw["amount"]),
        }
        for raw in answer["charges"]
    ]
    return Sheet(_COLUMNS, tuple(rows), answer, empty=f"no pod held cards there{output.within(namespace)}")


def _time(text: str | None) -> str:
    """The API's time in whole seconds; "" for None."""
    return f"{text[:19]}Z" if text else ""
