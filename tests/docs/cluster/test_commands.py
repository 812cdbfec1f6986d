"""Commands of pages that need an API server and nothing that runs on it, typed as an administrator does."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from sidecar.node.state.node_patch import inventory
from sidecar.node.values import NriState
from tests.deploy.reading import ROOT
from tests.docs.shell import commands, run
from tests.node.worlds import card

pytestmark = pytest.mark.cluster

SYSTEM = "/api/v1/namespaces/bursar-system"
DEPLOYMENTS = "/apis/apps/v1/namespaces/bursar-system/deployments"


def block(name: str, *words: str) -> str:
    """The block of a page that has these words."""
    (found,) = [
        each for each in commands(ROOT / "docs" / f"{name}.md") if all(word in each for word in words)
    ]
    return found


@dataclass(frozen=True)
class Administrator:
    """One that types in a checkout, on a cluster with Bursar's objects, a node and namespaces."""

    cp: ControlPlane
    folder: Path

    def typed(self, text: str) -> str:
        return run(self.cp, text.replace("node NODE", "node gpu-node-1"), self.folder)

    def node(self) -> dict[str, dict[str, str]]:
        metadata: dict[str, dict[str, str]] = self.cp.api.call("GET", "/api/v1/nodes/gpu-node-1")["metadata"]
        return metadata

    def secret(self, name: str) -> set[str]:
        return set(self.cp.api.call("GET", f"{SYSTEM}/secrets/{name}")["data"])


@pytest.fixture(scope="module")
def admin(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Administrator:
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    control_plane.api.call("POST", "/api/v1/nodes", kwok_node("gpu-node-1"))
    for name in ("gpu-operator", "monitoring", "team-a", "team-b"):
        control_plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    run(control_plane, "kubectl apply --server-side -f deploy/manifests", folder)
    return Administrator(control_plane, folder)


def test_the_commands_about_nodes_label_them_and_cordon_cards(admin: Administrator) -> None:
    admin.typed(block("node-agent", "kubectl label node"))
    assert admin.node()["labels"]["bursar.node-restriction.kubernetes.io/gpu-node"] == "true"
    cordon, uncordon = block("requests", "cordoned-cards").splitlines()
    admin.typed(cordon)
    assert "cordoned-cards" in json.dumps(admin.node()["annotations"])
    admin.typed(uncordon)
    assert "cordoned-cards" not in json.dumps(admin.node().get("annotations", {}))


def test_a_command_takes_nri_out_of_an_inventory_and_leaves_the_rest(admin: Administrator) -> None:
    whole = {"bursar.dev/inventory": inventory((card(),), nri=NriState(("bursar", "gpu-fractioning"), True))}
    merge = "application/merge-patch+json"
    admin.cp.api.call("PATCH", "/api/v1/nodes/gpu-node-1", {"metadata": {"annotations": whole}}, merge)

    admin.typed(block("troubleshooting", '"nri"'))

    assert admin.node()["annotations"]["bursar.dev/inventory"] == inventory((card(),))


def test_the_commands_about_namespaces_and_settings_change_them(admin: Administrator) -> None:
    for page in ("bypass", "install"):
        admin.typed(block(page, "bursar.dev/exempt=true"))
        monitoring = admin.cp.api.call("GET", "/api/v1/namespaces/monitoring")["metadata"]["labels"]
        assert monitoring["bursar.dev/exempt"] == "true"
        admin.typed("kubectl label namespace monitoring bursar.dev/exempt-")
    admin.typed(block("platforms/gpu-operator", "bursar.dev/exempt=true"))
    operators = admin.cp.api.call("GET", "/api/v1/namespaces/gpu-operator")["metadata"]["labels"]
    assert operators["bursar.dev/exempt"] == "true"
    admin.typed(block("bypass", "noGPUDrivers"))
    classes = admin.cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-device-classes")["data"]
    assert classes["noGPUDrivers"] == "dra.net"
    admin.typed(f"export KUBE_EDITOR='sed -i s/Berlin/Paris/'\n{block('budget-settings', 'kubectl edit')}")
    settings = admin.cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-settings")["data"]
    assert settings == {"_settings": "timeZone: Europe/Paris"}
    admin.typed(block("budget-settings", "mode.yaml"))
    mode = admin.cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-mode")["data"]
    assert mode == {"mode": "observe", "placement": "on"}


def test_one_namespace_gets_its_mode_by_its_entry(admin: Administrator) -> None:
    admin.typed("kubectl apply --server-side -f deploy/samples/budgets.yaml")
    editor = "export KUBE_EDITOR='sed -i -e s/warnAt/mode/ -e s/0[.]8/enforce/'"
    admin.typed(f"{editor}\n{block('install', 'kubectl edit')}")
    budgets = admin.cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-budgets")["data"]
    assert "mode: enforce" in budgets["team-a"]


def test_the_commands_about_secrets_and_samples_make_them(admin: Administrator) -> None:
    admin.typed(block("databases", "kubectl scale"))
    assert not admin.cp.api.answers(f"{SYSTEM}/pods/bursar-timekeeper-0")
    admin.typed(block("databases", "create secret"))
    assert admin.secret("bursar-database") == {"url"}
    admin.typed(block("databases", "deploy/postgresql"))
    assert "bursar-database" in json.dumps(admin.cp.api.call("GET", DEPLOYMENTS))
    admin.typed(block("cluster-autoscaler", "startup-taint.yaml"))
    assert admin.cp.api.answers("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bursar-startup-taint")


def test_a_reader_is_made_and_has_a_token(admin: Administrator) -> None:
    admin.typed(block("access", "reader.yaml"))
    token = admin.typed(block("dashboard", "kubectl create token")).strip()
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", token)


def test_the_scheduler_is_installed_as_its_page_says(admin: Administrator) -> None:
    admin.typed(block("kube-scheduler", "sed -i"))
    assert "kube-scheduler:v1.35.4" in (admin.folder / "deploy/manifests/scheduler.yaml").read_text()
    admin.typed(block("kube-scheduler", "extender-alone.yaml"))
    deployments = {each["metadata"]["name"] for each in admin.cp.api.call("GET", DEPLOYMENTS)["items"]}
    assert ("bursar-extender" in deployments, "bursar-scheduler" in deployments) == (True, False)
    admin.typed(block("kube-scheduler", "component=kube-scheduler"))
    assert "kind: Deployment" in admin.typed(block("helm", "kubectl kustomize"))
