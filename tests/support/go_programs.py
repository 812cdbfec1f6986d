"""Go programs of tests: built once for each state of their source, and kept in the cache."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

from deploy.local.golang import Workshop, find_go, install_go
from deploy.local.tools import cache_folder


def program(source: Path, name: str) -> Path:
    """The binary of the main package in this folder of a module, whose folder is ``source``."""
    whole = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())
    role = source.parent.name
    folder = cache_folder() / "bin" / f"tests-{role}-{hashlib.sha256(whole).hexdigest()[:12]}"
    if not (folder / name).exists():
        _build(source, folder)
    return folder / name


def _build(source: Path, folder: Path) -> None:
    workshop = Workshop(cache_folder() / "go")
    workshop.scratch.mkdir(parents=True, exist_ok=True)
    if find_go(workshop, os.environ) is None:
        install_go(workshop, os.environ, lambda _output, _seconds: None)
    go = find_go(workshop, os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(mkdtemp(dir=folder))
    copied = shutil.copytree(source, fresh / "source")
    command = [str(go), "build", "-trimpath", "-o", f"{fresh}/built/", "./..."]
    done = subprocess.run(
        command, cwd=copied, env=workshop.environment(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for built in (fresh / "built").iterdir():
        built.replace(folder / built.name)  # another process that builds at the same time builds the same
    shutil.rmtree(fresh)
