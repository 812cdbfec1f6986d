"""Which binary is taken, from where."""

from pathlib import Path

import pytest

from deploy.local.tools import (
    ETCD,
    HELM_TOOL,
    KARPENTER_TOOLS,
    KUBERNETES,
    NODE_TOOLS,
    OLDER_KUBERNETES,
    OPERATOR_TOOLS,
    PROMETHEUS_TOOLS,
    TOOLS,
    Tool,
    cache_folder,
    cached_path,
    kubernetes,
    parse_version,
)

APISERVER = next(tool for tool in TOOLS if tool.name == "kube-apiserver")


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
        ("helm v4.3.1", (4, 3)),
        ("bridge utility, iproute2-6.1.0\n", None),
        ("W1120 warning\nKubernetes v1.36.3\n", (1, 36)),
        ("Kubernetes v1.36.0-rc.1\n", None),
        ("Client Version: v1.36.3-dispatcher\n", None),
        ("Client Version: v1.36.3+k3s1\n", None),
        ("Kubernetes v1.36\n", None),
        ("not Kubernetes v1.36.3\n", None),
        ("Kubernetes v\u0661.\u0663\u0666.\u0663\n", None),
        ("prometheus-operator, version 0.85.0 (branch: , revision: unknown)\n", (0, 85)),
        ("", None),
    ],
)
def test_a_version_is_read_from_what_a_binary_says_of_itself(
    told: str, version: tuple[int, int] | None
) -> None:
    assert parse_version(told) == version


def test_the_versions_we_build_are_of_the_series_we_take() -> None:
    tools = (*TOOLS, *NODE_TOOLS, *PROMETHEUS_TOOLS, *OPERATOR_TOOLS, *KARPENTER_TOOLS, HELM_TOOL)

    assert {tool.source.name: tool.source.series for tool in tools} == {
        "kubernetes": (1, 37),
        "etcd": (3, 7),
        "kwok": (0, 8),
        "containerd": (2, 4),
        "runc": (1, 5),
        "cni": (1, 9),
        "dra-example-driver": (0, 4),
        "prometheus": (0, 311),
        "prometheus-operator": (0, 85),
        "helm": (4, 3),
        "karpenter": (1, 14),
    }


def test_a_variable_names_an_older_kubernetes_whose_binaries_report_its_version() -> None:
    assert kubernetes({}).series == kubernetes({"BURSAR_KUBERNETES": "1.37"}).series == (1, 37)
    for series, version in OLDER_KUBERNETES.items():
        older = kubernetes({"BURSAR_KUBERNETES": series})
        assert (older.version, f"{older.series[0]}.{older.series[1]}") == (version, series)
        assert f"k8s.io/component-base/version.gitVersion=v{version}" in older.stamps
    with pytest.raises(ValueError, match=r"BURSAR_KUBERNETES: no tests run on 1\.20, only on 1\.34"):
        kubernetes({"BURSAR_KUBERNETES": "1.20"})


def test_the_cache_is_where_the_xdg_rules_say() -> None:
    assert cache_folder({"HOME": "/home/me"}) == Path("/home/me/.cache/bursar")
    assert cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/var/cache/me"}) == Path(
        "/var/cache/me/bursar"
    )
    assert cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/bursar")


def test_the_cache_keeps_each_version_in_a_folder_of_its_own() -> None:
    cache = Path("/cache")

    assert cached_path(APISERVER, cache) == Path("/cache/bin/kubernetes-v1.37.2/kube-apiserver")
    assert (
        cached_path(Tool("etcd", ETCD, ""), cache).parent
        != cached_path(Tool("x", KUBERNETES, ""), cache).parent
    )
