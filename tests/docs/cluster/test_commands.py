"""Commands of pages that need an API server and nothing that runs on it, typed as an administrator does."""

import json
import re
import shutil
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.deploy.reading import ROOT
from tests.docs.shell import commands, run

pytestmark = pytest.mark.cluster

SYSTEM = "/api/v1/namespaces/bursar-system"
DEPLOYMENTS = "/apis/apps/v1/namespaces/bursar-system/deployments"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/zz-bursar"


def block(name: str, *words: str) -> str:
    """The block of a page that has these words."""
    (found,) = [
        each for each in commands(ROOT / "docs" / f"{name}.md") if all(word in each for word in words)
    ]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_commands_of_administrators_change_what_their_pages_say(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    cp.api.call("POST", "/api/v1/nodes", kwok_node("gpu-node-1"))
    for name in ("monitoring", "team-a", "team-b"):
        cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    run(cp, "kubectl apply --server-side -f deploy/manifests", folder)

    def typed(text: str) -> str:
        return run(cp, text.replace("node NODE", "node gpu-node-1"), folder)

    def node() -> dict[str, dict[str, str]]:
        metadata: dict[str, dict[str, str]] = cp.api.call("GET", "/api/v1/nodes/gpu-node-1")["metadata"]
        return metadata

    def secret(name: str) -> set[str]:
        return set(cp.api.call("GET", f"{SYSTEM}/secrets/{name}")["data"])

    typed(block("node-agent", "kubectl label node"))
    assert node()["labels"]["bursar.node-restriction.kubernetes.io/gpu-node"] == "true"
    cordon, uncordon = block("requests", "cordoned-cards").splitlines()
    typed(cordon)
    assert "cordoned-cards" in json.dumps(node()["annotations"])
    typed(uncordon)
    assert "cordoned-cards" not in json.dumps(node().get("annotations", {}))

    for page in ("bypass", "install"):
        typed(block(page, "bursar.dev/exempt=true"))
        monitoring = cp.api.call("GET", "/api/v1/namespaces/monitoring")["metadata"]["labels"]
        assert monitoring["bursar.dev/exempt"] == "true"
        typed("kubectl label namespace monitoring bursar.dev/exempt-")
    typed(block("bypass", "noGPUDrivers"))
    classes = cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-device-classes")["data"]
    assert classes["noGPUDrivers"] == "dra.net"
    typed(f"export KUBE_EDITOR='sed -i s/observe/enforce/'\n{block('budget-settings', 'kubectl edit')}")
    settings = cp.api.call("GET", f"{SYSTEM}/configmaps/bursar-settings")["data"]
    assert settings == {"_settings": "mode: enforce"}

    typed(block("notifications", "openssl"))
    assert secret("bursar-notifications") == {"key"}
    typed(block("databases", "kubectl scale"))
    assert not cp.api.answers(f"{SYSTEM}/pods/bursar-timekeeper-0")
    typed(block("databases", "create secret"))
    assert secret("bursar-database") == {"url"}
    typed(block("databases", "deploy/postgresql"))
    assert "bursar-database" in json.dumps(cp.api.call("GET", DEPLOYMENTS))
    typed(block("cluster-autoscaler", "startup-taint.yaml"))
    assert cp.api.answers("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bursar-startup-taint")

    typed(block("access", "reader.yaml"))
    token = typed(block("dashboard", "kubectl create token")).strip()
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", token)

    condition = '[{"name": "changed-since-governed", "expression": "true"}]'
    left = f'{{"webhooks": [{{"name": "check.bursar.dev", "matchConditions": {condition}}}]}}'
    typed(f"kubectl patch validatingwebhookconfiguration zz-bursar -p '{left}'")
    assert "changed-since-governed" in json.dumps(cp.api.call("GET", WEBHOOKS)["webhooks"])
    typed(block("upgrade", "changed-since-governed"))
    assert "changed-since-governed" not in json.dumps(cp.api.call("GET", WEBHOOKS)["webhooks"])

    typed(block("kube-scheduler", "sed -i"))
    assert "kube-scheduler:v1.35.4" in (folder / "deploy/manifests/scheduler.yaml").read_text()
    typed(block("kube-scheduler", "extender-alone.yaml"))
    deployments = {each["metadata"]["name"] for each in cp.api.call("GET", DEPLOYMENTS)["items"]}
    assert ("bursar-extender" in deployments, "bursar-scheduler" in deployments) == (True, False)
    typed(block("kube-scheduler", "component=kube-scheduler"))
    assert "kind: Deployment" in typed(block("helm", "kubectl kustomize"))
