"""Ports that servers of tests and of the demo get, several processes at once."""

import subprocess
import sys

import pytest

from deploy.local import ports

FEW = range(32_100, 32_108)
OTHER = """
import sys
from deploy.local import ports
ports._PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
print(*(ports.free_port() for _ in range(4)), flush=True)
sys.stdin.read()
"""


def test_no_port_is_chosen_twice_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_PORTS", FEW)
    command = [sys.executable, "-c", OTHER, str(FEW.start), str(FEW.stop)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        theirs = [int(each) for each in other.stdout.readline().split()]

        ours = [ports.free_port() for _ in range(4)]

        other.communicate()
    assert sorted(theirs + ours) == list(FEW)


def test_a_claim_ends_so_that_no_port_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_PORTS", range(32_110, 32_112))
    monkeypatch.setattr(ports, "_AT_ONCE", 1)

    first, second, third = (ports.free_port() for _ in range(3))

    assert first != second != third
