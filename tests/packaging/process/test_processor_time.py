"""A run counts the processor time of all its processes, by tier."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent

# A group of two processes, of which the second works for a second; both are killed at once, so that the first
# does not wait for the second.
WORLD = """
import os, signal, subprocess, sys
from tests.support.processor_time import Meter, adopt_orphans, record, watched

WORKS = "import os, time\\nwhile time.process_time() < 1.1: pass\\nos.write(1, b'x')\\ntime.sleep(600)"
STARTS = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {WORKS!r}]); time.sleep(600)"

def group():
    started = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout.read(1) == b"x"
    return started

def kill(started):
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()

def charge(tier):
    for name, seconds in meter.read(tier).items():
        record(name, seconds, f"tests/core/{tier}/test_x.py")

meter = Meter()
def run():
"""


def ran(*run: str, budgets: str = "{}", code: int = 7) -> str:
    """What a run of these lines tells."""
    body = "".join(f"    {line}\n" for line in run)
    lines = f"{WORLD}{body}    return {code}\n\nraise SystemExit(watched(run, 1.0, {budgets}))\n"
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == (code or int("its budget is" in done.stdout)), done.stderr
    return done.stdout


def taken(*run: str) -> dict[str, int]:
    """What it tells of each tier that took any, in seconds."""
    rows = re.findall(r"^ +(\d+) +\d+  (\S.*)", ran(*run), re.MULTILINE)
    return {name: int(seconds) for seconds, name in rows if int(seconds) and "all" not in name}


def test_a_tier_is_charged_with_what_was_killed_before_its_parent_could_wait_for_it() -> None:
    assert taken("adopt_orphans()", "kill(group())", "charge('process')") == {"process": 1}


def test_what_serves_several_tiers_is_charged_to_the_tier_that_began_it() -> None:
    shared = ["adopt_orphans()", "one, two = group(), group()", "charge('cluster')", "charge('unit')"]

    assert taken(*shared, "kill(one)", "kill(two)", "charge('unit')") == {"cluster": 2}


def test_what_no_tier_was_charged_with_is_start_up() -> None:
    assert taken("kill(group())") == {"checks and start-up": 1}


def test_a_run_fails_whose_role_is_above_its_budget() -> None:
    works = ("adopt_orphans()", "kill(group())", "charge('unit')")

    above = ran(*works, budgets="{'tests/core': 0}", code=0)
    below = ran(*works, budgets="{'tests/core': 9, 'tests/webhook': 0}", code=0)

    assert "tests/core took 1 units of processors, and its budget is 0 (pyproject.toml)" in above
    assert "its budget is" not in below
    assert re.search(r"^ +1 of +9  tests/core$", below, re.MULTILINE)


def test_a_process_that_runs_is_counted_by_its_kind() -> None:
    code = (
        "import subprocess, sys\n"
        "from tests.support.processor_time import Kinds\n"
        "works = 'import time\\nwhile time.process_time() < 1.1: pass\\nprint(1, flush=True)\\n'\n"
        "command = [sys.executable, '-c', works + 'time.sleep(600)']\n"
        "started = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "started.stdout.read(1)\n"
        "kinds = Kinds()\n"
        "kinds.look()\n"
        "print(*kinds.report(3.0), sep='\\n')\n"
        "started.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.stdout.splitlines()[:3] == [
        "== by kind of process",
        "       2 not seen",
        "       1 python -c",
    ]
