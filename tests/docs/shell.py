"""Commands of a page, typed into a shell."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deploy.local.cluster import ControlPlane


def console(text: str, languages: str = "console") -> list[str]:
    """The blocks of commands of a page or a part of it, also those inside lists."""
    found = re.findall(rf"^( *)```(?:{languages})\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def commands(page: Path) -> list[str]:
    """The blocks of commands of a page; ``sh``: those that need something that not every reader has."""
    return console(page.read_text(), "console|sh")


def run(cp: ControlPlane, commands: str, folder: Path, kubeconfig: Path | None = None) -> str:
    """Types commands in a folder as the administrator, or as the user of a kubeconfig. Each must succeed.
    Gives the standard output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=_environment(cp, folder, kubeconfig),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(cp: ControlPlane, command: str, folder: Path, kubeconfig: Path) -> Iterator[IO[str]]:
    """A command that runs while the context lasts, as the user of a kubeconfig. Gives its standard output."""
    environment = _environment(cp, folder, kubeconfig) | {"PYTHONUNBUFFERED": "1"}
    arguments = ["bash", "-euo", "pipefail", "-c", command]
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def _environment(cp: ControlPlane, folder: Path, kubeconfig: Path | None) -> dict[str, str]:
    """The variables of a shell in which kubectl is the control plane's, with our plugin, and its user that of
    a kubeconfig."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "kubectl").write_text(f'#!/bin/sh\nexec {cp.kubectl_path} "$@"\n')
    (binaries / "kubectl").chmod(0o755)
    return os.environ | {
        "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig or cp.admin_kubeconfig),
        "HOME": str(folder),
    }
