"""What ends a command with a sentence."""

import click


class CommandError(click.ClickException):
    """The command cannot go on; the text says what is wrong and what to do. Exit code 1."""


class RefusedError(CommandError):
    """The server refused a request (4xx), so it has changed nothing."""


def unreadable(shown: str, error: OSError | UnicodeDecodeError) -> CommandError:
    """What is raised where a file cannot be read. ``shown``: what the sentence calls it."""
    return CommandError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}")
