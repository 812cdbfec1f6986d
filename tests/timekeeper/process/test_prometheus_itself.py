"""Prometheus itself, built from its Go module, answers the timekeeper's queries: the use of metered pods by
the series of dcgm-exporter, and the time before the ledger by those of kube-state-metrics."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.launcher import Launcher
from tests.scheduler_ext.cluster.test_prometheus import Prometheus
from tests.support.http_server import JsonHandler, Served
from tests.support.waiting import eventually
from timekeeper.accounts.card_use.dcgm import QUERY, PodOnNode, measured_pods
from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.accounts.card_use.prometheus_answers import read_series
from timekeeper.accounts.estimate import STEP_MS, held_devices, queries
from timekeeper.api.resources.forecasts import series_of
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import Interval
from timekeeper.edge.http_client import tcp
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import PrometheusClient
from timekeeper.runtime.prometheus_settings import PrometheusSettings

# The build of Prometheus takes as long as that of the control plane.
pytestmark = pytest.mark.soak

A100 = "NVIDIA-A100-SXM4-40GB"
STEPS, GAP = 6, 4
ON_CARD = 'UUID="GPU-{card}",Hostname="n1",exported_namespace="team-a",exported_pod="{pod}"'
DCGM = f"DCGM_FI_DEV_GPU_UTIL{{{{{ON_CARD}}}}} {{busy}}\n"


PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


def line(name: str, at_ms: int, labels: dict[str, str], value: int = 1) -> str:
    """A sample as kube-state-metrics writes it, of two replicas that both are scraped."""
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return "".join(f'{name}{{{inner},replica="{each}"}} {value} {at_ms}\n' for each in "ab")


def pod(at_ms: int, name: str, node: str, cards: int, phase: str = "Running", **labels: str) -> str:
    """The samples of a pod."""
    named = labels or {"namespace": "team-a", "pod": name}
    devices = named | {"container": "main", "resource": "nvidia_com_gpu", "unit": "integer"}
    phases = (
        line("kube_pod_status_phase", at_ms, named | {"phase": each}, int(each == phase)) for each in PHASES
    )
    return "".join(
        (
            line("kube_pod_info", at_ms, named | {"node": node}),
            line("kube_pod_container_resource_limits", at_ms, devices, cards),
            line("kube_pod_container_resource_requests", at_ms, devices, cards),
            *phases,
        )
    )


def page(begin_ms: int) -> str:
    """What is scraped: cards in use now, and pods at the beginning of each step but one."""
    text = [DCGM.format(card=0, pod="busy", busy=80), DCGM.format(card=1, pod="rests", busy=0)]
    for step in (each for each in range(STEPS) if each != GAP):
        at_ms = begin_ms + step * STEP_MS
        cpu = {"namespace": "x", "pod": "x", "container": "x", "resource": "cpu"}
        text.append(line("kube_pod_container_resource_requests", at_ms, cpu))
        text.append(line("kube_node_labels", at_ms, {"node": "n1", "label_nvidia_com_gpu_product": A100}))
        text.append(pod(at_ms, "busy", "n1", 2))
        text.append(pod(at_ms, "over", "n1", 4, "Succeeded"))
        text.append(pod(at_ms, "waits", "", 4, "Pending"))
        others = {"namespace": "monitoring", "pod": "ksm"}
        others |= {"exported_namespace": "team-b", "exported_pod": "plain"}
        text.append(pod(at_ms, "plain", "n2", 1, **others) if step >= 2 else "")
    return "".join(text)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrometheusClient, int]]:
    """A client of it, and where the steps begin."""
    begin_ms = int(time.time() * 1000) // STEP_MS * STEP_MS - STEPS * STEP_MS
    folder = tmp_path_factory.mktemp("prometheus")

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, page(begin_ms).encode())

    with Served(Handler) as served, Launcher() as launcher:
        client = PrometheusClient(
            PrometheusSettings(serving(folder, served.port, launcher)), Api("http://none", tcp, dict)
        )
        eventually(lambda: len(read_series(json.loads(answered(client)), "vector")) == 2)
        yield client, begin_ms
        client.close()


def serving(folder: Path, target: int, launcher: Launcher) -> str:
    """The URL of a server that takes samples of the hours before, too."""
    server = Prometheus(folder, target, launcher)
    file = folder / "prometheus.yml"
    storage = {"storage": {"tsdb": {"out_of_order_time_window": "2d"}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | storage))
    server.start()
    return f"http://127.0.0.1:{server.port}"


def answered(client: PrometheusClient) -> bytes:
    try:
        return client.ask("/api/v1/query", query=QUERY)
    except ValueError:
        return b'{"data": {"resultType": "vector", "result": []}}'


def test_the_use_of_pods_is_read(asked: tuple[PrometheusClient, int]) -> None:
    series = read_series(json.loads(answered(asked[0])), "vector")
    holders = {("team-a", name): PodOnNode(name, "n1", 1, True) for name in ("busy", "rests")}
    found = measured_pods(series, holders, int(time.time() * 1000))

    assert found.findings == ()
    assert dict(found.pods) == {
        "busy": (CardSample("GPU-0", 80, None, exclusive=True),),
        "rests": (CardSample("GPU-1", 0, None, exclusive=True),),
    }


def test_devices_of_pods_on_nodes_are_counted_once_and_a_gap_is_unknown(
    asked: tuple[PrometheusClient, int],
) -> None:
    client, begin_ms = asked
    span = Interval(begin_ms, begin_ms + STEPS * STEP_MS)
    held, known, failures = series_of(client, span, queries(BudgetSettings()))
    found = held_devices(span, held, known, failures)

    steps = [begin_ms + step * STEP_MS for step in range(STEPS) if step != GAP]
    assert (found.findings, found.known_ms) == ((), frozenset(steps))
    assert found.held == {
        ("team-a", "nvidia_com_gpu", (A100, "", "", "", "")): dict.fromkeys(steps, 2),
        ("team-b", "nvidia_com_gpu", ("", "", "", "", "")): dict.fromkeys(steps[2:], 1),
    }
