"""Whose a process is, by the path of its cgroup, and which pods still have processes."""

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.host import cgroups
from sidecar.node.values import ProcessOwner

UID = "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8"
LOW = UID.replace("-", "_")
ID = "c8b38413c88eefe063b8cd3f01c16be5e3bda9693a19a68a88807baca9feb937"
OTHER_UID = "b4e8e0dc-caf3-4a43-bf50-f84ef5ef7a8f"
STATIC = "8f3a0b6c1d2e4f5061728394a5b6c7d8"

# As they were seen on nodes, but for UIDs and IDs.
PATHS = {
    "containerd with cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "containerd with cgroupfs, guaranteed": f"/kubepods/pod{UID}/{ID}",
    "containerd with systemd": f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{LOW}.slice"
    f"/cri-containerd-{ID}.scope",
    "containerd with systemd, guaranteed": f"/kubepods.slice/kubepods-pod{LOW}.slice"
    f"/cri-containerd-{ID}.scope",
    "kind": "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
    f"/kubelet-kubepods-besteffort-pod{LOW}.slice/cri-containerd-{ID}.scope",
    "kind, seen from its machine": "/docker/0123456789abcdef/kubelet/kubepods/burstable/" + f"pod{UID}/{ID}",
    "containerd told cgroupfs under a kubelet with systemd": "/system.slice/containerd.service"
    f"/kubepods-burstable-pod{LOW}.slice:cri-containerd:{ID}",
    "CRI-O with systemd": "/kubepods.slice/kubepods-burstable.slice"
    f"/kubepods-burstable-pod{LOW}.slice/crio-{ID}.scope",
    "CRI-O with systemd and crun": "/kubepods.slice/kubepods-burstable.slice"
    f"/kubepods-burstable-pod{LOW}.slice/crio-{ID}.scope/container",
    "CRI-O's monitor": f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-conmon-{ID}.scope",
    "CRI-O with cgroupfs": f"/kubepods/besteffort/pod{UID}/crio-{ID}",
    "Docker with systemd": f"/kubepods.slice/kubepods-pod{LOW}.slice/docker-{ID}.scope",
    "systemd in the container": f"/kubepods/burstable/pod{UID}/{ID}/init.scope",
    "Docker in the container": f"/kubepods/besteffort/pod{UID}/{ID}/docker/{ID[::-1]}",
    "a pod of a cluster in the container": f"/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER_UID}/{ID[::-1]}",
    "from a cgroup namespace, same class": f"/../../pod{UID}/{ID}",
    "from a cgroup namespace, systemd": f"/../../kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
    "a process that outlives its cgroup": f"/kubepods/pod{UID}/{ID} (deleted)",
}
NO_PODS = {
    "the root": "/",
    "a service": "/system.slice/containerd.service",
    "a container of Docker's": f"/system.slice/docker-{ID}.scope",
    "a container of Podman's": f"/machine.slice/libpod-{ID}.scope",
    "a session": "/user.slice/user-1000.slice/session-3.scope",
    "the class's own": "/kubepods.slice/kubepods-burstable.slice",
    "a UID that is none": f"/kubepods/pod{UID[:-1]}/{ID}",
    "a name that only looks so": f"/pods/mypod{UID}x/{ID}",
}


uids = st.uuids().map(str)
ids = st.text("0123456789abcdef", min_size=64, max_size=64)
classes = st.sampled_from(["", "burstable", "besteffort"])
above = st.lists(st.sampled_from(["kubelet", "my.slice", "a b", "..", "docker", "x:y"]), max_size=3)
below = st.lists(st.sampled_from(["init.scope", "container", "a", f"pod{OTHER_UID}"]), max_size=3)


@pytest.mark.parametrize("line", [f"0::{path}" for path in PATHS.values()], ids=PATHS)
def test_a_path_that_was_seen_on_a_node_names_its_pod_and_container(line: str) -> None:
    assert cgroups.owner_in(f"{line}\n") == ProcessOwner(UID, ID)


@pytest.mark.parametrize("path", NO_PODS.values(), ids=NO_PODS)
def test_a_process_of_no_pod_has_no_seat(path: str) -> None:
    assert cgroups.owner_in(f"12:pids:{path}\n0::/\n") is None


def test_a_static_pods_hash_is_its_uid() -> None:
    assert cgroups.owner_in(f"0::/kubepods/burstable/pod{STATIC}/{ID}\n") == ProcessOwner(STATIC, ID)


def test_of_cgroup_v1s_lines_the_first_that_names_a_pod_counts() -> None:
    lines = ["12:misc:/", "11:rdma:/system.slice", f"5:memory:/kubepods/pod{UID}/{ID}", "0::/"]

    assert cgroups.owner_in("\n".join(lines)) == ProcessOwner(UID, ID)


def test_a_process_beside_the_containers_is_of_the_pod_and_no_container() -> None:
    assert cgroups.owner_in(f"0::/kubepods/pod{UID}") == ProcessOwner(UID, "")


@given(uids, ids, classes, above, below, st.sampled_from(["", "crio-"]))
def test_any_pod_is_found_below_any_folder_with_cgroupfs(
    uid: str, container: str, qos: str, over: list[str], under: list[str], runtime: str
) -> None:
    parts = ["", *over, "kubepods", *([qos] if qos else []), f"pod{uid}", runtime + container, *under]

    assert cgroups.owner_in(f"7:cpu,cpuacct:{'/'.join(parts)}\n") == ProcessOwner(uid, container)


@given(uids, ids, classes, above, below, st.sampled_from(["cri-containerd", "crio", "docker"]))
def test_any_pod_is_found_below_any_slice_with_systemd(
    uid: str, container: str, qos: str, over: list[str], under: list[str], runtime: str
) -> None:
    pod = "-".join(["kubepods", *([qos] if qos else []), "pod" + uid.replace("-", "_")]) + ".slice"
    parts = ["", *over, "kubepods.slice", pod, f"{runtime}-{container}.scope", *under]

    assert cgroups.owner_in(f"0::{'/'.join(parts)}\n") == ProcessOwner(uid, container)


@given(st.text() | st.text("podkube-.slice/:0123456789abcdef\n"))
def test_no_text_makes_the_reading_fail(text: str) -> None:
    found = cgroups.owner_in(text)

    assert found is None or found.pod_uid.replace("-", "") in text.replace("-", "").replace("_", "")


def test_processes_that_have_ended_are_left_out(tmp_path: Path) -> None:
    _process(tmp_path, 7, f"0::/kubepods/pod{UID}/{ID}\n")
    _process(tmp_path, 8, "0::/system.slice/ssh.service\n")

    assert cgroups.owners(tmp_path, [7, 8, 9]) == {7: ProcessOwner(UID, ID), 8: None}


def test_a_proc_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "7" / "cgroup").mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        cgroups.owners(tmp_path, [7])


def test_the_kernel_lists_this_very_process() -> None:
    proc = Path("/proc")

    assert cgroups.owners(proc, [os.getpid()]) == {os.getpid(): None}
    assert cgroups.name_of(proc, os.getpid()) == Path("/proc/self/comm").read_text().strip()


def test_the_name_of_a_process_that_has_ended_is_empty(tmp_path: Path) -> None:
    assert cgroups.name_of(tmp_path, 7) == ""


def test_with_cgroup_v2_a_pod_is_there_while_its_cgroup_is_populated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    slices = tmp_path / "kubepods.slice" / "kubepods-burstable.slice"
    _v2(slices / f"kubepods-burstable-pod{LOW}.slice", populated=True)
    _v2(slices / f"kubepods-burstable-pod{OTHER_UID.replace('-', '_')}.slice", populated=False)

    assert cgroups.populated(tmp_path) == {UID: True, OTHER_UID: False}


def test_with_cgroup_v1_a_pod_is_there_while_any_cgroup_below_it_has_a_process(tmp_path: Path) -> None:
    pods = tmp_path / "cpu" / "kubepods" / "burstable"
    _v1(pods / f"pod{UID}", {ID: "", f"{ID}/nested": "4711\n"})
    _v1(pods / f"pod{OTHER_UID}", {ID[::-1]: ""})
    _v1(tmp_path / "memory" / "kubepods" / f"pod{uuid.uuid4()}", {ID: "1\n"})

    assert cgroups.populated(tmp_path) == {UID: True, OTHER_UID: False}


def test_a_container_of_a_runtime_with_the_wrong_driver_counts_for_its_pod(tmp_path: Path) -> None:
    service = tmp_path / "systemd" / "system.slice" / "containerd.service"
    _v1(service, {f"kubepods-pod{LOW}.slice:cri-containerd:{ID}": ""})
    _v1(service, {f"kubepods-pod{LOW}.slice:cri-containerd:{ID[::-1]}": "12\n"})

    assert cgroups.populated(tmp_path) == {UID: True}


def test_a_container_cannot_pass_itself_off_as_another_pod(tmp_path: Path) -> None:
    _v1(tmp_path / "cpu" / "kubepods" / f"pod{UID}", {f"{ID}/kubepods/pod{OTHER_UID}": "12\n"})

    assert cgroups.populated(tmp_path) == {UID: True}


def test_a_tree_without_any_pod_is_not_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "system.slice").mkdir(parents=True)

    with pytest.raises(cgroups.NoPods, match="is it the node's /sys/fs/cgroup"):
        cgroups.populated(tmp_path)


def _process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)


def _v2(pod: Path, *, populated: bool) -> None:
    (pod / f"cri-containerd-{ID}.scope").mkdir(parents=True)
    (pod / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    (pod / "cgroup.procs").write_text("")


def _v1(folder: Path, procs: dict[str, str]) -> None:
    for name, text in procs.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "cgroup.procs").write_text(text)
    for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        (each / "cgroup.procs").touch()
