"""Starts processes that end when this one does.

Only the kernel's parent-death signal works after a SIGKILL of the parent. It fires when the *thread* that
forked ends, so one thread, which lives as long as its `Launcher`, starts every child.
"""

import os
import signal
import subprocess
import sys
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
        """Kill a process with its children and wait for its end. None has data that need a clean end."""
        _kill(process)
        process.wait()
        self._started.remove(process)

    def close(self) -> None:
        """Kill all running processes, wait for their ends, and end the thread."""
        for process in self._started:
            _kill(process)
        for process in self._started:
            process.wait()
        self._started.clear()
        self._thread.shutdown()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
