"""A wheel of the working tree, and an environment that has it installed; both made without a network."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.packaging.checkout import copy
from tests.packaging.environment import Environment

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip wheel .` makes of a copy of the project's files."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy(folder / "source")
    _run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment of its own with the wheel in it."""
    return environment_with(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment of its own with a copy of the working tree installed as `pip install -e .` does it."""
    environment = _environment(tmp_path_factory.mktemp("editable"))
    source = copy(tmp_path_factory.mktemp("source"))
    _run(*_pip_into(environment), "install", "--no-deps", "--no-index", "--no-build-isolation", "-e", source)
    return environment


def environment_with(wheel: Path, folder: Path) -> Environment:
    """A virtual environment with a wheel in it."""
    environment = _environment(folder)
    _run(*_pip_into(environment), "install", "--no-deps", "--no-index", wheel)
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


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
