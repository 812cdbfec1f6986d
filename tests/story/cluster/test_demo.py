"""``make demo`` itself: the whole story on a real control plane, and nothing left behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.demo.steps import STEPS
from deploy.local.limits import LONGEST_S
from tests.packaging.checkout import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.traced, pytest.mark.make_test("says in its docs what it does")]

COMMAND = [sys.executable, "-m", "deploy.local", "demo"]


def start(temporary: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes that were started in the folder, or with a path in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            started_in = str((entry / "cwd").readlink())
        except OSError:  # it ended while we looked
            continue
        if str(folder) in f"{started_in} {words}":
            found.append(words)
    return found


def test_the_main_job_holds_step_by_step_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start(tmp_path)
    output, _ = process.communicate(timeout=240)

    assert process.returncode == 0, output
    assert re.findall(r"^(\d+)\. ", output, re.MULTILINE) == [str(n) for n in range(1, len(STEPS) + 1)]
    assert f"All {len(STEPS)} steps passed" in output
    for claim in (
        "multiple of 100",
        "no card has 5000 MiB free",
        "posted + pending = ",
        "gpu-lower-priority, priority -5",
        "the pod of team-b was preempted",
        "waits behind Bursar's gate",
        "equals the ledger to the unit",
    ):
        assert claim in output, claim
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def runs(folder: Path, program: str) -> bool:
    """Whether a program of the control plane was started in the folder."""
    return any(f"/{program} " in line for line in processes_of(folder))


def read_to_step_one(process: subprocess.Popen[str]) -> None:
    """Wait until the cluster is there and the first step begins."""
    assert process.stdout is not None
    output = []
    for line in process.stdout:
        if line.startswith("1. "):
            return
        output.append(line)
    raise AssertionError(f"the demo ended before its first step: {''.join(output)}")


@pytest.mark.soak  # `up` is interrupted in the same way (tests/local/cluster/test_local_up.py)
def test_an_interrupted_demo_stops_all_that_it_started(tmp_path: Path) -> None:
    process = start(tmp_path)
    read_to_step_one(process)
    interrupted(process, tmp_path, signal.SIGINT)


def test_a_demo_that_is_ended_while_it_starts_stops_all_that_it_started(tmp_path: Path) -> None:
    process = start(tmp_path)
    eventually(lambda: runs(tmp_path, "kube-apiserver") or process.poll() is not None, "the API server")
    interrupted(process, tmp_path, signal.SIGTERM)


def interrupted(process: subprocess.Popen[str], folder: Path, number: signal.Signals) -> None:
    """Send the signal: the demo ends, and nothing of it stays."""
    assert processes_of(folder)

    process.send_signal(number)
    process.communicate(timeout=LONGEST_S)

    assert process.returncode in (130, 128 + number)
    eventually(lambda: processes_of(folder) == [], lambda: processes_of(folder))
    assert list(folder.iterdir()) == []


@pytest.mark.soak  # what outlives no killed parent: tests/local/cluster/test_local_cluster.py
def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path)
    read_to_step_one(process)

    process.kill()
    process.communicate(timeout=LONGEST_S)

    eventually(lambda: processes_of(tmp_path) == [], lambda: processes_of(tmp_path))
