"""Uncaught exceptions in processes of ours."""

import json
import subprocess
import sys

from deploy.local.limits import LONGEST_S
from tests.packaging.checkout import ROOT

FAILS = """
from threading import Thread
from timekeeper.edge.log import configure, report_uncaught
configure("webhook", "json")
report_uncaught()
def fail():
    raise ValueError("two\\nlines")
thread = Thread(target=fail, name="poller")
thread.start()
thread.join()
fail()
"""


def test_an_exception_that_ends_a_thread_or_the_process_is_an_event_with_its_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S
    )

    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [(each["event"], each["level"], each["thread"], each["error"]) for each in found] == [
        ("uncaught", "error", "poller", "ValueError: two\nlines"),
        ("uncaught", "error", "main", "ValueError: two\nlines"),
    ]
    assert all("in fail\n" in each["trace"] for each in found)
