"""The wheel of the working tree, and environments that have it installed; all made without a network."""

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.packaging.checkout import copy
from tests.packaging.environment import Environment

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def run(folder: Path, *command: str, umask: int = 0o022, env: Mapping[str, str] | None = None) -> str:
    """What a command that must end in order says on stderr."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    return built(copy(tmp_path_factory.mktemp("checkout")), tmp_path_factory.mktemp("wheel"))


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


def built(source: Path, folder: Path) -> Path:
    """The wheel of a checkout, which a build may change, in a folder."""
    run(
        source, *PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={folder}", "."
    )
    (wheel,) = folder.iterdir()
    return wheel


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
