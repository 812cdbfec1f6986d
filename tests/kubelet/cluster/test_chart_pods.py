"""The chart on a real kubelet, with the images of `make images`: installed in each mode until its pods are
ready, a budget, a pod that is charged, a report, an upgrade, and uninstalled."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import rendered
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.real_node import GATEWAY, NodeHost, RealNode
from tests.deploy.reading import ROOT
from tests.kubelet import chart
from tests.kubelet.worlds import NODE, advertise, gpu_pod, runs_for
from tests.kubelet.worlds import container as running
from tests.support.control_plane import create_namespace, kubectl, offer_volume
from tests.support.waiting import eventually

pytestmark = pytest.mark.soak

Installable = tuple[ControlPlane, tuple[str, ...]]
VALUES = {
    "webhook": {"replicas": 1},
    "certificates": {"replicas": 1},
    "scheduler": {"replicas": 1},
    "nodeAgent": {"enabled": False},
}


@pytest.fixture(scope="module")
def cluster(machine: NodeHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installable]:
    """A cluster of one real node with two cards, with nothing of Bursar but its images, and a volume; and
    values of the chart that name the images by their digests."""
    folder = tmp_path_factory.mktemp("chart")
    chart.load_scheduler(machine, folder)
    options = Options(listen=GATEWAY, nodes=(NODE,), api_flags=("--enable-aggregator-routing=true",))
    with (
        chart.pushed(folder) as images,
        ControlPlane(options, tools=machine.tools) as cp,
        RealNode(machine, cp, NODE),
        chart.service_address(machine, cp.url),
    ):
        cp.start_scheduler()
        (folder / "ledger").mkdir()
        (folder / "ledger").chmod(0o777)  # its writer is the user of the images
        offer_volume(cp, folder / "ledger")
        advertise(cp)
        (folder / "few.yaml").write_text(json.dumps(VALUES))
        yield cp, (f"--values={images}", f"--values={folder}/few.yaml")


def helm(cp: ControlPlane, folder: Path, *arguments: str) -> None:
    """Run helm as the administrator."""
    environment = os.environ | {"KUBECONFIG": str(cp.admin_kubeconfig), "HOME": str(folder)}
    done = subprocess.run(
        [rendered.helm(), *arguments, "-n", "kube-system"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + states(cp)


def states(cp: ControlPlane) -> str:
    """How the pods are, for a failure's message."""
    pods = cp.kubectl("get", "pods", "-n", "bursar-system", "-o", "name").stdout.split()
    logs = [cp.kubectl("logs", "-n", "bursar-system", pod, "--all-containers", "--tail=9") for pod in pods]
    events = cp.kubectl("get", "events", "-n", "bursar-system").stdout[-3000:]
    return "\n".join([cp.kubectl("get", "pods", "-A").stdout, *(each.stdout for each in logs), events])


def bursar(cp: ControlPlane, *arguments: str) -> str:
    """The output of `kubectl bursar`, as the administrator."""
    path = f"{Path(cp.kubectl_path).parent}:{os.environ['PATH']}"
    command = [
        sys.executable,
        "-m",
        "timekeeper.cli.main",
        *arguments,
        "--kubeconfig",
        str(cp.admin_kubeconfig),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr + states(cp)
    return done.stdout


def running_images(cp: ControlPlane) -> set[str]:
    """The images of ours that run, as the chart names them."""
    pods = cp.api.call("GET", "/api/v1/namespaces/bursar-system/pods")["items"]
    return {each["image"] for pod in pods for each in pod["spec"]["containers"]}


def test_the_charts_pods_run_in_each_mode_govern_and_charge_a_pod_and_leave_nothing(
    cluster: Installable, tmp_path: Path
) -> None:
    cp, values = cluster
    pods = create_namespace(cp, "gpus")
    chart_of = ("bursar", str(rendered.CHART), *values, "--wait", "--timeout=5m")

    helm(cp, tmp_path, "install", *chart_of, "--set=mode=meter")
    metered = running_images(cp)
    assert len(metered) == 1
    assert all("/bursar/timekeeper:" in name and "@sha256:" in name for name in metered)

    helm(cp, tmp_path, "upgrade", *chart_of, "--set=mode=observe")
    assert metered < running_images(cp)

    helm(cp, tmp_path, "upgrade", *chart_of)
    name = {"name": "bursar-budgets", "namespace": "bursar-system"}
    entries = {"gpus": "gpuHours: 10\nperiod: month\n"}
    budgets = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": entries}
    kubectl(cp, "apply", "--server-side", "-f", "-", input=json.dumps(budgets))
    kubectl(cp, "apply", "--server-side", "-f", str(ROOT / "deploy/samples/administrator.yaml"))
    half = running("main", runs_for(600), gpu_percent="50")
    cp.api.call("POST", pods, gpu_pod("one", half))
    eventually(lambda: cp.api.call("GET", f"{pods}/one")["status"]["phase"] == "Running")
    pod: dict[str, Any] = cp.api.call("GET", f"{pods}/one")
    assert pod["spec"]["schedulerName"] == "bursar-scheduler"
    assert "bursar.dev/devices" in pod["metadata"]["annotations"]
    eventually(lambda: "one" in bursar(cp, "top", "-A"))
    (budget,) = json.loads(bursar(cp, "budget", "-A", "-o", "json"))["items"]
    assert (budget["namespace"], budget["gpuHours"]["granted"]) == ("gpus", "10")
    eventually(lambda: "gpus" in bursar(cp, "report", "-A"))
    assert bursar(cp, "report", "-A").splitlines()[-1].startswith("TOTAL ")

    helm(cp, tmp_path, "uninstall", "bursar", "--wait", "--timeout=5m")
    kubectl(cp, "delete", "namespace", "bursar-system", "bursar-node", "gpus", "--timeout=5m")
    assert "bursar" not in cp.kubectl("get", "pods,namespaces", "-A").stdout
