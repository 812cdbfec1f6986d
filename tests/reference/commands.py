"""The commands of ``kubectl bursar``, and the flags of those about the cluster, as ``--help`` prints them."""

from collections.abc import Iterator

import click

from tests.reference.blocks import table
from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.main import cli

NAME = "kubectl bursar"


def connection() -> str:
    """The flags of every command about the cluster."""
    options = [option for option in ClusterCommand("x").params if isinstance(option, click.Option)]
    rows = (
        (_flag(option), f"`{option.envvar}`" if option.envvar else "", option.help or "")
        for option in options
    )
    return table(("flag", "variable", "meaning"), rows)


def leaves(group: click.Group, path: str = NAME) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with their words, by name; a command of two names once."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        elif name == command.name:
            yield f"{path} {name}", command


def _flag(option: click.Option) -> str:
    metavar = option.make_metavar(click.Context(cli)) if not option.is_flag else ""
    return "`" + f"{', '.join(option.opts)} {metavar}".strip() + "`"
