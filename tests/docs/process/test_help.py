"""The pages name the make targets and the flags that there are, as `make help` and `--help` print them."""

import re
import subprocess
import sys

import pytest

from tests.packaging.checkout import ROOT
from timekeeper.core import __version__

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_make_target_that_is_named_exists_and_help_lists_them_all() -> None:
    help_text = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = set(re.findall(r"^  make (\w+)", help_text, re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)
    }

    assert {"demo", "up", "test", "check", "bench", "soak"} <= listed
    assert named <= listed


@pytest.mark.parametrize(
    "role",
    [
        *("webhook", "webhook certificates", "webhook review", "webhook audit"),
        *("timekeeper", "scheduler_ext", "sidecar", "sidecar.node"),
    ],
)
def test_every_role_prints_its_version(role: str) -> None:
    command = [sys.executable, "-m", *role.split(), "--version"]

    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert said == f"bursar {__version__}\n"


def test_a_control_plane_without_nodes_promises_none() -> None:
    command = [sys.executable, "-m", "deploy.local", "--help"]

    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "run a control plane without nodes and without Bursar" in " ".join(said.split())
