"""The wheel, the source archive and the chart of a commit, the same bytes for the same commit.

Nothing of the place and time of the build enters them: files and their modes come from `git archive`, not
from the checkout; each time is the commit's; entries are sorted. The versions of Python, zlib and setuptools
(pyproject.toml) may change the bytes.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BUILD = "import sys, setuptools.build_meta as backend; backend.build_{kind}(sys.argv[1])"


class ReleaseError(Exception):
    """Why there can be no release, in a sentence."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its files as they are in it, its name, and its time in seconds since 1970."""

    checkout: Path
    name: str
    epoch_s: int


@contextmanager
def committed(root: Path = ROOT, commit: str = "HEAD") -> Iterator[Commit]:
    """A commit of the repository at `root`, in a folder that goes at the end. Raises ReleaseError where there
    is no such commit.
    """
    name, _, time = _git(root, "log", "-1", "--format=%H %ct", commit, "--").decode().strip().partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", name))) as tar:
            tar.extractall(folder, filter="data")  # sets each mode, whatever the umask is
        yield Commit(Path(folder), name, int(time))


def uncommitted(root: Path = ROOT) -> list[str]:
    """The files that differ from the last commit, which are not in a release."""
    lines = _git(root, "status", "--porcelain", "--untracked-files=all").decode(errors="replace").splitlines()
    return [line[3:] for line in lines]


def wheel(commit: Commit, folder: Path) -> Path:
    """The wheel, written into a folder."""
    return _built("wheel", commit, folder)


def source(commit: Commit, folder: Path) -> Path:
    """The source archive, written into a folder."""
    made = _built("sdist", commit, folder)
    made.write_bytes(_sorted_archive(made, commit.epoch_s))
    return made


def chart(commit: Commit, folder: Path, version: str) -> Path:
    """The chart as `helm package` names and lays it out."""
    plain = io.BytesIO()
    place = commit.checkout / "deploy" / "chart"
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for file in sorted(each for each in place.rglob("*") if each.is_file()):
            add(tar, f"bursar/{file.relative_to(place)}", file.read_bytes(), commit.epoch_s)
    made = folder / f"bursar-{version}.tgz"
    made.write_bytes(zipped(plain.getvalue(), commit.epoch_s))
    return made


def add(tar: tarfile.TarFile, name: str, data: bytes, epoch_s: int, mode: int = 0o644) -> None:
    """Add a file that has no owner and this time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), epoch_s, mode
    tar.addfile(entry, io.BytesIO(data))


def zipped(data: bytes, epoch_s: int) -> bytes:
    """Compressed by gzip, with this time and no name."""
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=packed, mtime=epoch_s) as file:
        file.write(data)
    return packed.getvalue()


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    except FileNotFoundError as error:
        raise ReleaseError(
            "git is not on the PATH, and a release is made of a commit: install git"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise ReleaseError(
            f"a release is made of a commit, and {root} shows none: run it in a clone"
            f" (git {arguments[0]}: {said})"
        )
    return done.stdout


def _built(kind: str, commit: Commit, folder: Path) -> Path:
    """Runs a build of setuptools, which writes SOURCE_DATE_EPOCH into the wheel. Raises ReleaseError."""
    code = _BUILD.format(kind=kind)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit.epoch_s), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-c", code, temporary]
        # a copy, for a build leaves files where it runs
        place = shutil.copytree(commit.checkout, Path(temporary, "of a commit"), symlinks=True)
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, umask=0o022
        )
        if done.returncode:
            raise ReleaseError(f"the build of the {kind} failed: {done.stderr.strip()}")
        (file,) = (each for each in Path(temporary).iterdir() if each.is_file())
        return Path(shutil.copy(file, folder))


def _sorted_archive(file: Path, epoch_s: int) -> bytes:
    """A source archive with sorted entries, one time, and no owner: setuptools writes those of the build."""
    plain = io.BytesIO()
    with tarfile.open(file) as before, tarfile.open(fileobj=plain, mode="w") as after:
        for entry in sorted(before.getmembers(), key=lambda each: each.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch_s, 0, 0, "", ""
            entry.pax_headers = {}
            after.addfile(entry, before.extractfile(entry) if entry.isfile() else None)
    return zipped(plain.getvalue(), epoch_s)
