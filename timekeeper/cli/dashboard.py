"""``kubectl bursar dashboard``: the timekeeper's pages in a browser."""

import webbrowser
from contextlib import suppress

import click

from timekeeper.cli.away import away
from timekeeper.cli.connection import Options, connected_with_token
from timekeeper.cli.flags import EVERYWHERE, ClusterCommand
from timekeeper.cli.loopback import Loopback, log_in
from timekeeper.cli.output import CommandError
from timekeeper.core.budgets.policy import GROUP


@click.command(cls=ClusterCommand, short_help="Open the dashboard, logged in")
@click.pass_obj
@EVERYWHERE
@click.option(
    "--port", default=0, type=click.IntRange(0, 65_535), metavar="PORT", help="on loopback; 0: any free one"
)
@click.option("--no-browser", is_flag=True, help="print the address only")
def dashboard(options: Options, all_namespaces: bool, port: int, no_browser: bool) -> None:
    """Open budgets, cards, waiting pods, costs and decisions in a browser, logged in, until Ctrl-C."""
    namespace = options.scope(all_namespaces) or ""

    def explain(error: CommandError) -> CommandError:
        return away(options.kubectl, options.system_namespace, error)

    with (
        connected_with_token(options, namespace) as (client, token),
        Loopback(client, log_in(client, token), first_page(options, namespace), port, explain) as server,
    ):
        click.echo(f"{server.address}\nThis address works once. Ctrl-C ends the connection.")
        if not no_browser and not webbrowser.open(server.address):
            click.echo("No browser was found here: open the address yourself.", err=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def first_page(options: Options, namespace: str) -> str:
    """That of the namespace or group. An account of another namespace, as leads of a group have, may see no
    more than what it names, so without a namespace it begins where a namespace or a group is asked for."""
    if not namespace or (not options.namespace and "/" in options.account):
        return "/"
    is_group = namespace.startswith(GROUP)
    return f"/groups/{namespace.removeprefix(GROUP)}" if is_group else f"/namespaces/{namespace}"
