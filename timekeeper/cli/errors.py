"""What ends a command with a sentence."""

import click


class CommandError(click.ClickException):
    """The command cannot go on; the text says what is wrong and what to do. Exit code 1."""


class RefusedError(CommandError):
    """The server refused a request (4xx), so it has changed nothing."""
