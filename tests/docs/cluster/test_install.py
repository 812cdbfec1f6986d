"""The manifests, applied as docs/helm.md says by one who begins by observing: nothing later ends that."""

import shutil
from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.demo.layout import BUDGETS, SETTINGS, apply_config_map
from tests.deploy.reading import ROOT, of_kind
from tests.docs.shell import console, run

pytestmark = [pytest.mark.cluster, pytest.mark.make_test("installs, upgrades and leaves")]

HELM = (ROOT / "docs" / "helm.md").read_text()
UPGRADE = (ROOT / "docs" / "upgrade.md").read_text()
# policies that refuse no pod, and only say which account writes what is Bursar's own
OWN = {"bursar-gpubudgets", "bursar-holds", "bursar-node-agent", "bursar-notices", "bursar-releases"}
OBSERVES = ("observe", "observe", True)
README = (ROOT / "README.md").read_text()
CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"
SETTINGS_OF, MODE_OF = f"{CONFIG_MAPS}/bursar-settings", f"{CONFIG_MAPS}/bursar-mode"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def block(page: str, word: str) -> str:
    """The first block of commands with a word."""
    return next(each for each in console(page) if word in each)


def readmes_budgets() -> str:
    """The ConfigMap of the README."""
    shown = (each.partition("```")[0] for each in README.split("```yaml\n")[1:])
    return next(each for each in shown if "bursar-budgets" in each)


def switches(cp: ControlPlane) -> tuple[str, str, bool]:
    """The cluster's mode, that with which the policies begin, and whether the webhook begins by observing."""
    deployment = cp.api.call("GET", "/apis/apps/v1/namespaces/bursar-system/deployments/bursar-webhook")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    names = ("bursar-modes", "bursar-modes-observed", "bursar-device-classes")
    (initial,) = {cp.api.call("GET", f"{CONFIG_MAPS}/{name}")["data"]["_initial"] for name in names}
    mode = cp.api.call("GET", MODE_OF)["data"]["mode"]
    return mode, initial, "--mode=observe" in arguments


def test_who_begins_by_observing_observes_after_every_step_until_the_steps_that_end_it(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "readme.yaml").write_text(readmes_budgets())
    run(control_plane, block(HELM, "mode: observe/"), tmp_path)
    run(control_plane, without_waiting(block(HELM, "webhook-configurations.yaml")), tmp_path)
    assert switches(control_plane) == OBSERVES

    for commands in (
        "kubectl apply --server-side -f deploy/samples/budgets.yaml",
        "kubectl apply --server-side -f readme.yaml",
        block(UPGRADE, "timekeeper.yaml"),
    ):
        run(control_plane, commands, tmp_path)

        assert switches(control_plane) == OBSERVES, commands

    run(control_plane, block(HELM, "mode: enforce/' deploy"), tmp_path)
    assert switches(control_plane) == ("enforce", "enforce", False)
    run(control_plane, block(UPGRADE, "timekeeper.yaml"), tmp_path)
    assert switches(control_plane) == ("enforce", "enforce", False)


def without_waiting(commands: str) -> str:
    """The commands but those that wait for pods: there is no kubelet."""
    return "\n".join(line for line in commands.splitlines() if "kubectl wait" not in line)


def policies_that_deny() -> set[str]:
    """As the manifests have them."""
    bindings = of_kind("ValidatingAdmissionPolicyBinding")
    return {each["metadata"]["name"] for each in bindings if "Deny" in each["spec"]["validationActions"]}


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
