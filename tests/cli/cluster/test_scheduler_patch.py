"""What kubeadm writes for kube-scheduler, patched, binds GPU pods through the extender, and others as before."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.launcher import Launcher
from deploy.local.stack import Stack, free_port
from deploy.local.tools import KUBEADM_TOOLS, KUBERNETES_VERSION
from tests.cli.unit.test_scheduler_patch import KUBEADM
from tests.deploy.reading import ROOT
from tests.local.worlds import pod
from timekeeper.cli.main import cli

KUBECONFIG = "/etc/kubernetes/scheduler.conf"
PODS = "/api/v1/namespaces/team-a/pods"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest that kubeadm writes."""
    folder = tmp_path_factory.mktemp("kubeadm")
    phase = ["init", "phase", "control-plane", "scheduler", f"--kubernetes-version=v{KUBERNETES_VERSION}"]
    kubeadm = binaries(print, KUBEADM_TOOLS)["kubeadm"]
    environment = os.environ | {"KUBEADM_INIT_DRYRUN_DIR": str(folder)}
    subprocess.run([kubeadm, *phase, "--dry-run"], env=environment, check=True, timeout=60)
    return (folder / "kube-scheduler.yaml").read_text()


def test_the_sample_of_the_unit_tests_is_what_kubeadm_writes(written: str) -> None:
    assert written == KUBEADM


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Bursar without any kube-scheduler."""
    with ControlPlane() as cp, Stack(cp) as running:
        cp.stop_scheduler()
        cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        cp.api.call("POST", "/api/v1/nodes", kwok_node("gpu-1", cards=1, memory_mib=81_920))
        yield running


def test_the_patched_kube_scheduler_binds_gpu_pods_with_cards_and_other_pods_as_before(
    stack: Stack, written: str, tmp_path: Path
) -> None:
    file = tmp_path / "manifests" / "kube-scheduler.yaml"
    file.parent.mkdir()
    file.write_text(written.replace(KUBECONFIG, str(stack.cp.folder / "scheduler.kubeconfig")))
    words = ["scheduler", "patch", str(file), f"--folder={tmp_path}/bursar"]
    done = CliRunner().invoke(cli, [*words, f"--extender-url={stack.extender_url}"])
    assert done.exit_code == 0, done.output
    command = yaml.safe_load(file.read_text())["spec"]["containers"][0]["command"]
    program = [str(binaries(print)["kube-scheduler"]), *command[1:], f"--secure-port={free_port()}"]
    half = yaml.safe_load((ROOT / "deploy" / "samples" / "half-a-card.yaml").read_text())

    with Launcher() as launcher, (tmp_path / "log").open("wb") as output:
        launcher.start(program, output, folder=tmp_path)
        for each in (half, pod("plain")):
            stack.cp.api.call("POST", PODS, each)
        for name in ("half-a-card", "plain"):
            stack.wait(
                name, lambda name=name: "nodeName" in stack.cp.api.call("GET", f"{PODS}/{name}")["spec"]
            )

    bound = stack.cp.api.call("GET", f"{PODS}/half-a-card")
    assert "bursar.dev/devices" in bound["metadata"]["annotations"]
    assert "bursar.dev/devices" not in stack.cp.api.call("GET", f"{PODS}/plain")["metadata"].get(
        "annotations", {}
    )
