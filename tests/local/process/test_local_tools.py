"""Binaries that are found on this machine answer with their version, or are passed over."""

import os
from pathlib import Path

from deploy.local.tools import (
    asked_version,
    cached_path,
    find,
)
from tests.local.unit.test_local_tools import APISERVER


def executable(path: Path, says: str, code: int = 0) -> Path:
    """A program that prints `says` and ends with `code`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_a_version_may_be_printed_on_stderr(tmp_path: Path) -> None:
    """As CNI plugins do."""
    plugin = tmp_path / "loopback"
    plugin.write_text("#!/bin/sh\necho 'CNI loopback plugin v1.9.1' >&2\n")
    plugin.chmod(0o755)

    assert asked_version(plugin, ()) == (1, 9)


def test_kubebuilders_assets_come_before_the_path_and_the_path_before_the_cache(tmp_path: Path) -> None:
    environ = {
        "KUBEBUILDER_ASSETS": str(tmp_path / "assets"),
        "PATH": f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}",
    }
    in_cache = executable(cached_path(APISERVER, tmp_path / "cache"), "Kubernetes v1.37.3")
    in_second = executable(tmp_path / "two" / "kube-apiserver", "Kubernetes v1.37.1")
    found = [find(APISERVER, environ, tmp_path / "cache")]
    in_first = executable(tmp_path / "one" / "kube-apiserver", "Kubernetes v1.37.2")
    found.append(find(APISERVER, environ, tmp_path / "cache"))
    in_assets = executable(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.37.0")
    found.append(find(APISERVER, environ, tmp_path / "cache"))

    assert found == [in_second, in_first, in_assets]
    assert find(APISERVER, {}, tmp_path / "cache") == in_cache


def test_a_binary_of_another_version_is_passed_over(tmp_path: Path) -> None:
    environ = {"KUBEBUILDER_ASSETS": str(tmp_path / "assets"), "PATH": str(tmp_path / "path")}
    executable(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.36.3")
    wanted = executable(tmp_path / "path" / "kube-apiserver", "Kubernetes v1.37.3")

    assert find(APISERVER, environ, tmp_path / "cache") == wanted


def test_what_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    fails = executable(tmp_path / "fails" / "kube-apiserver", "Kubernetes v1.37.3", code=1)
    not_executable = executable(tmp_path / "plain" / "kube-apiserver", "Kubernetes v1.37.3")
    not_executable.chmod(0o644)
    no_program = tmp_path / "garbage" / "kube-apiserver"
    no_program.parent.mkdir()
    no_program.write_bytes(b"\x7fELF but no more")
    no_program.chmod(0o755)
    (tmp_path / "folder" / "kube-apiserver").mkdir(parents=True)
    places = [str(tmp_path / name) for name in ("fails", "plain", "garbage", "folder", "absent")]

    assert fails.exists()
    assert find(APISERVER, {"PATH": os.pathsep.join(places)}, tmp_path / "cache") is None
