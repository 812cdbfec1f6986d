"""Start processes that cannot outlive this one.

The kernel's parent-death signal is the only thing that works after SIGKILL of the parent. It fires when the
*thread* that forked ends, so every child is started by one thread that lives as long as its `Launcher`.
"""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any

# A fresh interpreter that becomes the real program, for no code of ours may run in a forked copy of a process
# with threads. Option 1 is PR_SET_PDEATHSIG, signal 9 SIGKILL. The parent may have died before the option was
# set, hence the second look.
_BIND_TO_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Launcher:
    """A context manager: starts programs, which the kernel kills when this process ends in whatever way, and
    kills at exit what is left of them.
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
        """Start `command`, its first word an absolute path, in a session of its own: Ctrl-C is for us."""
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
        # Noted here and not by the caller, whose wait for the answer Ctrl-C may have broken off.
        self._started.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one process with its children and wait for its end; none keeps data worth a slow goodbye."""
        _kill(process)
        process.wait()
        self._started.remove(process)

    def close(self) -> None:
        """Kill all that still runs, wait, and let the thread end."""
        for process in self._started:
            _kill(process)
        for process in self._started:
            process.wait()
        self._started.clear()
        self._thread.shutdown()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
