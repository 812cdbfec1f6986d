"""The chart on a real kubelet, with the images of `make images`: installed in each mode until its pods are
ready, a budget, a pod that is charged, a report, an upgrade, and uninstalled. `make all` has the mode `meter`
alone, which needs one image."""

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
from timekeeper.core import __version__

Installable = tuple[ControlPlane, tuple[str, ...]]
VALUES = {
    "images": {"prefix": chart.PREFIX},
    "webhook": {"replicas": 1},
    "nodeAgent": {"enabled": False},
}
# Prints the modules without code that is compared with no source, and of Python's own those without any.
UNCOMPILED = """
import json, sys
from importlib.util import cache_from_source
from pathlib import Path

library = [module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]
code = {path: Path(cache_from_source(path)) for path in Path("/opt/bursar/lib").rglob("*.py")}
print([path for path in library if path.endswith(".py") and not Path(cache_from_source(path)).is_file()])
print([path for path, file in code.items() if file.read_bytes()[4:8] != b"\\1\\0\\0\\0"], len(code) > 1000)
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> chart.Builder:
    """With the timekeeper's image; skipped by name where this machine cannot build it."""
    reason = chart.hindrance()
    if reason:
        pytest.skip(reason)
    builder = chart.Builder(tmp_path_factory.mktemp("images"))
    builder.build("timekeeper")
    return builder


@pytest.fixture(scope="module")
def cluster(
    machine: NodeHost, builder: chart.Builder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installable]:
    """A cluster of one real node with two cards, with nothing of Bursar but the timekeeper's image; and
    values of the chart."""
    folder = tmp_path_factory.mktemp("chart")
    builder.load(machine, "timekeeper")
    chart.load_scheduler(machine, folder)
    options = Options(listen=GATEWAY, nodes=(NODE,), api_flags=("--enable-aggregator-routing=true",))
    with (
        ControlPlane(options, tools=machine.tools) as cp,
        RealNode(machine, cp, NODE),
        chart.service_address(machine, cp.url),
    ):
        cp.start_scheduler()
        advertise(cp)
        (folder / "values.yaml").write_text(json.dumps(VALUES))
        yield cp, (f"--values={folder}/values.yaml",)


@pytest.fixture
def volume(cluster: Installable, tmp_path: Path) -> Iterator[None]:
    """An empty volume for one installation's ledger."""
    cp, _ = cluster
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger").chmod(0o777)  # its writer is the user of the images
    offer_volume(cp, tmp_path / "ledger")
    yield
    kubectl(cp, "delete", "persistentvolume", "ledger")


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
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def exec_in_timekeeper(cp: ControlPlane, code: str) -> str:
    """What a line of Python prints in the timekeeper's container."""
    words = ("exec", "-n", "bursar-system", "bursar-timekeeper-0", "--", "python", "-c", code)
    return kubectl(cp, *words).strip()


def uninstall(cp: ControlPlane, folder: Path, *namespaces: str) -> None:
    """Remove the release with its namespaces."""
    helm(cp, folder, "uninstall", "bursar", "--wait", "--timeout=5m")
    found = ("bursar-system", "bursar-node", *namespaces)
    kubectl(cp, "delete", "namespace", "--ignore-not-found", "--timeout=5m", *found)


def test_another_build_of_a_commit_has_the_same_digest(builder: chart.Builder) -> None:
    first = builder.digest("timekeeper")

    builder.build("timekeeper")

    assert first.startswith("sha256:")
    assert builder.digest("timekeeper") == first


@pytest.mark.usefixtures("volume")
def test_a_role_runs_from_its_image_as_a_number_with_all_of_its_modules_compiled(
    cluster: Installable, tmp_path: Path
) -> None:
    cp, values = cluster

    helm(cp, tmp_path, "install", "bursar", str(rendered.CHART), *values, "--wait", "--set=mode=meter")

    assert running_images(cp) == {f"{chart.PREFIX}/timekeeper:{__version__}"}
    assert (
        exec_in_timekeeper(cp, "import os; print(os.getuid(), os.access('/opt', os.W_OK))") == "65532 False"
    )
    assert exec_in_timekeeper(cp, UNCOMPILED).splitlines() == ["[]", "[] True"]
    uninstall(cp, tmp_path)


@pytest.mark.soak
@pytest.mark.usefixtures("volume")
def test_the_charts_pods_run_in_each_mode_govern_and_charge_a_pod_and_leave_nothing(
    cluster: Installable, machine: NodeHost, builder: chart.Builder, tmp_path: Path
) -> None:
    cp, values = cluster
    builder.build("webhook", "extender", "sidecar")
    builder.load(machine, "webhook", "extender", "sidecar")
    pods = create_namespace(cp, "gpus")
    chart_of = ("bursar", str(rendered.CHART), *values, "--wait", "--timeout=5m")

    helm(cp, tmp_path, "install", *chart_of, "--set=mode=meter")
    metered = running_images(cp)
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

    uninstall(cp, tmp_path, "gpus")
    assert "bursar" not in cp.kubectl("get", "pods,namespaces", "-A").stdout
