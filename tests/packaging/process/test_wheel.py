"""What is in the wheel, and what it says of itself."""

import configparser
import email
import re
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

import pytest

from deploy import dependencies
from tests.packaging.checkout import PACKAGES, ROOT, files, packaged
from tests.packaging.environment import Environment
from timekeeper.core import __version__

TOP_LEVEL = {
    "setup.cfg",
    "pyproject.toml",
    "constraints.txt",
    "Makefile",
    "webhook",
    "timekeeper",
    "sidecar",
    "scheduler_ext",
    "migrations",
    "tests",
    "deploy",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
}
WHERE = "import {0}; print({0}.__file__)"


def metadata(wheel: Path, file: str) -> str:
    """One file of the wheel's metadata."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
    return archive.read(name).decode()


def test_the_wheel_has_every_file(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert held == packaged()
    assert {"timekeeper/core/py.typed", "timekeeper/migrations/env.py"} <= held


def test_the_wheel_prints_its_version_licence_and_what_it_needs(wheel: Path) -> None:
    told: Message = email.message_from_string(metadata(wheel, "METADATA"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = setup["options"]["install_requires"].split()

    assert (told["Name"], told["Version"]) == ("gpu-bursar", __version__)
    assert "Apache-2.0" in (told["License"], told["License-Expression"])
    assert [each for each in told.get_all("Requires-Dist", []) if "extra ==" not in each] == needed
    assert told["Requires-Python"] == setup["options"]["python_requires"]


def test_the_wheel_makes_a_console_script_for_each_role(wheel: Path) -> None:
    scripts = configparser.ConfigParser()
    scripts.read_string(metadata(wheel, "entry_points.txt"))

    assert dict(scripts["console_scripts"]) == {
        "bursar-webhook": "webhook.__main__:main",
        "bursar-timekeeper": "timekeeper.__main__:main",
        "bursar-extender": "scheduler_ext.__main__:main",
        "bursar-sidecar": "sidecar.__main__:main",
        "kubectl-bursar": "timekeeper.cli.main:main",
        "kubectl_complete-bursar": "timekeeper.cli.completion:main",
    }


def size(files: Iterable[Path]) -> int:
    """The bytes of files."""
    return sum(file.stat().st_size for file in files if file.is_file())


def test_the_command_alone_takes_what_its_page_says_and_brings_no_library_of_a_role(
    installed: Environment,
) -> None:
    """Of a folder that pip has filled, with the bytecode: ours, and those of what the wheel needs."""
    needed = dependencies.installed(dependencies.declared()[""])
    theirs = [Path(str(file.locate())) for each, _ in needed.values() for file in each.files or ()]
    ours = [file for each in PACKAGES for file in installed.folder.glob(f"lib/*/site-packages/{each}/**/*")]
    (said,) = re.findall(r"takes (\d+) MB", (ROOT / "docs" / "cli.md").read_text())

    assert {"click", "rich", "orjson"} <= set(needed)
    assert {"flask", "kubernetes", "numpy", "sqlalchemy", "urllib3"}.isdisjoint(needed)
    assert any(file.suffix == ".pyc" for file in ours)
    assert round((size(theirs) + size(ours)) / 1e6) <= int(said) < 30


def test_an_installed_wheel_is_what_is_imported_outside_the_checkout(installed: Environment) -> None:
    for package in PACKAGES:
        assert installed.ask(WHERE.format(package)).startswith(str(installed.folder))


@pytest.mark.soak
def test_an_editable_install_is_imported_from_its_source_and_shows_the_version(editable: Environment) -> None:
    for package in PACKAGES:
        assert not installed_in(editable, editable.ask(WHERE.format(package)))
    assert editable.ask("import importlib.metadata as m; print(m.version('gpu-bursar'))") == __version__
    assert editable.script("bursar-timekeeper").is_file()


@pytest.mark.soak
def test_an_editable_install_finds_the_migrations_through_the_link(editable: Environment) -> None:
    found = "import importlib.resources as r; print(r.files('timekeeper.migrations') / 'env.py')"

    assert Path(editable.ask(found)).is_file()


def test_the_top_level_holds_what_it_is_meant_to_hold() -> None:
    found = {path.parts[0] for path in files()}

    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL


def test_the_link_to_the_migrations_is_a_link_that_a_clone_gets_too() -> None:
    link = ROOT / "timekeeper" / "migrations"

    assert link.is_symlink()
    assert str(link.readlink()) == "../migrations"
    assert link.relative_to(ROOT) in files()


def installed_in(environment: Environment, path: str) -> bool:
    """Whether a file lies in an environment's own folder."""
    return Path(path).is_relative_to(environment.folder)
