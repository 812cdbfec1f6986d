"""The release before this one: the newest tag `v...` before the last commit; until there is one, the commit
before it. BURSAR_BEFORE names another commit."""

import os
import subprocess

from tests.packaging.checkout import ROOT


class NoFormerReleaseError(Exception):
    """Why the release before cannot be had, in a sentence."""


def former_release() -> str:
    """The commit. Raises NoFormerReleaseError where this clone does not have it."""
    named = os.environ.get("BURSAR_BEFORE") or _newest_tag() or "HEAD~1"
    commit = _git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    if not commit:
        raise NoFormerReleaseError(
            f"this clone has no commit {named}, the release before: fetch more of it "
            "(git fetch --unshallow), or name a commit in BURSAR_BEFORE"
        )
    return commit


def _newest_tag() -> str:
    return _git("tag", "--list", "v*", "--merged", "HEAD~1", "--sort=-version:refname").partition("\n")[0]


def _git(*arguments: str) -> str:
    """What git prints; empty where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
