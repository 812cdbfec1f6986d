"""docs/install.md, typed on a real API server by one who begins by observing: nothing later ends that."""

import shutil
from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.demo import BUDGETS, SETTINGS, apply_config_map
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run

pytestmark = pytest.mark.cluster

INSTALL = (ROOT / "docs" / "install.md").read_text()
UPGRADE = (ROOT / "docs" / "upgrade.md").read_text()
OBSERVES = ("mode: observe", {"bursar-holds", "bursar-node-agent"}, True)
README = (ROOT / "README.md").read_text()
SETTINGS_OF = "/api/v1/namespaces/bursar-system/configmaps/bursar-settings"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def block(page: str, word: str) -> str:
    """The first block of commands with a word."""
    return next(each for each in console(page) if word in each)


def readmes_budgets() -> str:
    """The ConfigMap of the README."""
    shown = (each.partition("```")[0] for each in README.split("```yaml\n")[1:])
    return next(each for each in shown if "bursar-budgets" in each)


def switches(cp: ControlPlane) -> tuple[str, set[str], bool]:
    """The setting, the policies that deny, and whether the webhook begins by observing."""
    deployment = cp.api.call("GET", "/apis/apps/v1/namespaces/bursar-system/deployments/bursar-webhook")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    bindings = {
        each["metadata"]["name"]: each["spec"]["validationActions"]
        for each in cp.api.call("GET", POLICIES)["items"]
    }
    denying = {name for name, actions in bindings.items() if "Deny" in actions}
    settings = cp.api.call("GET", SETTINGS_OF)["data"]["_settings"]
    return settings, denying, "--mode=observe" in arguments


def test_who_begins_by_observing_observes_after_every_step_of_installing_and_upgrading(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "readme.yaml").write_text(readmes_budgets())
    run(control_plane, block(INSTALL, "mode: observe"), tmp_path)
    run(control_plane, block(INSTALL, "-f deploy/manifests\n"), tmp_path)
    assert switches(control_plane) == OBSERVES

    for commands in (
        "kubectl apply --server-side -f deploy/samples/budgets.yaml",
        "kubectl apply --server-side -f readme.yaml",
        block(UPGRADE, "timekeeper.yaml"),
    ):
        run(control_plane, commands, tmp_path)

        assert switches(control_plane) == OBSERVES, commands


def test_the_readmes_budgets_are_applied_where_the_demo_has_written_its_own(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    run(control_plane, "kubectl create namespace bursar-system || true", tmp_path)
    run(control_plane, "kubectl delete configmap -n bursar-system --all", tmp_path)
    apply_config_map(control_plane, "bursar-settings", SETTINGS)
    apply_config_map(control_plane, "bursar-budgets", BUDGETS)
    (tmp_path / "readme.yaml").write_text(readmes_budgets())

    run(control_plane, "kubectl apply --server-side -f readme.yaml", tmp_path)

    shown = yaml.safe_load(readmes_budgets())["data"]
    path = "/api/v1/namespaces/bursar-system/configmaps/bursar-budgets"
    assert control_plane.api.call("GET", path)["data"] == shown
    assert control_plane.api.call("GET", SETTINGS_OF)["data"] == SETTINGS
