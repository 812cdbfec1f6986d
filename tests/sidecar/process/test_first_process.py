"""What `python` is in the sidecar's image (deploy/first-process.sh), with programs in place of Python."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.reading import ROOT

PROGRAM = ROOT / "deploy" / "first-process.sh"
WAITS = "while True: signal.pause()"
POSTS = "signal.signal(signal.SIGTERM, lambda *_: (print('posted'), sys.exit(7)))"


def started(folder: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    """It, with this program for `python3`, which begins with its ID and that of its parent."""
    *lines, last = program.split("; ")
    said = "print(os.getpid(), os.getppid(), flush=True)"
    python = folder / "python3"
    python.write_text("\n".join((f"#!{sys.executable}", "import os, signal, sys", *lines, said, last)))
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.Popen([PROGRAM, *arguments], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("program", "posted"), [(WAITS, ""), (f"{POSTS}; {WAITS}", "posted\n")])
def test_it_ends_with_0_whether_or_not_its_child_handles_the_signal(
    tmp_path: Path, program: str, posted: str
) -> None:
    with started(tmp_path, program, "-m", "sidecar") as process:
        assert process.stdout is not None
        child, parent = map(int, process.stdout.readline().split())

        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()

    assert (process.returncode, parent == process.pid, said) == (0, True, posted)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_it_ends_as_its_child_does(tmp_path: Path) -> None:
    process = started(tmp_path, "sys.exit(3)", "-m", "sidecar")
    process.communicate()

    assert process.returncode == 3


def test_the_agent_takes_its_place(tmp_path: Path) -> None:
    with started(
        tmp_path, "sys.exit(sys.argv[1:] != ['-m', 'sidecar.node'])", "-m", "sidecar.node"
    ) as process:
        assert process.stdout is not None
        child, _ = map(int, process.stdout.readline().split())

    assert (process.returncode, child) == (0, process.pid)
