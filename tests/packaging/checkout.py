"""What of the working tree belongs to the project: the files that git has, or would have with `git add .`"""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("webhook", "timekeeper", "sidecar", "scheduler_ext")
OF_A_SIDECAR = ("sidecar/", "timekeeper/__init__.py", "timekeeper/edge/")  # what it may import of these


def files() -> list[Path]:
    """Relative to the top level; a symbolic link is one file."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = {Path(name) for name in listed.split("\0") if name}
    return sorted(path for path in paths if (ROOT / path).exists())


def copy(folder: Path, parts: tuple[str, ...] = ("",)) -> Path:
    """The project's files, or those that begin with one of ``parts``, in another folder: so a build leaves
    nothing in the checkout."""
    for path in (path for path in files() if str(path).startswith(parts)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)
    return folder


def packaged() -> set[str]:
    """The files that a wheel must hold: all of the packages', and the migrations at their name inside."""
    return {
        str(Path("timekeeper") / path if path.parts[0] == "migrations" else path)
        for path in files()
        if path.parts[0] in (*PACKAGES, "migrations") and not (ROOT / path).is_symlink()
    }
