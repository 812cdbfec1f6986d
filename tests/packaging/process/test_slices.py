"""`make soak` in slices: each goes on where the last one of the commit has stopped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slices import ROOT

DEEP = """
import pathlib, time
import pytest

HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.soak

def test_passes():
    with (HERE / "ran").open("a") as file:
        file.write("x")

def test_takes_longer_than_a_slice_at_first():
    if not (HERE / "again").exists():
        (HERE / "again").touch()
        time.sleep(60)

def test_fails():
    assert not (HERE / "ran").read_text()
"""
SHALLOW = "def test_has_no_larger_profile(): raise AssertionError"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of two files."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak: x\n")
    (tmp_path / "test_deep.py").write_text(DEEP)
    (tmp_path / "test_shallow.py").write_text(SHALLOW)
    return tmp_path


def a_slice(folder: Path) -> tuple[int, list[str]]:
    """Its exit code, and what it says at its end."""
    plugins = ["-p", "pytest_timeout", "-p", "tests.support.slices"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(folder)]
    of_slices = ["--slice-file", f"{folder}/build/soak.jsonl", "--slice-s", "8", str(folder)]
    # to import all plugins that are installed takes longer than all else
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *of_slices], cwd=ROOT, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, [each for each in lines if each.startswith(("soak of commit", "failed: "))]


@pytest.mark.soak
def test_a_slice_goes_on_with_what_is_left_and_first_with_what_was_interrupted(folder: Path) -> None:
    code, said = a_slice(folder)
    assert code == 0
    assert said[0].endswith(": 1 of 3 tests done, 0 failed, 2 left; make soak goes on with them")

    code, said = a_slice(folder)
    assert code == 1
    assert said[0].endswith(": 3 of 3 tests done, 1 failed, 0 left")
    assert said[1] == "failed: test_deep.py::test_fails"

    assert a_slice(folder) == (1, said)
    assert (folder / "ran").read_text() == "x"
