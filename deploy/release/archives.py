"""The wheel and the source archive of a commit, the same bytes for the same commit.

Nothing of the place and time of the build enters them: files and their modes come from `git archive`, not
from the checkout; each time is the commit's; entries are sorted. The versions of Python, zlib and setuptools
(pyproject.toml) may change the bytes.
"""

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BUILD = "import sys, setuptools.build_meta as backend; backend.build_{kind}(sys.argv[1])"


class ReleaseError(Exception):
    """Why there can be no release, in a sentence."""


@dataclass(frozen=True, slots=True)
class Archives:
    """What was built, and the commit's time in seconds since 1970."""

    wheel: Path
    source: Path
    epoch_s: int


def archives(folder: Path, root: Path = ROOT, commit: str = "HEAD") -> Archives:
    """Build both from a commit of the repository at `root` into `folder`. Changes that are not committed are
    not in them. Raises ReleaseError where there is no such commit, or the build fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = _git(root, "log", "-1", "--format=%ct", commit, "--")
    if not told.strip():
        raise ReleaseError(f"{root} has no commit {commit}")
    epoch_s = int(told)
    with tempfile.TemporaryDirectory() as temporary:
        checkout = Path(temporary, "checkout")
        with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", commit))) as tar:
            tar.extractall(checkout, filter="data")  # sets each mode, whatever the umask is
        wheel = _built("wheel", checkout, Path(temporary, "wheel"), epoch_s)
        source = _built("sdist", checkout, Path(temporary, "source"), epoch_s)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        (folder / source.name).write_bytes(_sorted_archive(source, epoch_s))
    return Archives(folder / wheel.name, folder / source.name, epoch_s)


def _git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _built(kind: str, checkout: Path, folder: Path, epoch_s: int) -> Path:
    """Runs a build of setuptools, which writes SOURCE_DATE_EPOCH into the wheel."""
    folder.mkdir()
    code = _BUILD.format(kind=kind)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, umask=0o022)
    if done.returncode:
        raise ReleaseError(f"the build of the {kind} failed: {done.stderr.strip()}")
    (file,) = folder.iterdir()
    return file


def _sorted_archive(file: Path, epoch_s: int) -> bytes:
    """A source archive with sorted entries, one time, and no owner: setuptools writes those of the build."""
    packed, plain = io.BytesIO(), io.BytesIO()
    with tarfile.open(file) as before, tarfile.open(fileobj=plain, mode="w") as after:
        for entry in sorted(before.getmembers(), key=lambda each: each.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch_s, 0, 0, "", ""
            entry.pax_headers = {}
            after.addfile(entry, before.extractfile(entry) if entry.isfile() else None)
    with gzip.GzipFile("", "wb", fileobj=packed, mtime=epoch_s) as zipped:
        zipped.write(plain.getvalue())
    return packed.getvalue()
