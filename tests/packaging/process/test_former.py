"""Which commit stands for the release before this one."""

import subprocess
from pathlib import Path

import pytest

from tests.packaging.former import BASELINE, former_release


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one commit, which is from before the baseline."""
    monkeypatch.delenv("BURSAR_BEFORE", raising=False)
    git(tmp_path, "init", "-q")
    commit(tmp_path, "migrations/versions/v0001_ledger.py")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *author, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root: Path, path: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", path)
    return git(root, "rev-parse", "HEAD")


def test_it_is_the_commit_before_until_there_is_a_tag(repository: Path) -> None:
    commit(repository, BASELINE)
    second = commit(repository, "b")
    commit(repository, "c")
    assert former_release(repository) == second

    git(repository, "tag", "v1.0.0", f"{second}~1")

    assert former_release(repository) == git(repository, "rev-parse", f"{second}~1")


def test_the_baselines_commit_stands_in_for_one_that_has_another_schema(repository: Path) -> None:
    git(repository, "tag", "v0.1.0")
    baseline = commit(repository, BASELINE)
    assert former_release(repository) == baseline
    commit(repository, "b")

    assert former_release(repository) == baseline
