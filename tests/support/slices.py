"""A plugin of pytest (`-p tests.support.slices`): the deep tests in slices of at most 20 minutes.

A slice begins with what no slice of this commit has finished, and starts no test after its first 15 minutes.
A test that the end of a slice interrupts is the first of the next one, where it has all the minutes.
"""

import json
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "build" / "soak.jsonl"
_SLICE_S = 20 * 60
_STARTS_FOR = 0.75  # of a slice
_INTERRUPTED_AT = 0.97


@dataclass(slots=True)
class Progress:
    """What the slices of a commit have finished: its first line names the commit, each other line an outcome;
    the last one of a test counts."""

    file: Path
    commit: str
    outcomes: dict[str, str] = field(default_factory=dict)  # passed, failed, skipped or interrupted

    @classmethod
    def of(cls, file: Path, commit: str) -> "Progress":
        """As the file has it; nothing, where it is of another commit."""
        lines = file.read_text().splitlines() if file.exists() else []
        if not lines or json.loads(lines[0]) != commit:
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(commit) + "\n")
            return cls(file, commit)
        return cls(file, commit, dict(json.loads(line) for line in lines[1:]))

    def write(self, test: str, outcome: str) -> None:
        """Add an outcome; it stays whatever happens next."""
        self.outcomes[test] = outcome
        with self.file.open("a") as file:
            file.write(json.dumps([test, outcome]) + "\n")

    def of_outcome(self, outcome: str) -> list[str]:
        """The tests with this outcome."""
        return [test for test, last in self.outcomes.items() if last == outcome]

    def is_done(self, test: str) -> bool:
        """Whether no slice needs to start it again."""
        return self.outcomes.get(test, "interrupted") != "interrupted"


def is_deep(item: pytest.Item) -> bool:
    """Whether `make soak` runs more of this test than `make test` does."""
    if "cluster" in item.keywords or "soak" in item.keywords:
        return "soak" in item.keywords
    module = vars(getattr(item, "module", None) or object)
    is_property = hasattr(getattr(item, "obj", None), "hypothesis")
    return is_property or "examples" in module or "IS_SOAK" in module


class Slices:
    """The plugin, for one slice of so many seconds."""

    def __init__(self, progress: Progress, slice_s: float) -> None:
        self._progress, self._slice_s = progress, slice_s
        self._begun = time.monotonic()
        self._all: list[str] = []
        self._interrupted = set(progress.of_outcome("interrupted"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What is left, first what was interrupted."""
        deep = [item for item in items if is_deep(item)]
        self._all = [item.nodeid for item in deep]
        left = [item for item in deep if not self._progress.is_done(item.nodeid)]
        items[:] = sorted(left, key=lambda item: item.nodeid not in self._interrupted)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test has what is left of the slice, whatever its own limit."""
        item.add_marker(pytest.mark.timeout(max(1, self._last_s - self._spent_s)), append=False)
        self._progress.write(item.nodeid, "interrupted")  # until it has ended
        result = yield
        if self._spent_s > self._slice_s * _STARTS_FOR:
            item.session.shouldstop = "the slice is over"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the outcome. A test that had a whole slice and was interrupted again has failed."""
        was_interrupted = report.failed and self._spent_s >= self._last_s
        if was_interrupted and report.nodeid not in self._interrupted:
            return
        if report.when == "call" or not report.passed:
            self._progress.write(report.nodeid, report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A slice passes where none of this commit's has a failure, also with nothing left to do."""
        if session.exitstatus in (0, 1, 2, 5):  # passed, failed, stopped, no test
            session.exitstatus = int(bool(self._progress.of_outcome("failed")))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What is done and left."""
        left = sum(not self._progress.is_done(test) for test in self._all)
        failed = self._progress.of_outcome("failed")
        terminalreporter.write_line(
            f"soak of commit {self._progress.commit[:12]}: {len(self._all) - left} of {len(self._all)} tests"
            f" done, {len(failed)} failed, {left} left{'; make soak goes on with them' if left else ''}"
        )
        for test in failed:
            terminalreporter.write_line(f"failed: {test}")

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _last_s(self) -> float:
        """When a test is interrupted, so that it can end in order."""
        return self._slice_s * _INTERRUPTED_AT


def pytest_addoption(parser: pytest.Parser) -> None:
    """For the plugin's own tests."""
    parser.addoption("--slice-file", type=Path, default=FILE)
    parser.addoption("--slice-s", type=float, default=_SLICE_S)


def pytest_configure(config: pytest.Config) -> None:
    """Begins a slice."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    progress = Progress.of(config.getoption("slice_file"), commit)
    config.pluginmanager.register(Slices(progress, config.getoption("slice_s")))
