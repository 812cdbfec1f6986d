"""docs/cli-reference.md: every command of ``kubectl bursar`` with its arguments and flags, from the code.

``python -m tests.cli.reference_page`` writes it anew.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "cli-reference.md"
NAME = "kubectl bursar"
HEAD = """\
# Commands of kubectl bursar

Every command with its flags, as `--help` prints them; `python -m tests.cli.reference_page` writes this page
from the code. What the commands are for, accounts and exit codes: [cli.md](cli.md).

"""


def generated() -> str:
    """The page."""
    common: set[str | None] = {each.name for each in ClusterCommand("x").params}
    parts = [_section(path, command, common) for path, command in leaves(cli)]
    flags = "\n".join(_row(each) for each in ClusterCommand("x").params)
    cluster = "## Flags of every command about the cluster\n\n| flag | variable | meaning |\n|---|---|---|\n"
    return HEAD + "\n".join(parts) + "\n" + cluster + flags + "\n"


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
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in common]
    is_remote = isinstance(command, ClusterCommand)
    usage = " ".join([path, *(["[FLAGS]"] if own or is_remote else []), *arguments])
    about = " ".join((command.help or "").split())
    cluster = " It takes the flags of every command about the cluster." if is_remote else ""
    table = (
        "\n| flag | meaning |\n|---|---|\n" + "".join(f"{_own_row(each)}\n" for each in own) if own else ""
    )
    return f"## `{path.removeprefix(NAME).strip()}`\n\n```text\n{usage}\n```\n\n{about}{cluster}\n{table}"


def _own_row(option: click.Option) -> str:
    name = ", ".join(option.opts)
    metavar = option.make_metavar(click.Context(cli)) if not option.is_flag else ""
    default = f"; without it `{option.default}`" if option.show_default and option.default else ""
    required = "; required" if option.required else ""
    return f"| `{_cell(f'{name} {metavar}'.strip())}` | {_cell(option.help or '')}{default}{required} |"


def _row(parameter: click.Parameter) -> str:
    assert isinstance(parameter, click.Option)
    return _own_row(parameter).replace("` | ", f"` | {_variable(parameter)} | ", 1)


def _variable(option: click.Option) -> str:
    return f"`{option.envvar}`" if option.envvar else ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(generated())
