"""The real kube-scheduler with the ConfigMap and the account that the manifests give it."""

import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.deploy.reading import MANIFESTS, NAMESPACE, container, the
from tests.local.worlds import get, pod
from tests.support.control_plane import kubectl
from tests.support.waiting import eventually

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/bursar-scheduler"


@dataclass(frozen=True, slots=True)
class Running:
    """kube-scheduler on a control plane: its log, and the port that it answers probes on."""

    cp: ControlPlane
    log: Path
    port: int


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kubectl(control_plane, "apply", "--server-side", "-f", str(MANIFESTS))
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/bursar-scheduler/token"
    token = control_plane.api.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    told = yaml.safe_load(the("ConfigMap", "bursar-scheduler")["data"]["scheduler.yaml"])
    told["clientConnection"]["kubeconfig"] = str(control_plane.kubeconfig(token, "bursar-scheduler"))
    folder = tmp_path_factory.mktemp("scheduler")
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(told))
    port, log = free_port(), folder / "log"
    words = [*container("bursar-scheduler/kube-scheduler")["command"], "--bind-address=127.0.0.1"]
    assert words[:2] == ["kube-scheduler", "--config=/etc/bursar/scheduler.yaml"]
    command = [str(binaries(print)["kube-scheduler"]), f"--config={folder}/scheduler.yaml", *words[2:]]
    with Launcher() as launcher, log.open("wb") as output:
        launcher.start([*command, f"--secure-port={port}"], output, folder=folder)
        yield Running(control_plane, log, port)


def test_it_takes_the_lease_of_its_configuration(scheduler: Running) -> None:
    lease = eventually(lambda: get(scheduler.cp.api, LEASE))

    assert lease["spec"]["holderIdentity"]


def test_it_goes_on_leading(scheduler: Running) -> None:
    first = eventually(lambda: get(scheduler.cp.api, LEASE))["spec"]["renewTime"]

    assert eventually(lambda: get(scheduler.cp.api, LEASE)["spec"]["renewTime"] != first)


def test_it_binds_a_pod_of_its_profile(scheduler: Running) -> None:
    scheduler.cp.api.call("POST", "/api/v1/nodes", kwok_node("n1"))
    pods = "/api/v1/namespaces/default/pods"
    scheduler.cp.api.call("POST", pods, pod("plain", schedulerName="bursar-scheduler"))

    assert eventually(lambda: scheduler.cp.api.call("GET", f"{pods}/plain")["spec"].get("nodeName")) == "n1"


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_it_answers_a_probe_that_brings_no_credentials(scheduler: Running, probe: str) -> None:
    asked = container("bursar-scheduler/kube-scheduler")[probe]["httpGet"]

    assert eventually(lambda: answers(f"https://127.0.0.1:{scheduler.port}{asked['path']}"))


def test_it_is_refused_nothing(scheduler: Running) -> None:
    eventually(lambda: get(scheduler.cp.api, LEASE))

    told = scheduler.log.read_text()
    assert "Starting Kubernetes Scheduler" in told
    assert not [line for line in told.splitlines() if "forbidden" in line.lower()]


def answers(url: str) -> bool:
    """Whether a GET succeeds; the kubelet does not verify certificates either."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=LONGEST_S, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
