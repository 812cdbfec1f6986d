"""A plugin of pytest (`-p tests.support.touched`): the tests of what a change touches come first, and after a
number of minutes no file of tests begins.

`.ci/run` has 90 minutes, also on a slow machine. A run that ends early names the files that it left out, and
fails where the change touches one of them.
"""

import subprocess
import time
from pathlib import Path

import pytest

# what a path begins with -> the roles whose tests try it; the first row that fits counts
ROLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("webhook/", ("webhook", "story")),
    ("scheduler_ext/", ("scheduler_ext", "story")),
    ("sidecar/node/", ("node", "kubelet", "story")),
    ("sidecar/", ("sidecar", "kubelet", "story")),
    ("timekeeper/cli/", ("cli",)),
    ("timekeeper/core/", ("core", "webhook", "scheduler_ext", "timekeeper", "story")),
    ("timekeeper/edge/", ("runtime", "webhook", "scheduler_ext", "timekeeper", "node", "story")),
    ("timekeeper/runtime/", ("runtime", "webhook", "scheduler_ext", "timekeeper", "story")),
    ("timekeeper/", ("timekeeper", "story")),
    ("migrations/", ("timekeeper",)),
    ("deploy/local/", ("local", "kubelet")),
    ("deploy/", ("deploy", "docs")),
    ("docs/", ("docs",)),
)


def touches(changed: set[str], file: str) -> bool:
    """Whether a change of these paths touches this file of tests: it is one of them, or tries one of them."""
    role = file.split("/")[1]
    return file in changed or any(role in roles_of(path) for path in changed)


def roles_of(path: str) -> tuple[str, ...]:
    """The roles of tests that try what is in this path."""
    if path.startswith("tests/"):
        part, name = path.split("/")[1], path.rpartition("/")[2]
        return () if name.startswith("test_") else (part,)  # what a role's tests share
    return next((roles for start, roles in ROLES if path.startswith(start)), ())


def changed_since(commit: str, root: Path) -> set[str]:
    """The paths that differ between this commit and the working tree."""
    command = ["git", "diff", "--name-only", commit, "--"]
    return set(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split())


class Touched:
    """The plugin. ``left``: the files that were not begun in time; the scheduler of the workers fills it."""

    def __init__(self, changed: set[str], minutes: float) -> None:
        self._changed = changed
        self._until = time.monotonic() + minutes * 60
        self.left: list[str] = []

    def is_over(self) -> bool:
        """Whether no file of tests may begin any more."""
        return time.monotonic() >= self._until

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What is touched comes first, and otherwise the order stays."""
        files = {item.nodeid.partition("::")[0] for item in items}
        first = {file for file in files if touches(self._changed, file)}
        items.sort(key=lambda item: item.nodeid.partition("::")[0] not in first)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that left out what is touched has failed; one that left out all else has not."""
        if self.left and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = int(any(touches(self._changed, file) for file in self.left))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Names what was left out."""
        for file in self.left:
            why = "; this change touches it" if touches(self._changed, file) else ""
            terminalreporter.write_line(f"not run, for the time was over: {file}{why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both are needed."""
    parser.addoption("--touched-since", required=True)
    parser.addoption("--minutes", type=float, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin under the name by which the workers' scheduler asks for it."""
    changed = changed_since(config.getoption("touched_since"), config.rootpath)
    config.pluginmanager.register(Touched(changed, config.getoption("minutes")), NAME)


NAME = "touched-first"
