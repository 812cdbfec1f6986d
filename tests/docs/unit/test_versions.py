"""The page on versions has those that the tests really build and run."""

from pathlib import Path

from deploy.local import tools

PAGE = (Path(__file__).parents[3] / "docs" / "versions.md").read_text()


def series(*versions: str) -> str:
    """The first two numbers of each version."""
    return ", ".join(".".join(version.split(".")[:2]) for version in versions)


def test_the_versions_that_are_built_are_on_the_page() -> None:
    rows = dict(line.strip("| ").split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| "))

    assert rows["Kubernetes (API server, scheduler, controllers, kubelet)"] == series(
        tools.KUBERNETES_VERSION
    )
    assert rows["etcd, kwok"] == series(tools.ETCD_VERSION, tools.KWOK_VERSION)
    assert rows["containerd, runc, CNI plugins"] == series(
        tools.CONTAINERD_VERSION, tools.RUNC_VERSION, tools.CNI_VERSION
    )
