"""What a real node leaves on a machine, and taking it away.

A kubelet's containers outlive it, and so do mounts, a bridge, control groups and kernel settings. All of them
have fixed names, so that whoever comes next can take away what a killed process left, without being told.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy.local import outside
from deploy.local.errors import LocalError

FOLDER = Path("/run/bursar-node")
LOCK = Path("/run/bursar-node.lock")
BRIDGE = "bursar0"
CGROUP = "bursar-node"
NETWORK = "bursar-node"

_CGROUPS = Path("/sys/fs/cgroup")
_ROOT = Path("/")
_BEFORE = FOLDER / "before.json"
_FORWARDING = "net/ipv4/ip_forward"
# The kubelet and the bridge plugin set these for the whole machine.
_SET_BY_OTHERS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    _FORWARDING,
)
_BINARIES = ("kubelet", "containerd", "containerd-shim-runc-v2")
_BINARIES_OF_OTHERS = (*_BINARIES, "dockerd", "crio")
_MNT_DETACH = 2
_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.05


def remember() -> None:
    """Note the kernel settings that a kubelet changes, and which folders are not there, for `sweep`."""
    values = {name: _sysctl(name).read_text().strip() for name in _SET_BY_OTHERS if _sysctl(name).exists()}
    _BEFORE.write_text(json.dumps({"sysctls": values, "absent": outside.absent(_ROOT)}))


def sweep() -> None:
    """Take away all that a node, running or dead, has on this machine; nothing where there was none.

    Only for who holds the lock. Raises LocalError where something does not go.
    """
    _until("the processes of an earlier node to end", _killed)
    _until(f"the mounts below {FOLDER} to go", _unmounted)
    _until(f"the control groups named {CGROUP} to go", _cgroups_removed)
    if Path("/sys/class/net", BRIDGE).exists():
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True, capture_output=True)
    outside.take_named(_ROOT, NETWORK, FOLDER)
    if FOLDER.exists():
        _restore()
        shutil.rmtree(FOLDER)


def cgroup_folders() -> list[Path]:
    """Where this machine's control groups have one of ours: one for each hierarchy of version 1, and one of
    version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / CGROUP]
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = ("cgroup", "cgroup2")
    return [Path(words[4]) / CGROUP for words in mounts if words[words.index("-") + 1] in kinds]


def _killed() -> bool:
    """Kill what runs in our control groups or belongs to our node; whether nothing was left to kill."""
    found = {*_in_cgroups(), *_by_command_line()}
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has just ended by itself
    return not found


def _in_cgroups() -> Iterator[int]:
    for folder in cgroup_folders():
        for listed in folder.rglob("cgroup.procs"):
            # 0 is a process that this namespace does not see; to kill it would be to kill our own group
            yield from (pid for pid in map(int, _text(listed).split()) if pid > 0)


def has_other_kubelet() -> bool:
    """Whether a kubelet runs here that is not ours: two would share a folder for device plugins' sockets,
    which no flag moves."""
    return any(name == "kubelet" and not ours for _, name, ours in _processes())


def has_other_runtime() -> bool:
    """Whether a kubelet or a container runtime runs here that is not ours."""
    return any(name in _BINARIES_OF_OTHERS and not ours for _, name, ours in _processes())


def _by_command_line() -> Iterator[int]:
    yield from (pid for pid, name, ours in _processes() if name in _BINARIES and ours)


def _processes() -> Iterator[tuple[int, str, bool]]:
    """Every process by its program, and whether it is told a path below our folder, as all of ours are."""
    for process in Path("/proc").glob("[0-9]*"):
        words = _text(process / "cmdline").split("\0")
        ours = any(word.rpartition("=")[2].startswith(f"{FOLDER}/") for word in words)
        yield int(process.name), Path(words[0]).name, ours


def _unmounted() -> bool:
    ours = [point for point in _mount_points() if Path(point).is_relative_to(FOLDER)]
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(ours):
        libc.umount2(point.encode(), _MNT_DETACH)
    return not ours


def _mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _cgroups_removed() -> bool:
    """Remove the groups, the innermost first; whether none was left. One whose last process is just ending
    cannot be removed yet."""
    left = False
    for folder in cgroup_folders():
        for each in sorted([folder, *folder.rglob("*/")], reverse=True):
            if not each.is_dir():
                continue
            left = True
            try:
                each.rmdir()
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOENT):
                    raise
    return not left


def _restore() -> None:
    """Make kernel settings what they were, and folders where nobody else has begun to use them. Who was
    killed before it had noted them has not changed them."""
    before = json.loads(_text(_BEFORE) or '{"sysctls": {}, "absent": []}')
    is_shared = has_other_runtime()
    for name, value in before["sysctls"].items():
        # Another runtime, begun since, cannot do without forwarding.
        is_wanted = is_shared and name == _FORWARDING
        if _sysctl(name).read_text().strip() != value and not is_wanted:
            _sysctl(name).write_text(value)
    if not is_shared:
        outside.take_made(_ROOT, before["absent"], _mount_points())


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", name)


def _text(file: Path) -> str:
    """A file's text; none where it has just gone, as those of processes and control groups do."""
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:  # a control group that was removed, to whoever still reads it
            return ""
        raise


def _until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + _WITHIN_S
    while not is_so():
        if time.monotonic() > end:
            raise LocalError(f"waited {_WITHIN_S:.0f} s in vain for {what}")
        time.sleep(_LOOK_EVERY_S)
