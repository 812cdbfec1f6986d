"""Which processes coverage traces. One that is killed at the end of its test leaves no data: to trace it only
takes time."""

import os


def environment(traced: bool) -> dict[str, str]:
    """This process's environment; coverage follows where it is ``traced``."""
    return {name: value for name, value in os.environ.items() if traced or not name.startswith("COVERAGE_")}


def variables(traced: bool = True) -> dict[str, str]:
    """What a process that inherits nothing else needs, so that coverage follows."""
    return {name: value for name, value in os.environ.items() if traced and name.startswith("COVERAGE_")}
