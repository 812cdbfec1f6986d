"""A machine that cannot have a real node says why, and in CI that is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.reading import ROOT


@pytest.mark.parametrize(("ci", "ends", "outcome"), [("", 0, "1 skipped"), ("true", 1, "1 error")])
def test_tests_of_a_real_node_are_skipped_by_name_but_never_in_ci(
    tmp_path: Path, ci: str, ends: int, outcome: str
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/kubelet/cluster/test_leftovers.py"]
    environment = {**os.environ, "PATH": str(tmp_path), "CI": ci}  # there is neither `ip` nor a compiler

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert done.returncode == ends, done
    assert "a real node needs" in done.stdout
    assert outcome in done.stdout
