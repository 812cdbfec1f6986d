"""A run counts the processor time of all its processes, by tier."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent

# A group of two processes, of which the second works for a second; both are killed at once, so that the first
# does not wait for the second.
RUN = """
import os, signal, subprocess, sys
from tests.support.processor_time import Meter, adopt_orphans, record, watched

WORKS = "import os, time\\nwhile time.process_time() < 1.1: pass\\nos.write(1, b'x')\\ntime.sleep(600)"
STARTS = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {WORKS!r}]); time.sleep(600)"

def run():
    meter = Meter()
    adopt_orphans()
    started = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout.read(1) == b"x"
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()
    for name, seconds in meter.read("process").items():
        record(name, seconds, "tests/core/process/test_x.py")
    return 0

raise SystemExit(watched(run, 1.0, {"tests/core": BUDGET}))
"""


@pytest.mark.parametrize(("budget", "code"), [(1000, 0), (0, 1)])
def test_a_role_is_charged_with_what_was_killed_before_its_parent_could_wait_for_it_and_may_fail_the_run(
    budget: int, code: int
) -> None:
    run = RUN.replace("BUDGET", str(budget))
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == code, done.stderr
    rows = re.findall(r"^ +(\d+) +of +(\d+)  tests/core$", done.stdout, re.MULTILINE)
    assert rows == [("1", str(budget))]
    assert ("its budget is 0 (pyproject.toml)" in done.stdout) is bool(code)
