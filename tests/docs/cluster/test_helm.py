"""docs/helm.md, typed on a real API server: install, upgrade, rollback and uninstall by helm."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import rendered
from deploy.local.cluster import ControlPlane
from tests.deploy.reading import ROOT, Json, documents
from tests.docs.cluster.test_install import (
    OBSERVES,
    POLICIES,
    SETTINGS_OF,
    policies_that_deny,
    switches,
)
from tests.docs.cluster.test_uninstall import everything, refusal
from tests.docs.shell import console, run

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "helm.md").read_text()
HALF = {"bursar.dev/gpu-percent": "50"}
WEBHOOK = "/apis/apps/v1/namespaces/bursar-system/deployments/bursar-webhook"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpubudgets.bursar.dev"
KEPT = ["Namespace/bursar-node", "Namespace/bursar-system"]
# a later release of the chart: what it changes in each file
LATER = {
    "Chart.yaml": ("ersion: 0.1.0", "ersion: 9.9.9"),
    "values.yaml": ("mode:", "later: true\nmode:"),
    "values.schema.json": ('"mode": {', '"later": {"type": "boolean"},\n    "mode": {'),
    "templates/gpubudgets.yaml": ("name: Standing, type: string", "name: Later, type: string"),
    "templates/priority-classes.yaml": ("Never", "{{ ternary `Never` `` .Values.later }}"),
}


def typed(part: str, *more: str) -> str:
    """The page's first command that begins so, and what is added to it."""
    lines = (line for block in console(PAGE) for line in block.splitlines())
    return " ".join([next(line for line in lines if line.startswith(part)), *more])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout, with helm on the PATH."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(rendered.helm())
    return tmp_path


def release_later(folder: Path) -> None:
    """Make the chart of the checkout a later release."""
    for name, (before, after) in LATER.items():
        file = folder / "deploy" / "chart" / name
        assert before in file.read_text(), name
        file.write_text(file.read_text().replace(before, after))


def container(cp: ControlPlane) -> Json:
    """The webhook's."""
    (only,) = cp.api.call("GET", WEBHOOK)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def release(cp: ControlPlane) -> tuple[str, str]:
    """The webhook's image, and the first column of `kubectl get gpubudgets`."""
    columns = cp.api.call("GET", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    return container(cp)["image"], columns[0]["name"]


def bundles(cp: ControlPlane) -> set[str | None]:
    """The CAs by which the API server trusts the webhook."""
    group = "/apis/admissionregistration.k8s.io/v1"
    return {
        webhook["clientConfig"].get("caBundle")
        for kind in ("mutating", "validating")
        for webhook in cp.api.call("GET", f"{group}/{kind}webhookconfigurations/zz-bursar")["webhooks"]
    }


def certify(cp: ControlPlane, folder: Path) -> None:
    """What the certificate process does."""
    command = [sys.executable, "-m", "webhook", "certificates", "--once", "--write", str(folder / "tls")]
    kubeconfig = ["--kubeconfig", str(cp.admin_kubeconfig)]
    subprocess.run([*command, *kubeconfig], check=True, capture_output=True, cwd=ROOT)


@contextmanager
def pods_are_created(cp: ControlPlane) -> Iterator[list[str]]:
    """One ordinary pod after the other, as long as this lasts; the refusals."""
    refused: list[str] = []
    ended = threading.Event()

    def create() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            refused.extend(filter(None, [refusal(cp, f"ordinary-{number}", {})]))

    thread = threading.Thread(target=create)
    thread.start()
    try:
        yield refused
    finally:
        ended.set()
        thread.join()


def enforces(cp: ControlPlane) -> bool:
    """Whether the three switches are as in the manifests: no setting, the policies, the webhook's flag."""
    bindings = cp.api.call("GET", POLICIES)["items"]
    denying = {each["metadata"]["name"] for each in bindings if each["spec"]["validationActions"] == ["Deny"]}
    observes = "--mode=observe" in container(cp)["args"] or cp.api.answers(SETTINGS_OF)
    return denying == policies_that_deny() and not observes


def missing(cp: ControlPlane) -> str:
    """What kubectl says of objects of the manifests that the cluster does not have."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(documents())}
    return cp.kubectl("get", "-o", "name", "-f", "-", input=json.dumps(listed)).stderr


def left(cp: ControlPlane) -> list[str]:
    """What is ours in the cluster, but in our own namespaces."""
    kinds = cp.kubectl("api-resources", "--verbs=list", "--namespaced=false", "-o", "name").stdout.split()
    asked = ([",".join(kinds)], ["secrets,roles,rolebindings", "-n", "kube-system"])
    found = [json.loads(cp.kubectl("get", "-o", "json", *each).stdout)["items"] for each in asked]
    return sorted(
        f"{each['kind']}/{each['metadata']['name']}"
        for each in (*found[0], *found[1])
        if "bursar" in json.dumps(each["metadata"])
    )


def test_the_chart_is_installed_upgraded_rolled_back_and_uninstalled_and_leaves_its_namespaces_alone(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, typed("helm install bursar", "--set mode=observe"), folder)
    assert missing(cp) == ""
    setting, *others = switches(cp)
    assert (setting.strip(), *others) == OBSERVES
    certify(cp, folder)
    trusted = bundles(cp)
    assert None not in trusted

    run(cp, typed("helm upgrade bursar", "--set mode=enforce"), folder)
    assert (enforces(cp), bundles(cp)) == (True, trusted)
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(cp, "before", HALF)

    release_later(folder)
    run(cp, typed("helm upgrade bursar"), folder)
    assert (release(cp), bundles(cp)) == (("bursar/webhook:9.9.9", "Later"), trusted)
    run(cp, typed("helm rollback bursar"), folder)
    assert (release(cp), bundles(cp)) == (("bursar/webhook:0.1.0", "Standing"), trusted)

    with pods_are_created(cp) as refused:
        run(cp, typed("helm uninstall bursar"), folder)
    assert refused == []
    assert refusal(cp, "after", HALF) == ""
    assert left(cp) == KEPT

    run(cp, typed("kubectl delete namespace"), folder)
    assert everything(cp) == []


def test_helm_takes_over_what_was_applied_from_the_manifests(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, "kubectl apply --server-side -f deploy/manifests", folder)
    taking = typed("helm install bursar deploy/chart -n kube-system --take-ownership")

    run(cp, f"{taking} --set images.prefix=registry.example.com/bursar", folder)
    assert missing(cp) == ""
    assert container(cp)["image"] == "registry.example.com/bursar/webhook:0.1.0"
    run(cp, typed("helm uninstall bursar"), folder)

    assert left(cp) == KEPT
