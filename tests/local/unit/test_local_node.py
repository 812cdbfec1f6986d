"""Whether this machine may become a node for tests."""

import json
from pathlib import Path

import pytest

from deploy.local import cleanup
from deploy.local.identity import new_tokens


def test_a_process_that_this_namespace_does_not_see_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "cgroup.procs").write_text("0\n4711\n")
    monkeypatch.setattr(cleanup, "cgroup_folders", lambda: [tmp_path])

    assert list(cleanup._in_cgroups()) == [4711]


FOLDER = Path("/run/bursar-node")
OURS = (
    "run/containerd/s/3a09",
    "var/lib/kubelet/device-plugins/kubelet.sock",
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
    "var/lib/cni/results/bursar-node-aa-eth0",
    "var/lib/cni/results/cni-loopback-aa-lo",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What a node leaves outside of its folder."""
    for file in OURS:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "var/log/containers").mkdir(parents=True)
    (tmp_path / "var/log/containers/ours.log").symlink_to(FOLDER / "pods/a/0.log")
    return tmp_path


def left(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_symlink() or not each.is_dir()}


def take(root: Path, *mounts: str) -> None:
    cleanup.remove_named(root, "bursar-node", FOLDER)
    cleanup.remove_shared(root, cleanup.SHARED_FOLDERS, mounts)


def test_folders_that_only_our_node_used_are_gone_after_it(root: Path) -> None:
    take(root, "/", "/proc")

    assert left(root) == set()
    assert cleanup.missing_folders(root) == list(cleanup.SHARED_FOLDERS)


def test_what_others_began_meanwhile_stays_whole(root: Path) -> None:
    theirs = {
        "run/containerd/containerd.sock",
        "run/containerd/io.containerd.runtime.v2.task/k8s.io/x/init.pid",
        "var/lib/kubelet/config.yaml",
        "var/lib/cni/results/cni-loopback-bb-lo",
        "var/lib/cni/results/other-bb-eth0",
        "var/log/containers/theirs.log",
    }
    for file in theirs - {"var/log/containers/theirs.log"}:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "var/log/containers/theirs.log").symlink_to("/var/log/pods/b/0.log")
    take(root)

    assert theirs <= left(root)
    assert "var/log/containers/ours.log" not in left(root)
    assert "var/lib/cni/results/bursar-node-aa-eth0" not in left(root)


def test_nothing_is_taken_where_something_is_mounted_below(root: Path) -> None:
    take(root, f"{root}/run/containerd/s")

    assert left(root) == {"run/containerd/s/3a09"}


@pytest.mark.parametrize(("is_other", "forwards"), [(True, "1"), (False, "0")])
def test_kernel_settings_come_back_but_for_what_a_runtime_of_others_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool, forwards: str
) -> None:
    before = {"net/ipv4/ip_forward": "0", "kernel/panic": "1"}
    (tmp_path / "before").write_text(json.dumps({"sysctls": before, "absent": []}))
    for name, now in {"net/ipv4/ip_forward": "1", "kernel/panic": "10"}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(now)
    monkeypatch.setattr(cleanup, "_BEFORE", tmp_path / "before")
    monkeypatch.setattr(cleanup, "_sysctl", lambda name: tmp_path / name)
    monkeypatch.setattr(cleanup, "has_other_runtime", lambda: is_other)
    cleanup._restore()

    assert (tmp_path / "net/ipv4/ip_forward").read_text() == forwards
    assert (tmp_path / "kernel/panic").read_text() == "1"


@pytest.mark.parametrize("is_other", [True, False])
def test_while_a_runtime_of_others_runs_no_folder_is_touched(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    (root / "before").write_text(json.dumps({"sysctls": {}, "absent": list(cleanup.SHARED_FOLDERS)}))
    monkeypatch.setattr(cleanup, "_ROOT", root)
    monkeypatch.setattr(cleanup, "_BEFORE", root / "before")
    monkeypatch.setattr(cleanup, "has_other_runtime", lambda: is_other)
    cleanup._restore()

    assert ("run/containerd/s/3a09" in left(root)) is is_other


def test_folders_that_were_there_before_stay_as_they_are(root: Path) -> None:
    cleanup.remove_shared(root, ["/var/lib/kubelet", "/etc"], [])

    assert "run/containerd/s/3a09" in left(root)
    assert not (root / "var/lib/kubelet").exists()


def test_each_kubelet_has_a_token_of_its_own() -> None:
    tokens = new_tokens(["one", "two"])

    lines = [line.split(",", 3) for line in tokens.as_csv().splitlines()]
    users = {user: (token, groups) for token, user, _, groups in (line for line in lines if len(line) == 4)}
    assert users["system:node:one"] == (tokens.nodes["one"], '"system:nodes"')
    assert users["system:node:two"] == (tokens.nodes["two"], '"system:nodes"')
    assert len({line[0] for line in lines}) == 5
