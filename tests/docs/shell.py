"""Commands of a page, typed into a shell."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

from deploy.local.cluster import ControlPlane


def console(text: str) -> list[str]:
    """The blocks of commands of a page or a part of it, also those inside lists."""
    found = re.findall(r"^( *)```console\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def run(cp: ControlPlane, commands: str, folder: Path, kubeconfig: Path | None = None) -> str:
    """Types commands in a folder as the administrator, or as the user of a kubeconfig. Each must succeed.
    Gives the standard output."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "kubectl").write_text(f'#!/bin/sh\nexec {cp.kubectl_path} "$@"\n')
    (binaries / "kubectl").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig or cp.admin_kubeconfig),
        "HOME": str(folder),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout
