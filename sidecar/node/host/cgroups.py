"""Whose a process is, and which pods have processes, by the kernel's cgroups.

The kubelet gives each pod a cgroup named after the pod's UID, and the container runtime one to each container
below it. Their spelling depends on the cgroup driver (cgroupfs or systemd) and on the runtime, not on the
cgroup version. A container cannot leave its own part of the tree, so of several pods in a path the first
counts: what follows is the container's own doing.
"""

from __future__ import annotations

import errno
import os
import re

from sidecar.node.values import ProcessOwner
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# UIDs are UUIDs; a static pod's is the hash of its manifest, 32 digits. systemd wants "_" for "-".
_UID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
# cgroupfs: pod<uid>; systemd: kubepods-burstable-pod<uid>.slice, below a --cgroup-root with its name before;
# a runtime that was told cgroupfs while the kubelet has systemd: the last with :cri-containerd:<id>.
_POD = re.compile(rf"(?:[^/]*kubepods[^/]*-)?pod({_UID})(?:\.slice)?(?::[a-z-]+:([0-9a-f]{{12,64}}))?")
# <id>, cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope
_CONTAINER = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{12,64})(?:\.scope)?")
# In every cgroup v1 hierarchy the kubelet makes its folders; cpu is one it does not start without.
_V1 = ("cpu", "cpu,cpuacct", "memory", "pids", "systemd")
# The tree below the pods is theirs; above them a kubelet's --cgroup-root may stand.
_DEEPEST = 8
_MOST = 1 << 16


class NoPods(OSError):
    """Not one pod below a cgroup root: on a node that runs the agent as a pod, it is not the node's tree."""


def seated(text: str) -> ProcessOwner | None:
    """The pod and container that a ``/proc/<pid>/cgroup`` names; None where it names no pod.

    Each line is one hierarchy (of cgroup v2 there is but one), ``id:controllers:path``; the first that names
    a pod counts, for all name the same. ``container_id`` is empty where the path ends at the pod. In a cgroup
    namespace of its own the reader sees paths that begin with ``/..``; they still name the pod, unless it is
    the reader's.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if found := _in(path.removesuffix(" (deleted)").split("/")):
            return found
    return None


def seats(proc: Path, pids: Iterable[int]) -> dict[int, ProcessOwner | None]:
    """By process: its pod and container, None for a process of no pod. One that has ended is left out.

    ``proc`` is the node's, as a process of the node's PID namespace sees it. ``OSError`` where it cannot be
    read.
    """
    read = ((pid, _unless_gone(proc / str(pid) / "cgroup")) for pid in set(pids))
    return {pid: seated(text) for pid, text in read if text is not None}


def name_of(proc: Path, pid: int) -> str:
    """What a process calls itself, at most 15 letters; empty where it has ended. ``OSError`` as `seats`."""
    return (_unless_gone(proc / str(pid) / "comm") or "").strip()


def boot(proc: Path) -> str:
    """The node's boot ID, which the kernel makes anew at each boot. ``OSError`` where it cannot be read."""
    return (proc / "sys/kernel/random/boot_id").read_text("ascii").strip()


def populated(root: Path) -> dict[str, bool]:
    """The pods that have a cgroup, by UID, and whether any process is in it, a pause container's included.

    ``root`` is the node's ``/sys/fs/cgroup``, of either version. `NoPods`, or another ``OSError``, where it
    cannot be told.
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
    """Where the pods' folders are: of cgroup v2 the root itself, of v1 below a controller's name."""
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
    # cgroup v2 tells of the whole tree below
    events = _unless_gone(os.path.join(folder, "cgroup.events"))
    if events is not None:
        return "populated 1" in events.splitlines()
    places = os.walk(folder, onerror=_unless_it_went)
    return any(_unless_gone(os.path.join(each, "cgroup.procs")) for each, _, _ in places)


def _unless_gone(path: str | Path) -> str | None:
    """The text of a kernel's file; None once what it tells of has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except OSError as error:
        _unless_it_went(error)
        return None


def _unless_it_went(error: OSError) -> None:
    # Reading what goes away meanwhile: no such file, no such process, no such cgroup.
    if error.errno not in (errno.ENOENT, errno.ESRCH, errno.ENODEV):
        raise error
