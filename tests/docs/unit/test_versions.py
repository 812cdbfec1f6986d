"""The page on versions has those that the tests really build and run."""

import re

import sidecar
from deploy.local import tools
from tests.packaging.checkout import ROOT
from timekeeper.cli.doctor.cluster_checks import LEAST_MINOR, NEWER_FEATURES
from timekeeper.core import __version__

PAGE = (ROOT / "docs" / "versions.md").read_text()


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
    assert rows["dra-example-driver, whose devices are made up"] == series(tools.DRA_DRIVER_VERSION)


def test_the_sidecar_has_the_version_of_all_parts() -> None:
    assert sidecar.__version__ == __version__


def test_the_newest_release_of_the_changelog_is_this_version_and_has_notes_for_the_upgrade() -> None:
    released = re.findall(r"(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text())
    notes = re.findall(r"(?m)^### (.*)$", (ROOT / "docs" / "upgrade.md").read_text())

    assert released[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", released[1])
    assert notes[:2] == ["Unreleased", __version__]


def test_what_an_older_kubernetes_lacks_is_on_the_page_and_told_by_the_doctor() -> None:
    (table,) = re.findall(r"(?ms)^## What needs which version of Kubernetes\n(.*?)^## ", PAGE)
    needs = {int(minor): text for minor, text in re.findall(r"(?m)^\| 1\.(\d+) \| (.*) \|$", table)}

    assert LEAST_MINOR in needs
    assert [each.minor for each in NEWER_FEATURES] == [minor for minor in needs if minor > LEAST_MINOR]
    rows = dict(line.strip("| ").split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| "))
    assert rows["Kubernetes by `make test-versions`"] == ", ".join(tools.OLDER_KUBERNETES)
