"""Removes what a real node leaves on a machine.

Containers outlive their kubelet, and so do mounts, the bridge, control groups and kernel settings. All have
fixed names, so the next run can remove what a killed run left, without any state of that run.

The node's programs also write outside of `FOLDER`, whatever their flags, into folders that a container
runtime of the machine's own would use too. There, only two things are removed: files that carry our names,
and, while no other runtime runs, files that only the node's programs can have made, if the folder holds
nothing else.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deploy.local.errors import LocalError
from deploy.local.limits import LONGEST_S

FOLDER = Path("/run/bursar-node")
LOCK = Path("/run/bursar-node.lock")
BRIDGE = "bursar0"
CGROUP = "bursar-node"
NETWORK = "bursar-node"

_CGROUPS = Path("/sys/fs/cgroup")
_ROOT = Path("/")
_BEFORE = FOLDER / "before.json"
_FORWARDING = "net/ipv4/ip_forward"
# The kubelet and the bridge plugin change these for the whole machine.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    _FORWARDING,
)
_BINARIES = ("kubelet", "containerd", "containerd-shim-runc-v2")
_RUNTIMES = (*_BINARIES, "dockerd", "crio")
_CONTAINER_LOGS = "/var/log/containers"
# libcni keeps each plugin's result here; containerd has no setting for the folder.
_CNI_RESULTS = "/var/lib/cni/results"
# The folders outside of FOLDER, each with the files that the kubelet and the shims of an older containerd
# (which has no setting for their place) leave in it.
SHARED_FOLDERS = {
    "/run/containerd": ("s/*",),
    "/var/lib/cni": (),
    "/var/lib/kubelet": ("device-plugins/kubelet.sock", "device-plugins/kubelet_internal_checkpoint"),
    _CONTAINER_LOGS: (),
}
_MNT_DETACH = 2
_LOOK_EVERY_S = 0.05


def remember() -> None:
    """Record the kernel settings that a kubelet changes, and which shared folders are missing, for
    `sweep`."""
    values = {name: _sysctl(name).read_text().strip() for name in _SYSCTLS if _sysctl(name).exists()}
    _BEFORE.write_text(json.dumps({"sysctls": values, "absent": missing_folders(_ROOT)}))


def sweep() -> None:
    """Remove all that a node, running or dead, has on this machine. Does nothing if there was no node.

    The caller holds `LOCK`. Raises LocalError if something cannot be removed.
    """
    _until("the processes of an earlier node to end", _killed)
    _until(f"the mounts below {FOLDER} to go", _unmounted)
    _until(f"the control groups named {CGROUP} to go", _cgroups_removed)
    if Path("/sys/class/net", BRIDGE).exists():
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True, capture_output=True)
    remove_named(_ROOT, NETWORK, FOLDER)
    if FOLDER.exists():
        _restore()
        shutil.rmtree(FOLDER)


def cgroup_folders() -> list[Path]:
    """The paths of our control group: one per hierarchy of cgroup v1, one for cgroup v2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / CGROUP]
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = ("cgroup", "cgroup2")
    return [Path(words[4]) / CGROUP for words in mounts if words[words.index("-") + 1] in kinds]


def _killed() -> bool:
    """Kill the processes in our control groups and our node's programs. True if there were none."""
    found = {*_in_cgroups(), *_by_command_line()}
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has ended meanwhile
    return not found


def _in_cgroups() -> Iterator[int]:
    for folder in cgroup_folders():
        for listed in folder.rglob("cgroup.procs"):
            # 0 stands for a process outside of this PID namespace; kill(0) would kill our own process group
            yield from (pid for pid in map(int, _text(listed).split()) if pid > 0)


def has_other_kubelet() -> bool:
    """Whether another kubelet runs here. Two would share the folder for device plugins' sockets, which no
    flag moves."""
    return any(name == "kubelet" and not ours for _, name, ours in _processes())


def has_other_runtime() -> bool:
    """Whether another kubelet or container runtime runs here."""
    return any(name in _RUNTIMES and not ours for _, name, ours in _processes())


def _by_command_line() -> Iterator[int]:
    yield from (pid for pid, name, ours in _processes() if name in _BINARIES and ours)


def _processes() -> Iterator[tuple[int, str, bool]]:
    """PID and program of each process, and whether it is ours: whether an argument is a path below
    `FOLDER`."""
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
    """Remove our control groups, the innermost first. True if there were none. The kernel refuses (EBUSY)
    while a group's last process is still ending."""
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
    """Restore kernel settings, and remove shared folders unless another runtime uses them by now. A run that
    was killed before `remember` had written the file has changed none of them."""
    before = json.loads(_text(_BEFORE) or '{"sysctls": {}, "absent": []}')
    is_shared = has_other_runtime()
    for name, value in before["sysctls"].items():
        # A runtime that was started since then needs forwarding.
        is_wanted = is_shared and name == _FORWARDING
        if _sysctl(name).read_text().strip() != value and not is_wanted:
            _sysctl(name).write_text(value)
    if not is_shared:
        remove_shared(_ROOT, before["absent"], _mount_points())


def missing_folders(root: Path) -> list[str]:
    """The shared folders that do not exist below ``root`` (``/``, except in tests)."""
    return [folder for folder in SHARED_FOLDERS if not _below(root, folder).exists()]


def remove_named(root: Path, network: str, folder: Path) -> None:
    """Remove the files that carry our names: the network's CNI results, and links to logs below
    ``folder``."""
    results = _below(root, _CNI_RESULTS)
    for result in list(results.glob(f"{network}-*")):
        sandbox = result.name.removeprefix(f"{network}-").partition("-")[0]
        (results / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        result.unlink()
    for link in list(_below(root, _CONTAINER_LOGS).glob("*")):
        if link.is_symlink() and link.readlink().is_relative_to(folder):
            link.unlink()


def remove_shared(root: Path, folders: Iterable[str], mounts: Iterable[str]) -> None:
    """Remove the node's other files from these shared folders, and the folders that are empty then. Call it
    only while no other runtime runs. ``mounts``: every mount point; a folder with one in it is left alone."""
    points = [Path(point) for point in mounts]
    for folder in folders:
        place = _below(root, folder)
        if folder in SHARED_FOLDERS and place.is_dir() and not any(at.is_relative_to(place) for at in points):
            _remove_files(place, SHARED_FOLDERS[folder])


def _remove_files(place: Path, patterns: tuple[str, ...]) -> None:
    found = {each for each in place.rglob("*") if each.is_symlink() or not each.is_dir()}
    if found <= {each for pattern in patterns for each in place.glob(pattern)}:  # else others use the folder
        for each in found:
            each.unlink(missing_ok=True)
        _remove_if_empty(place)


def _remove_if_empty(place: Path) -> None:
    folders = [each for each in place.rglob("*/") if each.is_dir() and not each.is_symlink()]
    for each in sorted([place, *folders], reverse=True):
        try:
            each.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _below(root: Path, folder: str) -> Path:
    return root / folder.removeprefix("/")


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", name)


def _text(file: Path) -> str:
    """A file's text; empty if it has vanished, as files of processes and control groups do."""
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:  # a control group that was removed while it was open
            return ""
        raise


def _until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not is_so():
        if time.monotonic() > end:
            raise LocalError(f"waited {LONGEST_S:.0f} s for {what}; it did not happen")
        time.sleep(_LOOK_EVERY_S)
