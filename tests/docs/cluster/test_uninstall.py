"""docs/uninstall.md, command by command, on a real API server: the cluster creates pods all the while."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.deploy.reading import MANIFESTS, ROOT
from tests.docs.shell import console, run
from timekeeper.core import names

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "uninstall.md").read_text()
NODE = {
    "metadata": {
        "name": "gpu-1",
        "labels": {"bursar.node-restriction.kubernetes.io/gpu-node": "true"},
        "annotations": {names.INVENTORY: "{}", names.HOLDERS: "{}", names.CORDONED_CARDS: "GPU-1"},
    },
}
AMOUNTS = {"bursar.dev/gpu-percent": "100", "bursar.dev/gpu-memory": "81920"}
STATUS = {"status": {"capacity": {"cpu": "8", **AMOUNTS}, "allocatable": {"cpu": "8", **AMOUNTS}}}


def steps() -> dict[str, str]:
    """Each numbered step's title, and the commands that it has people type in the cluster."""
    parts = re.split(r"^## \d\. ", PAGE.partition("\n## What stays")[0], flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: "\n".join(console(part)) for part in parts}


def refusal(cp: ControlPlane, name: str, limits: dict[str, str]) -> str:
    """Why the API server does not create a pod; empty where it does."""
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container]},
    }
    done = cp.kubectl("create", "-f", "-", input=json.dumps(pod))
    return done.stderr if done.returncode else ""


def everything(cp: ControlPlane) -> list[str]:
    """Every object of the cluster, but Events, that has our name or label, as `kind/name`."""
    kinds = cp.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    listed = ",".join(kind for kind in kinds if not kind.startswith("events"))
    found: dict[str, Any] = json.loads(cp.kubectl("get", "-A", "-o", "json", listed).stdout)
    return [
        f"{each['kind']}/{each['metadata']['name']}"
        for each in found["items"]
        if "bursar" in each["metadata"]["name"]
        or "bursar" in each["metadata"].get("namespace", "")
        or "app.kubernetes.io/part-of" in each["metadata"].get("labels", {})
    ]


def test_pods_are_created_after_each_step_and_nothing_of_ours_is_left(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    applied = control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS))
    assert applied.returncode == 0, applied.stderr
    budgets = ("create", "configmap", "bursar-budgets", "-n", "bursar-system")
    assert control_plane.kubectl(*budgets, "--from-literal=team-a=gpuHours: 1").returncode == 0
    control_plane.api.call("POST", "/api/v1/nodes", NODE)
    patch = ("patch", "node", "gpu-1", "--subresource", "status", "--type", "merge", "-p", json.dumps(STATUS))
    assert control_plane.kubectl(*patch).returncode == 0
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    half = {"bursar.dev/gpu-percent": "50"}
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(control_plane, "before", half)

    for number, (title, commands) in enumerate(steps().items()):
        run(control_plane, commands, tmp_path)

        assert refusal(control_plane, f"gpu-{number}", half) == "", title
        assert refusal(control_plane, f"plain-{number}", {}) == "", title

    assert everything(control_plane) == []
    assert "team-a" in (tmp_path / "budgets.yaml").read_text()
    node = control_plane.api.call("GET", "/api/v1/nodes/gpu-1")
    marks = {**node["metadata"].get("labels", {}), **node["metadata"].get("annotations", {})}
    assert [key for key in marks if "bursar" in key] == []
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8"}


def test_the_manifests_alone_can_be_deleted_as_they_were_applied_and_stop_no_pod(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    half = {"bursar.dev/gpu-percent": "50"}
    run(control_plane, "kubectl apply --server-side -f deploy/manifests", tmp_path)
    assert refusal(control_plane, "refused", half) != ""

    run(control_plane, "kubectl delete -f deploy/manifests", tmp_path)

    assert refusal(control_plane, "gpu-alone", half) == ""
    assert everything(control_plane) == []


def test_after_the_namespace_alone_was_deleted_the_first_step_makes_pods_creatable_again(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    half = {"bursar.dev/gpu-percent": "50"}
    run(control_plane, "kubectl apply --server-side -f deploy/manifests", tmp_path)
    run(control_plane, "kubectl delete namespace bursar-system", tmp_path)
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(control_plane, "refused-again", half)

    run(control_plane, next(iter(steps().values())), tmp_path)

    assert refusal(control_plane, "gpu-again", half) == ""
    run(control_plane, "kubectl delete -f deploy/manifests --ignore-not-found", tmp_path)
    assert everything(control_plane) == []
