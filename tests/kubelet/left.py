"""What a node leaves on the machine whose owner is killed."""

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local.leftovers import BRIDGE, FOLDER, cgroup_folders
from deploy.local.node import Machine
from tests.deploy.reading import ROOT

PANIC = Path("/proc/sys/kernel/panic")


@dataclass(frozen=True, slots=True)
class Left:
    """What was there after the kill: the container's process and the parts of the node by name; and the
    kernel setting as it was before all this."""

    pid: int
    parts: frozenset[str]
    panic: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The next node's machine; whether the container that was left still ran then, and the setting."""

    machine: Machine
    container: bool
    panic: str


def leave_behind(archive: Path) -> Left:
    """Have a node set up by a process of its own and kill that."""
    panic = PANIC.read_text()
    command = [sys.executable, "-m", "tests.kubelet.dies", str(archive)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # "left    4711    RUNNING"
        said = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    assert len(said) > 1, "no container came to run"
    pid = int(said[1])
    return Left(pid, parts(pid), panic)


def parts(pid: int) -> frozenset[str]:
    """What of a node is on this machine."""
    mounted = any(f" {FOLDER}/" in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    there = {
        "container": is_alive(pid),
        "mounts": mounted,
        "bridge": Path("/sys/class/net", BRIDGE).exists(),
        "control groups": any(folder.exists() for folder in cgroup_folders()),
        "folder": FOLDER.exists(),
        "kernel setting": PANIC.read_text().strip() == "77",
    }
    return frozenset(name for name, is_there in there.items() if is_there)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
