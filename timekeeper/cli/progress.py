"""What a command waits for, on the terminal of standard error while it waits."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

Say = Callable[[str], None]
_REFRESHES = 8  # a second


def silent(text: str) -> None:
    """Shows nothing."""


@contextmanager
def progress() -> Iterator[Say]:
    """A line that each text replaces and that is gone at the end; rich writes none where standard error is no
    terminal. What a command prints meanwhile goes where it goes without the line."""
    spinner = Spinner("dots")
    line = Live(
        spinner,
        console=Console(file=sys.stderr),
        refresh_per_second=_REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with line:
        yield lambda text: spinner.update(text=Text(text))
