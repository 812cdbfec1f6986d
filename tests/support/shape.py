"""The shape in which a role is installed: a command with the memory, the read-only root, the volumes and the
open files of the manifests' container. Needs root, mounts and control groups, and fails where it has none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.deploy.reading import ROOT, template, workloads
from tests.support.waiting import eventually
from timekeeper.core.admission.mutation import sidecar
from timekeeper.core.quantity import integral

Json = dict[str, Any]

CONTAINERS = {
    "timekeeper": "bursar-timekeeper/timekeeper",
    "webhook": "bursar-webhook/webhook",
    "extender": "bursar-scheduler/extender",
    "agent": "bursar-node/agent",
}
FILES = 1024  # open files, until a process raises its own limit: systemd's, and so containerd's
TMP = Path("/tmp")
_CGROUPS = Path("/sys/fs/cgroup")
_GROUP = "bursar-shape-"
_LIMITS = {  # by whether it is version 2; without swap
    False: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    True: ("memory.max", "memory.swap.max"),
}

# Arguments: the memory's group, the number of open files, where /tmp is made, its size (0: none), what stays
# visible below it, "--", of each other volume its folder, size and image ("": in memory), "--", the command.
# All of it goes with the command's mount namespace.
_ENTER = r"""
set -e
echo $$ > "$1/cgroup.procs"; ulimit -Sn "$2"; made=$3 size=$4; shift 4
cut -d" " -f5 /proc/self/mountinfo | grep ^/tmp/ | sort -r | while read -r at; do umount -n -l "$at"; done
readonly=$(cut -d' ' -f5 /proc/self/mountinfo | grep -v ^/tmp | sort -u)
mount -n -t tmpfs -o "size=$size" none "$made"
while [ "$1" != -- ]; do
  mkdir -p "$made${1#/tmp}"; mount -n --bind "$1" "$made${1#/tmp}"; readonly="$readonly $1"; shift
done
mount -n --move "$made" /tmp
while shift; [ "$1" != -- ]; do
  if [ "$3" ]; then  # by a mount of its own, for one with an open image does not become read-only
    mount -n --bind "$3" "$3"; mount -n -o loop "$3" "$1"; umount -n -l "$3"
  else
    mount -n -t tmpfs -o "size=$2" none "$1"
  fi
  shift 2
done
[ "$size" != 0 ] || readonly="$readonly /tmp"
for point in $readonly; do  # one that goes meanwhile, as a network of a container does, needs none
  mount -n -o remount,bind,ro "$point" || if mountpoint -q "$point"; then exit 1; fi
done
shift; cd "$PWD"; unset TMPDIR SQLITE_TMPDIR; exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Volume:
    """A place that may be written."""

    path: Path
    size: int
    in_memory: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """``memory_bytes``: 0 where it has no limit."""

    memory_bytes: int
    volumes: Mapping[str, Volume]


def shape_of(role: str) -> Shape:
    """What the manifests say, or the webhook for the sidecar."""
    if role == "sidecar":
        container = {"volumeMounts": sidecar.MOUNTS, "securityContext": sidecar.SECURITY_CONTEXT}
        return _shape(container, sidecar.VOLUMES)
    workload, _, name = CONTAINERS[role].partition("/")
    (found,) = (each for each in workloads() if each["metadata"]["name"] == workload)
    pod = template(found)["spec"]
    (container,) = (each for each in pod["containers"] if each["name"] == name)
    return _shape(container, [*pod["volumes"], *found["spec"].get("volumeClaimTemplates", ())])


def _shape(container: Json, volumes: Any) -> Shape:
    assert container["securityContext"]["readOnlyRootFilesystem"]
    paths = {each["name"]: Path(each["mountPath"]) for each in container["volumeMounts"]}
    found = {}
    for each in volumes:
        if (folder := each.get("emptyDir")) and each["name"] in paths:
            in_memory = folder.get("medium") == "Memory"
            found[each["name"]] = Volume(paths[each["name"]], _bytes(folder["sizeLimit"]), in_memory)
        elif claim := each.get("spec"):
            name, size = each["metadata"]["name"], claim["resources"]["requests"]["storage"]
            found[name] = Volume(paths[name], _bytes(size), in_memory=False)
    return Shape(_bytes(container.get("resources", {}).get("limits", {}).get("memory", 0)), found)


def _bytes(quantity: object) -> int:
    size = integral(quantity)
    assert size is not None, quantity
    return size


class Installed:
    """A shape on this machine. ``prefix`` comes before a command, whose process it becomes. ``folder`` has a
    folder for each volume, by its name, in which only such commands see the volume."""

    def __init__(self, shape: Shape, folder: Path, group: Path, seen: tuple[Path, ...]) -> None:
        self.shape, self.folder, self._group = shape, folder, group
        volumes, tmp_bytes = list[str](), 0
        (made := folder / "tmp").mkdir()
        for name, volume in shape.volumes.items():
            (folder / name).mkdir(exist_ok=True)
            if volume.path == TMP:
                tmp_bytes = volume.size
            else:
                image = "" if volume.in_memory else _image(folder / f"{name}.ext4", volume.size)
                volumes += [str(folder / name), str(volume.size), image]
        below = {each for each in (folder, ROOT, Path(sys.prefix), *seen) if each.is_relative_to(TMP)}
        visible = [str(each) for each in below if not below & {*each.parents}]
        self.prefix = [
            *(_program("unshare"), "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh"),
            *(str(group), str(FILES), str(made), str(tmp_bytes), *visible, "--"),
            *(*volumes, "--"),
        ]

    def check(self, pid: int) -> None:
        """Fails where the process has not these limits, or where it could write anything else."""
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        options = {line.split()[4]: line.split()[5].split(",") for line in lines}  # of the uppermost
        writable = {point for point, each in options.items() if "rw" in each}
        sizes = {
            str(TMP if volume.path == TMP else self.folder / name): volume.size
            for name, volume in self.shape.volumes.items()
        }
        assert writable == sizes.keys()
        for point, size in sizes.items():
            there = os.statvfs(f"/proc/{pid}/root{point}")
            assert 0.9 * size < there.f_blocks * there.f_frsize <= size  # a file system's own blocks
        assert str(pid) in (self._group / "cgroup.procs").read_text().split()
        if self.shape.memory_bytes:
            limit, swap = [(self._group / name).read_text().strip() for name in _LIMITS[_is_v2()]]
            assert (int(limit), swap) == (self.shape.memory_bytes, "0" if _is_v2() else limit)
        files = Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()
        assert int(files[0]) == FILES

    @property
    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for memory."""
        return _numbers(self._group / ("memory.events" if _is_v2() else "memory.oom_control"))["oom_kill"]

    @property
    def anonymous_mib(self) -> int:
        """What its processes have of memory that is no file's."""
        return _numbers(self._group / "memory.stat")["anon" if _is_v2() else "rss"] // 2**20


@contextmanager
def installed(shape: Shape, folder: Path, *seen: Path) -> Iterator[Installed]:
    """``seen``: what else of /tmp its commands see. They must have ended at the end."""
    for left in _memory().glob(f"{_GROUP}*"):
        if not Path("/proc", left.name.split("-")[2]).exists():  # whoever made it was killed
            with suppress(OSError):
                left.rmdir()
    group = Path(mkdtemp(prefix=f"{_GROUP}{os.getpid()}-", dir=_memory()))
    try:
        for name in _LIMITS[_is_v2()] if shape.memory_bytes else ():
            (group / name).write_text("0" if name == "memory.swap.max" else str(shape.memory_bytes))
        yield Installed(shape, folder, group, seen)
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "the end of the commands")
        group.rmdir()


def _is_v2() -> bool:
    return (_CGROUPS / "cgroup.controllers").exists()


def _memory() -> Path:
    """Where groups of memory are made."""
    if not _is_v2():
        return _CGROUPS / "memory"
    (_CGROUPS / "cgroup.subtree_control").write_text("+memory")
    return _CGROUPS


def _numbers(file: Path) -> dict[str, int]:
    return {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}


def _image(file: Path, size: int) -> str:
    """A file system of this size, of which the file holds what is written."""
    file.touch()
    os.truncate(file, size)
    subprocess.run([_program("mkfs.ext4"), "-q", "-m0", str(file)], check=True)
    return str(file)


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.defpath}:/sbin:/usr/sbin")
    assert found, f"this machine has no {name}"
    return found
