"""The order and the end of `.ci/run`'s second part: what a change touches comes first, and what no minute is
left for is named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compositions import ROOT

FILES = ("tests/core/unit/test_a.py", "tests/node/unit/test_b.py", "tests/webhook/unit/test_c.py")
CONFTEST = """
from tests.support.lanes import Lanes

def pytest_xdist_make_scheduler(config, log):
    return Lanes(config, log)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three files of tests in a repository, of which the last two are changed by hand."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("def test(): pass\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    for file in FILES[1:]:
        (tmp_path / file).write_text("def test(): assert True\n")
    return tmp_path


def run(project: Path, minutes: str, *options: str) -> tuple[int, str]:
    """The exit code of a run that may begin files of tests for so many minutes, and what it says."""
    plugins = ["-p", "xdist", "-p", "tests.support.touched", "--touched-since=HEAD", f"--minutes={minutes}"]
    command = [sys.executable, "-m", "pytest", "-v", *plugins, *options, f"--rootdir={project}"]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "tests"], cwd=project, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_what_a_change_touches_comes_first(project: Path) -> None:
    code, said = run(project, "600", "-p", "no:xdist")

    assert code == 0, said
    assert re.findall(r"^(tests/\S+)::test PASSED", said, re.MULTILINE) == [*FILES[1:], FILES[0]]


def test_what_no_minute_is_left_for_is_named_and_fails_the_run_where_the_change_touches_it(
    project: Path,
) -> None:
    code, said = run(project, "0", "--numprocesses=1", "--no-loadscope-reorder")

    assert "PASSED" not in said
    assert code == 1
    assert re.findall(r"^not run, for the time was over: (.*)$", said, re.MULTILINE) == [
        *(f"{file}; this change touches it" for file in FILES[1:]),
        FILES[0],
    ]


def test_a_run_that_leaves_out_what_no_change_touches_has_passed(project: Path) -> None:
    subprocess.run(["git", "checkout", "-q", "."], cwd=project, check=True)

    code, said = run(project, "0", "--numprocesses=1", "--no-loadscope-reorder")

    assert (code, said.count("not run, for the time was over")) == (0, 3), said


def test_within_the_minutes_all_of_it_runs(project: Path) -> None:
    code, said = run(project, "600", "--numprocesses=2", "--no-loadscope-reorder")

    assert (code, said.count("PASSED")) == (0, 3), said
