"""What a node leaves on the machine whose owner is killed."""

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local.cleanup import BRIDGE, FOLDER, cgroup_folders
from deploy.local.launcher import Launcher
from deploy.local.real_node import NodeHost
from tests.deploy.reading import ROOT
from tests.kubelet.dies import CHANGED, PANIC

# What containerd's own programs keep to where nobody tells them otherwise.
THEIRS = Path("/run/containerd")


@dataclass(frozen=True, slots=True)
class Left:
    """What was there after the kill: the container's process (None: none came to run), the parts of the node
    by name, and what it made in containerd's own folder; what the owner said; and the kernel setting as it
    was before all this."""

    pid: int | None
    parts: frozenset[str]
    elsewhere: frozenset[Path]
    said: str
    panic: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The next node's machine; whether the container that was left still ran then, and the setting."""

    machine: NodeHost
    container: bool
    panic: str


def leave_behind(archive: Path) -> Left:
    """Have a node set up by a process of its own, which ends with this one, and kill that."""
    before = frozenset(THEIRS.rglob("*"))
    command = [sys.executable, "-m", "tests.kubelet.dies", str(archive)]
    with Launcher() as launcher:
        process = launcher.start(command, subprocess.PIPE, folder=ROOT)
        assert process.stdout is not None
        with process.stdout:
            first = process.stdout.readline().decode()
            is_there = first[:1].isdigit()
            if is_there:
                process.send_signal(signal.SIGKILL)  # else it says why, and ends
            said = first + process.stdout.read().decode()
    pid, panic = first.split() if is_there else (None, "")
    number = int(pid) if pid else None
    return Left(number, parts(number), frozenset(THEIRS.rglob("*")) - before, said, panic)


def parts(pid: int | None) -> frozenset[str]:
    """What of a node is on this machine."""
    mounted = any(f" {FOLDER}/" in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    there = {
        "container": pid is not None and is_alive(pid),
        "mounts": mounted,
        "bridge": Path("/sys/class/net", BRIDGE).exists(),
        "control groups": any(folder.exists() for folder in cgroup_folders()),
        "folder": FOLDER.exists(),
        "kernel setting": PANIC.read_text().strip() == CHANGED,
    }
    return frozenset(name for name, is_there in there.items() if is_there)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
