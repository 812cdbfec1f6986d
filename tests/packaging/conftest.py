"""A release of the working tree, and environments that have it installed; all made without a network."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.checkout import copy
from tests.packaging.environment import Environment

COMMITTED_S = 1_700_000_000  # an even second, for a ZIP has no odd ones
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


@dataclass(frozen=True, slots=True)
class Release:
    """The folder of a release, and its checkout."""

    folder: Path
    checkout: Path

    def file(self, end: str) -> Path:
        """The only file whose name ends so."""
        (found,) = self.folder.glob(f"*{end}")
        return found

    @property
    def bill(self) -> dict[str, Any]:
        """The bill of materials."""
        read: dict[str, Any] = json.loads(self.file(".cdx.json").read_text())
        return read


def run(folder: Path, *command: str, umask: int = 0o022, env: Mapping[str, str] | None = None) -> str:
    """What a command that must end in order says on stderr."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree's files as the only commit of a repository."""
    folder = copy(tmp_path_factory.mktemp("repository"))
    date = {"GIT_AUTHOR_DATE": f"{COMMITTED_S} +0000", "GIT_COMMITTER_DATE": f"{COMMITTED_S} +0000"}
    author = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    run(folder, "git", "init", "-q")
    run(folder, "git", "add", "-A")
    run(folder, "git", *author, "commit", "-q", "-m", "all of it", env=date)
    return folder


@pytest.fixture(scope="session")
def released(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The files of a release."""
    folder = tmp_path_factory.mktemp("released")
    run(repository, sys.executable, "-m", "deploy.release", str(folder))
    return Release(folder, repository)


@pytest.fixture(scope="session")
def wheel(released: Release) -> Path:
    """The wheel of a release."""
    return released.file(".whl")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment of its own with the wheel in it."""
    return environment_with(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment of its own with a copy of the working tree installed as `pip install -e .` does it."""
    environment = _environment(tmp_path_factory.mktemp("editable"))
    source = copy(tmp_path_factory.mktemp("source"))
    options = ("--no-deps", "--no-index", "--no-build-isolation")
    run(source, *_pip_into(environment), "install", *options, "-e", str(source))
    return environment


def environment_with(wheel: Path, folder: Path) -> Environment:
    """A virtual environment with a wheel in it."""
    environment = _environment(folder)
    run(folder, *_pip_into(environment), "install", "--no-deps", "--no-index", str(wheel))
    return environment


def _environment(folder: Path) -> Environment:
    """A virtual environment that finds the dependencies, and not the checkout, where this interpreter has
    them.

    A folder named in a .pth file is searched for modules, but the .pth files in it, of which one would lead
    to the checkout, are not read.
    """
    venv.create(folder, with_pip=False)
    environment = Environment(folder)
    site = environment.ask("import sysconfig; print(sysconfig.get_path('purelib'))")
    folders = [path for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "dependencies.pth").write_text("".join(f"{path}\n" for path in folders))
    return environment


def _pip_into(environment: Environment) -> tuple[str, ...]:
    return (*PIP, "--python", str(environment.python))
