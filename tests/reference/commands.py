"""Every command of ``kubectl bursar`` with its arguments and flags, as ``--help`` prints them."""

from collections.abc import Iterable, Iterator

import click

from tests.reference.blocks import table
from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.main import cli

NAME = "kubectl bursar"
SEVERAL = 4  # commands; a flag that so many take in one meaning is in one table

# whose flags settings.md explains, for the command runs that one
RUNS = {
    "audit": "[`bursar-webhook audit`](settings.md#bursar-webhook-audit)",
    "node whole": "`node fractions`",
    "check": "[`bursar-webhook review`](settings.md#bursar-webhook-review)",
}

Row = tuple[str, str]  # a flag, and its meaning


def commands() -> str:
    """Each command, the flags of those about the cluster, and those of several commands."""
    common: set[str | None] = {each.name for each in ClusterCommand("x").params}
    all_ = list(leaves(cli))
    shared = {row for row, among in _takers(all_, common).items() if len(among) >= SEVERAL}
    parts = [_section(path, command, common, shared) for path, command in all_]
    options = [each for each in ClusterCommand("x").params if isinstance(each, click.Option)]
    rows = ((_flag(each), f"`{each.envvar}`" if each.envvar else "", _meaning(each)) for each in options)
    local = ", ".join(
        f"`{_short(path)}`" for path, command in all_ if not isinstance(command, ClusterCommand)
    )
    cluster = f"\n## Flags of every command about the cluster\n\nOf all commands but {local}:\n\n"
    takers = _takers(all_, common).items()
    several = ((*row, ", ".join(f"`{each}`" for each in among)) for row, among in takers if row in shared)
    return (
        "\n".join(parts)
        + cluster
        + table(("flag", "variable", "meaning"), rows)
        + "\n## Flags of several commands\n\n"
        + table(("flag", "meaning", "of"), several)
    )


def _takers(all_: Iterable[tuple[str, click.Command]], common: set[str | None]) -> dict[Row, list[str]]:
    """Of each flag with its meaning, the commands that take it."""
    found: dict[Row, list[str]] = {}
    for path, command in all_:
        for each in _own(command, common):
            found.setdefault((_flag(each), _meaning(each)), []).append(_short(path))
    return found


def _own(command: click.Command, common: set[str | None]) -> list[click.Option]:
    """The flags of a command beside those of every command about the cluster."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return [each for each in options if not isinstance(command, ClusterCommand) or each.name not in common]


def _short(path: str) -> str:
    return path.removeprefix(NAME).strip()


def leaves(group: click.Group, path: str = NAME) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with their words, by name; a command of two names once."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        elif name == command.name:
            yield f"{path} {name}", command


def _section(path: str, command: click.Command, common: set[str | None], shared: set[Row]) -> str:
    context = click.Context(command, info_name=path)
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    rows = [(_flag(each), _meaning(each)) for each in _own(command, common)]
    usage = " ".join([_short(path), *arguments])
    about = " ".join((command.help or "").split())
    if (runs := RUNS.get(_short(path))) is not None:
        return f"## `{usage}`\n\n{about} Flags: those of {runs}.\n"
    lacks = _lacks(command) if isinstance(command, ClusterCommand) else ""
    own = [row for row in rows if row not in shared]
    flags = "\n" + table(("flag", "meaning"), own) if own else ""
    return f"## `{usage}`\n\n{about}{lacks}\n{flags}"


def _lacks(command: click.Command) -> str:
    """A sentence on the flags of every command about the cluster that it does not take."""
    own = {each.name for each in command.params}
    lacks = [f"`{max(each.opts, key=len)}`" for each in ClusterCommand("x").params if each.name not in own]
    return f" It does not take {', '.join(lacks)}." if lacks else ""


def _flag(option: click.Option) -> str:
    metavar = option.make_metavar(click.Context(cli)) if not option.is_flag else ""
    return "`" + f"{', '.join(option.opts)} {metavar}".strip() + "`"


def _meaning(option: click.Option) -> str:
    default = f"; without it `{option.default}`" if option.show_default and option.default else ""
    return f"{option.help or ''}{default}{'; required' if option.required else ''}"
