"""A run counts the processor time of all its processes, by tier."""

import re
import subprocess
import sys
from pathlib import Path

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

raise SystemExit(watched(run, 1.0))
"""


def test_a_role_is_charged_with_what_was_killed_before_its_parent_could_wait_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ +(\d+)  tests/core$", done.stdout, re.MULTILINE) == ["1"]
