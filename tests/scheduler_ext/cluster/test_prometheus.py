"""Prometheus itself, built from its Go module, between exporters and the extender: found by its Service on a
real API server, with the right of the sample alone."""

import json
import os
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.tools import PROMETHEUS_TOOLS
from scheduler_ext.scoring.card_points import BUSY
from scheduler_ext.scoring.load_series import query
from tests.scheduler_ext.clusters import World, extender_with
from tests.scheduler_ext.processes import ROOT
from tests.support.control_plane import apply_files, kubectl
from tests.support.http_server import JsonHandler, Served
from tests.support.waiting import eventually

# The build of Prometheus takes as long as that of the control plane.
pytestmark = pytest.mark.soak

ACCOUNT = "bursar-scheduler"
DCGM = 'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{uuid}",device="nvidia0",Hostname="{node}",pod="{pod}"}} {busy}\n'
HAMI = 'hami_host_gpu_utilization_ratio{{node="{node}",device_index="0",device_uuid="{uuid}"}} {busy}\n'


class Exporters:
    """What they measure on two nodes: dcgm-exporter on the one, HAMi's monitor on the other."""

    def __init__(self) -> None:
        self.busy = {"a": 90, "b": 10}

    @property
    def text(self) -> str:
        """The page. dcgm-exporter repeats the card for each pod on it."""
        first, second = card_uuid("a", 0), card_uuid("b", 0)
        lines = [DCGM.format(uuid=first, node="a", pod=pod, busy=self.busy["a"]) for pod in ("x", "y")]
        return "".join([*lines, HAMI.format(uuid=second, node="b", busy=self.busy["b"])])


@pytest.fixture(scope="module")
def exporters() -> Iterator[tuple[Exporters, int]]:
    """They, and the port of their page."""
    world = Exporters()

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, world.text.encode())

    with Served(Handler) as served:
        yield world, served.port


class Prometheus:
    """The server, which scrapes each second."""

    def __init__(self, folder: Path, target: int, launcher: Launcher) -> None:
        self.port, self._folder, self._launcher = free_port(), folder, launcher
        self._program = binaries(lambda line: print(line, file=sys.stderr), PROMETHEUS_TOOLS)["prometheus"]
        scrapes = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": "gpus",
                    "fallback_scrape_protocol": "PrometheusText0.0.4",
                    "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(scrapes))

    def start(self) -> None:
        """Start it; it is not waited for."""
        command = [
            str(self._program),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = self._launcher.start(command, log, dict(os.environ))

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._launcher.stop(self._process)

    def measures(self, busy: dict[str, int]) -> bool:
        """Whether the extender's own query is answered with these figures."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": query([BUSY])})
        try:
            with urllib.request.urlopen(url, timeout=LONGEST_S) as answer:
                rows = json.loads(answer.read())["data"]["result"]
        except OSError:
            return False
        found = {
            each["metric"].get("UUID") or each["metric"]["device_uuid"]: each["value"][1] for each in rows
        }
        return len(rows) == 2 and found == {card_uuid(node, 0): str(each) for node, each in busy.items()}


@pytest.fixture(scope="module")
def prometheus(
    exporters: tuple[Exporters, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """It, with the first figures."""
    world, port = exporters
    with Launcher() as launcher:
        server = Prometheus(tmp_path_factory.mktemp("prometheus"), port, launcher)
        server.start()
        eventually(lambda: server.measures(world.busy))
        yield server


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, prometheus: Prometheus) -> ControlPlane:
    """The control plane with our roles, and the Service of Prometheus in the namespace monitoring."""
    kubectl(control_plane, "create", "namespace", "monitoring")
    for file in ("manifests/00-namespace.yaml", "manifests/rbac.yaml", "samples/prometheus.yaml"):
        apply_files(control_plane, [ROOT / "deploy" / file])
    service = {
        "metadata": {"name": "prometheus-server", "labels": {"app.kubernetes.io/name": "prometheus"}},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"name": "reloader-web", "port": 1}, {"name": "web", "port": prometheus.port}],
        },
    }
    control_plane.api.call("POST", "/api/v1/namespaces/monitoring/services", service)
    return control_plane


extender = extender_with("--prometheus-namespace=monitoring", "--policy=load", account=ACCOUNT)


def metric(world: World, name: str) -> float:
    """A figure of the extender's."""
    lines = world.extender.get("/metrics")[1].splitlines()
    return next((float(each.rpartition(" ")[2]) for each in lines if each.startswith(name)), 0.0)


def polled(world: World) -> None:
    """Wait for two polls that begin from now on: the first may have begun before."""
    heard = 'bursar_extender_usage_polls_total{outcome="heard"}'
    before = metric(world, heard)
    eventually(lambda: metric(world, heard) >= before + 2)


def placed(world: World, name: str) -> str:
    """Where a new pod is bound."""
    world.pod(name, {"bursar.dev/gpu-percent": "10"})
    return eventually(lambda: world.node_info_of(name), lambda: world.refusals(name))


def test_pods_go_where_prometheus_measures_the_least_use_and_are_bound_without_it(
    world: World, prometheus: Prometheus, exporters: tuple[Exporters, int]
) -> None:
    for node in ("a", "b"):
        world.node(node, 1)
    polled(world)
    assert placed(world, "first") == "b"  # the first by name would be a

    exporters[0].busy = {"a": 20, "b": 70}
    eventually(lambda: prometheus.measures({"a": 20, "b": 70}))
    polled(world)
    assert placed(world, "second") == "a"

    unmeasured = "no measurements of card load"
    before = world.extender.said().count(unmeasured)  # at the start, before the first poll
    prometheus.kill()
    eventually(lambda: "event=usage-failed" in world.extender.said())
    assert placed(world, "third") == "a"  # by the last figures
    heard_s = metric(world, "bursar_extender_usage_last_success_timestamp_seconds")
    assert heard_s > 0
    eventually(lambda: time.time() - heard_s > 120)
    assert placed(world, "fourth")
    assert world.extender.said().count("event=usage-failed") == 1
    assert world.extender.said().count(unmeasured) == before + 1

    exporters[0].busy = {"a": 90, "b": 10}
    prometheus.start()
    eventually(lambda: prometheus.measures({"a": 90, "b": 10}))
    polled(world)
    assert placed(world, "fifth") == "b"
    assert world.extender.said().count("event=usage-updated") == 2
