"""Which processes coverage traces. One that is killed at the end of its test leaves no data: to trace it only
takes time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import coverage


@contextmanager
def paused() -> Iterator[None]:
    """Coverage traces neither this process nor those that it starts meanwhile."""
    running = coverage.Coverage.current()
    if running is None:
        yield
        return
    inherited = variables()
    for name in inherited:
        del os.environ[name]
    running.stop()
    try:
        yield
    finally:
        running.start()
        os.environ.update(inherited)


def environment(traced: bool) -> dict[str, str]:
    """This process's environment; coverage follows where it is ``traced``."""
    return {name: value for name, value in os.environ.items() if traced or not name.startswith("COVERAGE_")}


def variables(traced: bool = True) -> dict[str, str]:
    """What a process that inherits nothing else needs, so that coverage follows."""
    return {name: value for name, value in os.environ.items() if traced and name.startswith("COVERAGE_")}
