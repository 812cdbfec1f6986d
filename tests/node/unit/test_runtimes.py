"""Whether the node's container runtime gives cards to containers that nobody gave any."""

import json
from pathlib import Path

import pytest

from sidecar.node.host import runtimes

CONTAINERD_3 = """
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = '{default}'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
      BinaryName = '/usr/bin/nvidia-container-runtime'
"""
CONTAINERD_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "{default}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"
"""
CRIO = """
[crio.runtime]
default_runtime = "{default}"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
"""
DOCKER = (
    '{{"default-runtime": "{default}", "runtimes": {{"nvidia": {{"path": "nvidia-container-runtime"}}}}}}'
)
KINDS = {"config.toml": CONTAINERD_3, "old.toml": CONTAINERD_2, "crio.conf": CRIO, "daemon.json": DOCKER}


@pytest.mark.parametrize(("name", "text"), KINDS.items(), ids=KINDS)
def test_nvidias_runtime_as_the_default_one_gives_cards_to_all(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text.format(default="nvidia"))

    why, wrong = runtimes.hands_out_all([str(tmp_path / name)])

    assert "(nvidia) gives all cards to each container whose image requests them" in why
    assert wrong == ()


@pytest.mark.parametrize(("name", "text"), KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("default", ["runc", "crun", ""])
def test_another_default_runtime_gives_none(tmp_path: Path, name: str, text: str, default: str) -> None:
    (tmp_path / name).write_text(text.format(default=default))

    assert runtimes.hands_out_all([str(tmp_path / name)]) == ("", ())


def test_a_runtime_of_any_name_is_nvidias_by_its_program() -> None:
    runtime = {"options": {"BinaryName": "/opt/nvidia-container-runtime"}}
    whole = {
        "plugins": {"cri": {"containerd": {"default_runtime_name": "gpu", "runtimes": {"gpu": runtime}}}}
    }

    assert runtimes.judged([whole]) == (
        "the default runtime of containerd (gpu) gives all cards to each container whose image requests them"
    )
    runtime["options"]["BinaryName"] = "/usr/bin/crun"
    assert runtimes.judged([whole]) == ""


def test_a_file_that_is_read_later_goes_before_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD_3.format(default="runc"))
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "99-nvidia.toml").write_text(CONTAINERD_3.format(default="nvidia"))

    why, wrong = runtimes.hands_out_all([str(tmp_path / "config.toml"), str(tmp_path / "conf.d" / "*.toml")])

    assert "containerd (nvidia)" in why
    assert wrong == ()


def test_nvidias_runtime_that_accepts_only_privileged_containers_gives_none(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD_3.format(default="nvidia"))
    (tmp_path / "nvidia.toml").write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[nvidia-container-cli]\n"
    )

    assert runtimes.hands_out_all([str(tmp_path / "config.toml"), str(tmp_path / "nvidia.toml")]) == ("", ())


def test_files_that_cannot_be_read_are_named_and_the_others_are_judged(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD_3.format(default="nvidia"))
    (tmp_path / "bad.toml").write_text("version = = 3")
    (tmp_path / "list.json").write_text("[]")
    names = ("missing.toml", "bad.toml", "list.json", "config.toml")

    why, wrong = runtimes.hands_out_all([str(tmp_path / name) for name in names])

    assert why
    assert [each.partition(": ")[0] for each in wrong] == [str(tmp_path / name) for name in names[:3]]
    assert wrong[0].endswith("No such file or directory")


def test_what_has_nothing_to_do_with_runtimes_says_nothing() -> None:
    odd = {"plugins": {"cri": {"containerd": {"runtimes": {"x": 7, "y": {"options": 7}}}}}}

    assert (
        runtimes.judged([{}, {"crio": 7}, {"plugins": []}, json.loads('{"default-runtime": 7}'), odd]) == ""
    )


def test_a_pattern_may_stand_for_no_file_and_a_path_may_not(tmp_path: Path) -> None:
    patterns = [
        str(tmp_path / name) for name in ("config.tom[l]", "conf.d/*.toml", "crio.con?", "config.toml")
    ]

    _, wrong = runtimes.hands_out_all(patterns)

    assert wrong == (f"{patterns[-1]}: No such file or directory",)


def test_without_files_nothing_is_known() -> None:
    assert runtimes.hands_out_all([]) == ("", ())
