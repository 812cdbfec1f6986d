"""A virtual environment made for a test, and what runs in it: with nothing of the caller's environment."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.limits import LONGEST_S


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment in a folder."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def script(self, name: str) -> Path:
        """One of its console scripts."""
        return self.folder / "bin" / name

    def variables(self) -> dict[str, str]:
        """A clean environment for its processes."""
        return {"PATH": os.defpath, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
        """A command's end; the caller looks at the exit code."""
        return subprocess.run(
            command, cwd=folder, env=self.variables(), capture_output=True, text=True, timeout=LONGEST_S
        )

    def ask(self, code: str) -> str:
        """What a line of Python prints, from a folder that holds nothing of ours."""
        done = self.run([self.python, "-c", code], self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
