"""Every command of ``kubectl bursar`` with its arguments and flags, as ``--help`` prints them."""

from collections.abc import Iterator

import click

from tests.reference.blocks import table
from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.main import cli

NAME = "kubectl bursar"


def commands() -> str:
    """Each command, and the flags of those about the cluster."""
    common: set[str | None] = {each.name for each in ClusterCommand("x").params}
    parts = [_section(path, command, common) for path, command in leaves(cli)]
    shared = [each for each in ClusterCommand("x").params if isinstance(each, click.Option)]
    rows = ((_flag(each), f"`{each.envvar}`" if each.envvar else "", _meaning(each)) for each in shared)
    cluster = "\n## Flags of every command about the cluster\n\n"
    return "\n".join(parts) + cluster + table(("flag", "variable", "meaning"), rows)


def leaves(group: click.Group, path: str = NAME) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with their words, by name."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(path: str, command: click.Command, common: set[str | None]) -> str:
    context = click.Context(command, info_name=path)
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    is_remote = isinstance(command, ClusterCommand)
    options = [each for each in command.params if isinstance(each, click.Option)]
    own = [each for each in options if not is_remote or each.name not in common]
    usage = " ".join([path, *(["[FLAGS]"] if own or is_remote else []), *arguments])
    about = " ".join((command.help or "").split())
    cluster = f" It takes the flags of every command about the cluster{_but(command)}." if is_remote else ""
    flags = "\n" + table(("flag", "meaning"), ((_flag(each), _meaning(each)) for each in own)) if own else ""
    return f"## `{path.removeprefix(NAME).strip()}`\n\n```text\n{usage}\n```\n\n{about}{cluster}\n{flags}"


def _but(command: click.Command) -> str:
    """The flags that it lacks, for a sentence."""
    own = {each.name for each in command.params}
    lacks = [f"`{max(each.opts, key=len)}`" for each in ClusterCommand("x").params if each.name not in own]
    return f", but not {', '.join(lacks)}" if lacks else ""


def _flag(option: click.Option) -> str:
    metavar = option.make_metavar(click.Context(cli)) if not option.is_flag else ""
    return "`" + f"{', '.join(option.opts)} {metavar}".strip() + "`"


def _meaning(option: click.Option) -> str:
    default = f"; without it `{option.default}`" if option.show_default and option.default else ""
    return f"{option.help or ''}{default}{'; required' if option.required else ''}"
