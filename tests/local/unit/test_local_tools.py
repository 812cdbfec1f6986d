"""Which binary is taken, from where."""

import os
from pathlib import Path

import pytest

from deploy.local.tools import (
    ETCD,
    KUBERNETES,
    NODE_TOOLS,
    TOOLS,
    Tool,
    asked_version,
    cache_folder,
    cached_path,
    find,
    parse_version,
)

APISERVER = next(tool for tool in TOOLS if tool.name == "kube-apiserver")


def executable(path: Path, says: str, code: int = 0) -> Path:
    """A program that prints `says` and ends with `code`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("Kubernetes v1.36.3\n", (1, 36)),
        ("Client Version: v1.36.0\nKustomize Version: v5.8.1\n", (1, 36)),
        ("etcd Version: 3.6.12\nGit SHA: Not provided\n", (3, 6)),
        ("kwok version v0.8.0 go1.26.8 (linux/amd64)\n", (0, 8)),
        ("containerd github.com/containerd/containerd/v2 v2.4.2 \n", (2, 4)),
        ("ctr github.com/containerd/containerd/v2 v2.4.2 \n", (2, 4)),
        ("/bin/containerd-shim-runc-v2:\n  Version:  v2.4.2\n  Revision: \n", (2, 4)),
        ("runc version 1.5.2\nspec: 1.3.0\n", (1, 5)),
        ("CNI host-local plugin v1.9.1\nCNI protocol versions supported: 1.1.0\n", (1, 9)),
        ("bridge utility, iproute2-6.1.0\n", None),
        ("W1120 warning\nKubernetes v1.36.3\n", (1, 36)),
        ("Kubernetes v1.36.0-rc.1\n", None),
        ("Client Version: v1.36.3-dispatcher\n", None),
        ("Client Version: v1.36.3+k3s1\n", None),
        ("Kubernetes v1.36\n", None),
        ("not Kubernetes v1.36.3\n", None),
        ("Kubernetes v\u0661.\u0663\u0666.\u0663\n", None),
        ("", None),
    ],
)
def test_a_version_is_read_from_what_a_binary_says_of_itself(
    told: str, version: tuple[int, int] | None
) -> None:
    assert parse_version(told) == version


def test_the_versions_we_build_are_of_the_series_we_take() -> None:
    assert {tool.source.name: tool.source.series for tool in (*TOOLS, *NODE_TOOLS)} == {
        "kubernetes": (1, 36),
        "etcd": (3, 6),
        "kwok": (0, 8),
        "containerd": (2, 4),
        "runc": (1, 5),
        "cni": (1, 9),
    }


def test_a_version_may_be_told_on_stderr(tmp_path: Path) -> None:
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
    in_cache = executable(cached_path(APISERVER, tmp_path / "cache"), "Kubernetes v1.36.3")
    in_second = executable(tmp_path / "two" / "kube-apiserver", "Kubernetes v1.36.1")
    found = [find(APISERVER, environ, tmp_path / "cache")]
    in_first = executable(tmp_path / "one" / "kube-apiserver", "Kubernetes v1.36.2")
    found.append(find(APISERVER, environ, tmp_path / "cache"))
    in_assets = executable(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.36.0")
    found.append(find(APISERVER, environ, tmp_path / "cache"))

    assert found == [in_second, in_first, in_assets]
    assert find(APISERVER, {}, tmp_path / "cache") == in_cache


def test_a_binary_of_another_version_is_passed_over(tmp_path: Path) -> None:
    environ = {"KUBEBUILDER_ASSETS": str(tmp_path / "assets"), "PATH": str(tmp_path / "path")}
    executable(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.35.3")
    wanted = executable(tmp_path / "path" / "kube-apiserver", "Kubernetes v1.36.3")

    assert find(APISERVER, environ, tmp_path / "cache") == wanted


def test_what_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    fails = executable(tmp_path / "fails" / "kube-apiserver", "Kubernetes v1.36.3", code=1)
    not_executable = executable(tmp_path / "plain" / "kube-apiserver", "Kubernetes v1.36.3")
    not_executable.chmod(0o644)
    no_program = tmp_path / "garbage" / "kube-apiserver"
    no_program.parent.mkdir()
    no_program.write_bytes(b"\x7fELF but no more")
    no_program.chmod(0o755)
    (tmp_path / "folder" / "kube-apiserver").mkdir(parents=True)
    places = [str(tmp_path / name) for name in ("fails", "plain", "garbage", "folder", "absent")]

    assert fails.exists()
    assert find(APISERVER, {"PATH": os.pathsep.join(places)}, tmp_path / "cache") is None


def test_kubectl_is_asked_in_its_own_way(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$*" = "version --client" ] && echo "Client Version: v1.36.3"\n')
    kubectl.chmod(0o755)
    tool = next(each for each in TOOLS if each.name == "kubectl")

    assert find(tool, {"PATH": str(tmp_path)}, tmp_path / "cache") == kubectl


def test_the_cache_is_where_the_xdg_rules_say() -> None:
    assert cache_folder({"HOME": "/home/me"}) == Path("/home/me/.cache/bursar")
    assert cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/var/cache/me"}) == Path(
        "/var/cache/me/bursar"
    )
    assert cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/bursar")


def test_the_cache_keeps_each_version_in_a_folder_of_its_own() -> None:
    cache = Path("/cache")

    assert cached_path(APISERVER, cache) == Path("/cache/bin/kubernetes-v1.36.3/kube-apiserver")
    assert (
        cached_path(Tool("etcd", ETCD, ""), cache).parent
        != cached_path(Tool("x", KUBERNETES, ""), cache).parent
    )
