"""Starts processes that end when this one does.

Only the kernel's parent-death signal works after a SIGKILL of the parent. It fires when the *thread* that
forked ends, so one thread, which lives as long as its `Launcher`, starts every child.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any

# A new interpreter that becomes the real program, because a forked copy of a process with threads must not
# run Python code. Option 1 is PR_SET_PDEATHSIG, signal 9 SIGKILL. The parent may have ended before the option
# was set, so its ID is compared afterwards.
_BIND_TO_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


_ENDED = ("Z", "X")  # states in /proc: a zombie holds nothing but its exit code
_LOOK_EVERY_S = 0.01


class Launcher:
    """A context manager: starts programs, which the kernel kills when this process ends, and kills the
    remaining ones at exit.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        command: list[str],
        output: IO[Any] | int,
        env: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `command`, whose first word is an absolute path, in its own session, so that Ctrl-C does not
        reach it."""
        wrapped = [sys.executable, "-ISc", _BIND_TO_PARENT, str(os.getpid()), *command]
        return self._thread.submit(self._spawn, wrapped, output, env, folder).result()

    def _spawn(
        self, command: list[str], output: IO[Any] | int, env: dict[str, str] | None, folder: Path | None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        # Recorded here, because Ctrl-C may interrupt the caller's wait for the result.
        self._started.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process with its children and wait for their end. None has data that need a clean end."""
        _end([process])
        self._started.remove(process)

    def close(self) -> None:
        """Kill all running processes with their children, wait for their ends, and end the thread. Nothing
        can be started from then on: what the thread has been asked for before is started, and killed."""
        killing = self._thread.submit(lambda: _end(self._started))
        self._thread.shutdown()
        killing.result()
        self._started.clear()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the sessions of these processes. Afterwards none of them writes a file any more."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
    for process in running:
        process.wait()
    groups = {process.pid for process in running}
    while groups & _alive():
        time.sleep(_LOOK_EVERY_S)


def _alive() -> set[int]:
    """The process groups that have a member which has not ended yet."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if state not in _ENDED:
            found.add(int(group))
    return found
