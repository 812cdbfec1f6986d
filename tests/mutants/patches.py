"""Mutants written by hand: of policies, rights, manifests and SQL, in a copy of the checkout."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.mutants.passes import FOLDER, family

DATA = Path(__file__).parent / "patches.txt"
_LONGEST_S = 900


class Patch(NamedTuple):
    """A text of the files of a pattern, what then stands in its place, and the files of tests that run."""

    files: str
    old: str
    new: str
    tests: tuple[str, ...]


def all_patches() -> dict[str, Patch]:
    """Those of the data file, by their names in the table; first those that need no control plane."""
    read: dict[str, Patch] = {}
    files = ""
    tests: tuple[str, ...] = ()
    for line in DATA.read_text().splitlines():
        if line.startswith("= "):
            files, _, listed = line[2:].partition(" | ")
            tests = tuple(listed.split())
        elif line and not line.startswith("#"):
            name, _, change = line.partition(": ")
            old, _, new = (text.replace("\\n", "\n") for text in change.partition(" =>"))
            read[f"{files}:{name}"] = Patch(files, old, new.removeprefix(" "), tests)
    return dict(sorted(read.items(), key=lambda row: any("/cluster/" in test for test in row[1].tests)))


def digests() -> dict[str, str]:
    """What changes with a patch."""
    return {
        name: hashlib.sha256(repr(patch).encode()).hexdigest()[:6] for name, patch in all_patches().items()
    }


def killers(root: Path, name: str) -> tuple[str, ...]:
    """The first tests that fail with it, each of another file. Raises LookupError without its text."""
    patch = all_patches()[name]
    copy = root / FOLDER / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    for file in listed.stdout.split("\0")[:-1]:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, copy / file, follow_symlinks=False)
    try:
        _apply(copy, patch)
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "--maxfail=40", "-m", "not soak"]
        done = subprocess.run(
            [*command, *patch.tests],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{patch}: {done.stdout}{done.stderr}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\w+)", done.stdout, re.MULTILINE)
    by_file = {test.partition("::")[0]: family(test) for test in reversed(failed)}
    return tuple(by_file[file] for file in sorted(by_file, key=patch.tests.index))[:3]


def _apply(root: Path, patch: Patch) -> None:
    texts = {file: file.read_text() for file in root.glob(patch.files)}
    holding = {file: text for file, text in texts.items() if patch.old in text}
    if not holding:
        raise LookupError(f"{patch.files} has no {patch.old!r}")
    for file, text in holding.items():
        file.write_text(text.replace(patch.old, patch.new, 1))
