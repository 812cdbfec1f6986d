"""Named processes with log files in one folder."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from deploy.local.errors import LocalError
from deploy.local.golang import last_lines
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S

_LOOK_EVERY_S = 0.02


class Processes:
    """A context manager: processes by name, killed at exit. Their working folder is `folder`, their logs are
    in `folder/logs/<name>.log`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._launcher = Launcher()
        self._commands: dict[str, list[str]] = {}
        self._log_starts: dict[str, int] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "logs").mkdir()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running.clear()
        self._launcher.close()

    def start(self, name: str, binary: Path, arguments: Sequence[str]) -> None:
        """Start a process under a name that no running process has. Its log continues that of an earlier one
        of the name.
        """
        if name in self.running:
            raise ValueError(f"{name} is running")
        self._commands[name] = [str(binary), *arguments]
        self.restart(name)

    def restart(self, name: str, *more: str) -> None:
        """Start a process again with the same command, and these words after it. If it runs, it is killed
        first."""
        if name in self.running:
            self.stop(name)
        with self._log(name).open("ab") as log:
            self._log_starts[name] = log.tell()
            self.running[name] = self._launcher.start(
                [*self._commands[name], *more], log, apart(self._folder), self._folder
            )

    def stop(self, name: str) -> None:
        """Kill a process and wait for its end."""
        self._launcher.stop(self.running.pop(name))

    def log(self, name: str) -> str:
        """The log of a process, running or not."""
        return self._log(name).read_text(errors="replace")

    def has_said(self, name: str, text: str) -> bool:
        """Whether a process's log has this text since its last start."""
        return text.encode() in self._log(name).read_bytes()[self._log_starts[name] :]

    def check(self) -> None:
        """Raise LocalError, with the end of its log, if a process has ended that was not stopped."""
        for name, process in self.running.items():
            code = process.poll()
            if code is not None:
                raise LocalError(f"{name} ended with exit code {code}:\n{last_lines(self.log(name))}")

    def wait(self, name: str, ready: Callable[[], bool], within_s: float = LONGEST_S) -> None:
        """Wait until `ready()`. Raises LocalError if time runs out or any process ends, for another than
        `name` may be the cause.
        """
        begun = time.monotonic()
        while not ready():
            self.check()
            if time.monotonic() - begun > within_s:
                raise LocalError(
                    f"{name} was not ready within {within_s:.0f} s:\n{last_lines(self.log(name))}"
                )
            time.sleep(_LOOK_EVERY_S)

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"


def apart(home: Path) -> dict[str, str]:
    """The environment of programs that keep their files below `home` and use no proxy."""
    return {**os.environ, "HOME": str(home), "NO_PROXY": "*", "no_proxy": "*"}
