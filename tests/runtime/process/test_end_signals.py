"""SIGTERM and SIGINT end each role that runs until then, at whatever moment they come; no handler takes a
lock."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.packaging.checkout import ROOT
from tests.runtime.ended_roles import ROLES
from timekeeper.runtime.end_signals import END_SIGNALS, event_of_end_signals

# What the handlers of the product call, or the handlers themselves where those stand elsewhere. None of these
# takes a lock. Python runs a handler between two instructions of the main thread, which may hold any lock:
# of an Event, a Queue, a logging handler, a file.
CALLED_IN_HANDLERS = {
    "deploy/local/ending.py": {"before[each]", "came.append", "handler", "signal.signal", "sys.exit"},
    "sidecar/event_loop.py": {"End", "self._events.append"},
    "timekeeper/process/supervisor.py": set(),
    "timekeeper/runtime/end_signals.py": set(),
}


@pytest.mark.parametrize(
    ("role", "number"),
    [
        *((role, "SIGTERM") for role in ROLES),
        ("a supervisor that watches", "SIGINT"),
        ("a sidecar or a node agent", "SIGINT"),
    ],
)
def test_a_signal_at_any_line_of_its_wait_ends(tmp_path: Path, role: str, number: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.ended_roles", role, number, str(tmp_path)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    codes = re.findall(r"^(\d+) (\d+)$", done.stdout, re.MULTILINE)
    assert codes == [(str(line), "0") for line in range(1, len(codes) + 1)]
    assert len(codes) > 5


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Afterwards the signals are as they were."""
    numbers = (*END_SIGNALS, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", END_SIGNALS)
def test_a_signal_that_comes_before_the_wait_ends_it(number: int) -> None:
    stop = event_of_end_signals()

    os.kill(os.getpid(), number)

    assert stop.wait(LONGEST_S)


def test_more_signals_than_the_pipe_holds_disturb_nothing() -> None:
    stop = event_of_end_signals()

    for _ in range(70_000):
        os.kill(os.getpid(), signal.SIGTERM)

    assert stop.wait(LONGEST_S)


def test_another_signal_that_has_a_handler_does_not_end() -> None:
    stop = event_of_end_signals()
    signal.signal(signal.SIGUSR1, lambda *_: None)

    os.kill(os.getpid(), signal.SIGUSR1)

    assert not stop.wait(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(LONGEST_S)


def test_a_child_process_starts_with_the_usual_handlers_and_no_signal_blocked() -> None:
    event_of_end_signals()

    done = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True)

    masks = dict(
        line.split(":\t") for line in done.stdout.splitlines() if line.startswith(("SigBlk", "SigCgt"))
    )
    assert masks == {"SigBlk": "0" * 16, "SigCgt": "0" * 16}


def test_no_handler_takes_a_lock() -> None:
    names = subprocess.run(
        ["git", "grep", "--untracked", "-lw", "signal", "--", "*.py", ":!tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    called = {name: calls for name in names if (calls := called_in_handlers(ROOT / name)) is not None}

    assert called == CALLED_IN_HANDLERS


def called_in_handlers(file: Path) -> set[str] | None:
    """What the handlers call that the file hands to `signal.signal`; None if it hands over none."""
    tree = ast.parse(file.read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    handlers = [call.args[1] for call in calls if ast.unparse(call.func) == "signal.signal"]
    if not handlers:
        return None
    called = set()
    for handler in handlers:
        name = ast.unparse(handler)
        body = functions.get(name.removeprefix("self."), handler)
        if isinstance(body, ast.FunctionDef | ast.Lambda):
            called |= {ast.unparse(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
        elif not name.startswith("signal.SIG_"):
            called.add(name)
    return called
