"""Processes that the local control plane starts and stops."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.errors import LocalError
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.processes import Processes
from tests.local.worlds import processes_with
from tests.support.waiting import eventually


def test_a_started_process_lives_on_when_the_thread_that_requested_it_ends(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Launcher() as launcher:
        started: list[subprocess.Popen[bytes]] = []

        def ask_and_see_it_run() -> None:
            process = launcher.start(["/bin/cat", str(pipe)], subprocess.PIPE)
            started.append(process)
            eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/bin/cat"))

        thread = threading.Thread(target=ask_and_see_it_run)
        thread.start()
        thread.join()
        (process,) = started
        with os.fdopen(eventually(lambda: end_for_writing(pipe)), "w") as end:
            end.write("still here")
        out, _ = process.communicate(timeout=LONGEST_S)

    assert (process.returncode, out) == (0, b"still here")


def end_for_writing(pipe: Path) -> int | None:
    """An open file descriptor, if anybody is there to read."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def test_a_stopped_process_takes_its_children_with_it(tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    with Launcher() as launcher:
        # A child holds the other end of a socket until it dies.
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(pipe))
            listening.listen()
            listening.settimeout(LONGEST_S)
            child = (
                "import socket, time; s = socket.socket(socket.AF_UNIX);"
                f"s.connect({str(pipe)!r}); time.sleep(600)"
            )
            command = f'{sys.executable} -c "{child}" & wait'
            parent = launcher.start(["/bin/sh", "-c", command], subprocess.DEVNULL)
            connection, _ = listening.accept()
        with connection:
            connection.settimeout(LONGEST_S)
            launcher.stop(parent)
            assert connection.recv(1) == b""


def test_after_the_end_of_a_launcher_no_child_of_its_processes_is_alive_that_could_write_a_file(
    tmp_path: Path,
) -> None:
    with Launcher() as launcher:
        command = "for i in $(seq 100); do sleep 600 & done; touch started; wait"
        environment = {"PATH": os.defpath, "MARK": str(tmp_path)}
        launcher.start(["/bin/sh", "-c", command], subprocess.DEVNULL, environment, tmp_path)
        eventually((tmp_path / "started").exists)

    assert processes_with(str(tmp_path)) == []


def test_a_process_that_dies_is_reported_by_name_with_its_last_lines(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        script = "for i in $(seq 40); do echo line $i; done; exit 3"
        processes.start("talker", Path("/bin/sh"), ["-c", script])

        with pytest.raises(LocalError) as raised:
            processes.wait("talker", lambda: False)

    lines = str(raised.value).splitlines()
    assert lines[0] == "talker ended with exit code 3:"
    assert lines[1:] == [f"line {number}" for number in range(26, 41)]


def test_a_process_that_is_not_ready_in_time_is_reported_by_name(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("sleeper", Path("/bin/sleep"), ["600"])

        with pytest.raises(LocalError, match=r"^sleeper was not ready within 0 s"):
            processes.wait("sleeper", lambda: False, within_s=0.1)


def test_what_a_process_said_before_its_restart_does_not_count(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("talker", Path("/bin/sh"), ["-c", "[ -e said ] || echo ready; touch said; sleep 600"])
        processes.wait("talker", lambda: processes.has_said("talker", "ready"))

        processes.restart("talker")

        assert not processes.has_said("talker", "ready")
        assert processes.log("talker") == "ready\n"
        with pytest.raises(ValueError, match="talker is running"):
            processes.start("talker", Path("/bin/true"), [])


# Holds a folder and a process in it, and ends by a signal. While it ends it waits for one byte of its
# standard input, so that further signals come in the middle of the end.
ENDING = """
import signal, sys, time
from deploy.local.ending import ended_by_signals, undisturbed
from deploy.local.folder import OwnedFolder
from deploy.local.launcher import Launcher

class SlowEnd:
    def __enter__(self): return self
    def __exit__(self, *_):
        with undisturbed():
            print("ending", flush=True)
            sys.stdin.read(1)
            print("ended", flush=True)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored where nohup runs the tests
with ended_by_signals(), OwnedFolder() as folder, Launcher() as launcher, SlowEnd():
    process = launcher.start(["/bin/sleep", "600"], (folder / "log").open("wb"), folder=folder)
    print(process.pid, flush=True)
    if sys.argv[1] == "fails":
        raise SystemExit("it failed")
    while True:
        time.sleep(0.05)  # a signal just before signal.pause() would be heard by nobody
"""


@pytest.mark.parametrize(
    ("first", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_end_by_a_signal_is_complete_however_often_it_is_repeated(
    tmp_path: Path, first: signal.Signals, code: int
) -> None:
    with ending(tmp_path, "waits") as (process, child):
        process.send_signal(first)
        assert line_of(process) == "ending"
        for repeated in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(repeated)
        said, _ = process.communicate("x", timeout=LONGEST_S)

    assert (process.returncode, said) == (code, "ended\n")
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{child}").exists()


def test_a_signal_that_comes_while_a_failure_ends_all_waits_until_the_end(tmp_path: Path) -> None:
    with ending(tmp_path, "fails") as (process, child):
        assert line_of(process) == "ending"
        process.send_signal(signal.SIGHUP)
        said, _ = process.communicate("x", timeout=LONGEST_S)

    assert (process.returncode, said) == (129, "ended\n")
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{child}").exists()


@contextmanager
def ending(folder: Path, how: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process that runs the script above, whose temporary folders are in `folder`, and its child's PID."""
    command = [sys.executable, "-c", ENDING, how]
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, int(line_of(process))
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
