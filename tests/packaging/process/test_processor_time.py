"""A run counts the processor time of all its processes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processor_time import family, running, spent_s

ROOT = Path(__file__).parent.parent.parent.parent
SECOND = os.sysconf("SC_CLK_TCK")  # in ticks

# A group of two processes; both are killed at once, so that the first does not wait for the second.
RUN = """
import os, signal, subprocess, sys
from tests.support.processor_time import Meter, adopt_orphans, running, watched
from tests.support.waiting import eventually

WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
STARTS = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {WAITS!r}]); time.sleep(600)"

def run():
    meter = Meter()
    adopt_orphans()
    started = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, start_new_session=True)
    second = int(started.stdout.readline())
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()
    eventually(lambda: running()[second][:2] == ["Z", str(os.getpid())], "to adopt it when it has ended")
    meter.read("process")
    assert second not in running()
    return 0

raise SystemExit(watched(run, 1.0))
"""


def test_what_was_killed_before_its_parent_could_wait_for_it_is_waited_for_and_so_is_counted() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_the_family_of_a_process_is_all_that_runs_below_it() -> None:
    waits = "import os; print(os.getpid(), flush=True); input()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", starts], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        seen = running()
        process.communicate(b"\n")

    assert family(process.pid, seen) == [process.pid, below]


def test_the_time_of_processes_is_their_own_and_that_of_the_ended_that_they_waited_for() -> None:
    seen = {
        7: stat(1, 1, 2, 3, 4),
        8: stat(7, 0, 0, 10, 0),
        9: stat(8, 20, 0, 0, 0),
        10: stat(1, 50, 0, 0, 0),
    }

    assert family(7, seen) == [7, 8, 9]
    assert (spent_s([7, 8, 9], seen), spent_s([8], seen)) == (40, 10)


def stat(parent: int, *seconds: int) -> list[str]:
    """The fields of a process behind its name, with so much time in user and system mode, its own and that of
    its ended children."""
    return ["S", str(parent), *9 * ["0"], *(str(number * SECOND) for number in seconds)]
