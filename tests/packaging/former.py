"""The release before this one: the newest tag `v...` before the last commit; until there is one, the commit
before it. BURSAR_BEFORE names another commit. A commit without the baseline of the schema cannot share a
database with this release: the one that brought the baseline stands in for it."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

from tests.packaging.checkout import ROOT

BASELINE = "migrations/versions/v0028_baseline.py"


class NoFormerReleaseError(Exception):
    """Why the release before cannot be had, in a sentence."""


def former_release(root: Path = ROOT) -> str:
    """The commit. Raises NoFormerReleaseError where this clone does not have it."""
    given = os.environ.get("BURSAR_BEFORE", "")
    named = given or _newest_tag(root) or "HEAD~1"
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    if not commit:
        raise NoFormerReleaseError(
            f"this clone has no commit {named}, the release before: fetch more of it "
            "(git fetch --unshallow), or name a commit in BURSAR_BEFORE"
        )
    if _git(root, "ls-tree", "--name-only", commit, "--", BASELINE):
        return commit
    if given:
        raise NoFormerReleaseError(f"BURSAR_BEFORE: {given} has another schema: it lacks {BASELINE}")
    return _git(root, "log", "--diff-filter=A", "--format=%H", "-1", "--", BASELINE)


def checked_out(commit: str, folder: Path) -> Path:
    """The files of a commit, in a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def _newest_tag(root: Path) -> str:
    listed = _git(root, "tag", "--list", "v*", "--merged", "HEAD~1", "--sort=-version:refname")
    return listed.partition("\n")[0]


def _git(root: Path, *arguments: str) -> str:
    """What git prints; empty where it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
