"""The pods of processes, and the pods that have processes, by the kernel's cgroups.

The kubelet makes a cgroup for each pod, named after its UID, and the container runtime one for each container
below it. The names depend on the cgroup driver (cgroupfs or systemd) and on the runtime, not on the cgroup
version. A container cannot leave its part of the tree, so the first pod in a path counts; the rest of the
path may be of the container's own making.
"""

from __future__ import annotations

import errno
import os
import re

from sidecar.node.values import ProcessOwner
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# UIDs are UUIDs; a static pod's is the hash of its manifest, 32 digits. systemd writes "_" for "-".
_UID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
# cgroupfs: pod<uid>; systemd: kubepods-burstable-pod<uid>.slice, with the name of a --cgroup-root before it;
# runtime with cgroupfs below a kubelet with systemd: the same with :cri-containerd:<id>.
_POD = re.compile(rf"(?:[^/]*kubepods[^/]*-)?pod({_UID})(?:\.slice)?(?::[a-z-]+:([0-9a-f]{{12,64}}))?")
# <id>, cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope
_CONTAINER = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{12,64})(?:\.scope)?")
# The kubelet makes its folders in every cgroup v1 hierarchy, and does not start without cpu.
_V1 = ("cpu", "cpu,cpuacct", "memory", "pids", "systemd")
# Levels above the pods' folders, for a kubelet's --cgroup-root.
_DEEPEST = 8
_MOST = 1 << 16


class NoPods(OSError):
    """There is no pod below the cgroup root. The agent runs as a pod, so this is not the node's tree."""


def owner_in(text: str) -> ProcessOwner | None:
    """The pod and container in the text of ``/proc/<pid>/cgroup``; None if it names no pod.

    Each line is one hierarchy (cgroup v2 has one), ``id:controllers:path``. The first line with a pod counts,
    for all name the same. A reader in a cgroup namespace of its own sees paths that begin with ``/..``; they
    still name the pod, unless it is the reader's own.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if found := _in(path.removesuffix(" (deleted)").split("/")):
            return found
    return None


def owners(proc: Path, pids: Iterable[int]) -> dict[int, ProcessOwner | None]:
    """By PID: the process's pod and container, None for a process of no pod. Ended processes are left out.

    ``proc``: the ``/proc`` of the node's PID namespace. Raises OSError if it cannot be read.
    """
    read = ((pid, _unless_gone(proc / str(pid) / "cgroup")) for pid in set(pids))
    return {pid: owner_in(text) for pid, text in read if text is not None}


def name_of(proc: Path, pid: int) -> str:
    """The name of a process, at most 15 letters; empty if it has ended. Raises OSError as `owners` does."""
    return (_unless_gone(proc / str(pid) / "comm") or "").strip()


def populated(root: Path) -> dict[str, bool]:
    """The UIDs of pods that have a cgroup, and whether any process is in it, a pause container's included.

    ``root``: the node's ``/sys/fs/cgroup``, of either version. Raises `NoPods` or another OSError.
    """
    found: dict[str, bool] = {}
    for uid, folder in _pods(_hierarchy(root)):
        found[uid] = found.get(uid, False) or _has_processes(folder)
    if not found:
        raise NoPods(errno.ENOENT, "no pod has a cgroup there: is it the node's /sys/fs/cgroup?", str(root))
    return found


def _in(parts: list[str]) -> ProcessOwner | None:
    for place, part in enumerate(parts):
        if match := _POD.fullmatch(part):
            below = _CONTAINER.fullmatch(parts[place + 1]) if place + 1 < len(parts) else None
            return ProcessOwner(_uid(match[1]), match[2] or (below[1] if below else ""))
    return None


def _uid(text: str) -> str:
    return text.replace("_", "-")


def _hierarchy(root: Path) -> Path:
    """The folder above the pods' folders: the root for cgroup v2, a controller's folder for v1."""
    if (root / "cgroup.controllers").exists():
        return root
    return next((root / name for name in _V1 if (root / name).is_dir()), root)


def _pods(top: Path) -> Iterator[tuple[str, str]]:
    deepest = len(top.parts) + _DEEPEST
    for folder, names, _ in os.walk(top, onerror=_unless_it_went):
        others = []
        for name in names:
            if match := _POD.fullmatch(name):
                yield _uid(match[1]), os.path.join(folder, name)
            else:
                others.append(name)
        names[:] = others if folder.count("/") + 1 < deepest else []


def _has_processes(folder: str) -> bool:
    # cgroup v2 reports on the whole tree below
    events = _unless_gone(os.path.join(folder, "cgroup.events"))
    if events is not None:
        return "populated 1" in events.splitlines()
    places = os.walk(folder, onerror=_unless_it_went)
    return any(_unless_gone(os.path.join(each, "cgroup.procs")) for each, _, _ in places)


def _unless_gone(path: str | Path) -> str | None:
    """The text of a kernel's file; None if the process or cgroup has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except OSError as error:
        _unless_it_went(error)
        return None


def _unless_it_went(error: OSError) -> None:
    # The process or cgroup ended meanwhile: no such file, process or cgroup.
    if error.errno not in (errno.ENOENT, errno.ESRCH, errno.ENODEV):
        raise error
