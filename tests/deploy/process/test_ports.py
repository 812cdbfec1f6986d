"""Ports that servers of tests and of the demo get, several processes at once."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

import pytest

from deploy.local import ports

# of this process alone, and outside the range from which all others choose
FIRST = 32_000 + 10 * (os.getpid() % 70)
OTHER = """
import sys
from deploy.local import ports
ports._PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
print(*(ports.free_port() for _ in range(4)), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[deque[int]]:
    """Those of one test, which end with it."""
    made: deque[int] = deque()
    monkeypatch.setattr(ports, "_claims", made)
    yield made
    for each in made:
        os.close(each)


def test_no_port_is_chosen_twice_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range(FIRST, FIRST + 8)
    monkeypatch.setattr(ports, "_PORTS", few)
    command = [sys.executable, "-c", OTHER, str(few.start), str(few.stop)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        theirs = [int(each) for each in other.stdout.readline().split()]

        ours = [ports.free_port() for _ in range(4)]

        other.communicate()
    assert sorted(theirs + ours) == list(few)


def test_a_claim_ends_so_that_no_port_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_PORTS", range(FIRST, FIRST + 2))
    monkeypatch.setattr(ports, "_AT_ONCE", 1)

    first, second, third = (ports.free_port() for _ in range(3))

    assert first != second != third
