"""``kubectl bursar would``: what enforcement would have done with pods of metered namespaces."""

import click

from timekeeper.cli import output, words
from timekeeper.cli.client import MAX_ROWS
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import EVERYWHERE, FORM, TIME, ClusterCommand


@click.command(cls=ClusterCommand, unless=("name",), short_help="What enforcement would have done")
@click.pass_obj
@click.argument("name", required=False, metavar="[NAMESPACE]", shell_complete=words.namespaces)
@EVERYWHERE
@click.option("--from", "begin", type=TIME, help="a time, a day, or 7d or 36h ago; four weeks without it")
@click.option("--to", "end", type=TIME, help="a time, a day, or 7d or 36h ago")
@FORM
def would(
    options: Options, name: str | None, all_namespaces: bool, begin: str | None, end: str | None, form: str
) -> None:
    """Which pods of namespaces in mode meter or observe would have been refused, demoted, held or evicted, by
    namespace and week."""
    if name and all_namespaces:
        raise click.UsageError("--all-namespaces and a name exclude each other")
    namespace = name or options.scope(all_namespaces)
    with connected(options, namespace or "") as client:
        sheet = client.sheet(
            form, "/v1/would", "rows", namespace=namespace, from_=begin, to=end, limit=str(MAX_ROWS)
        )
    output.show(sheet, form, output.within(namespace))
