"""Prometheus itself, built from its Go module, answers the timekeeper's query: the use of metered pods by the
series of dcgm-exporter."""

import json
import time
from collections.abc import Iterator

import pytest

from deploy.local.launcher import Launcher
from tests.scheduler_ext.cluster.test_prometheus import Prometheus
from tests.support.http_server import JsonHandler, Served
from tests.support.waiting import eventually
from timekeeper.accounts.card_use.dcgm import QUERY, PodOnNode, measured_pods
from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.accounts.card_use.prometheus_answers import read_series
from timekeeper.edge.http_client import tcp
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import PrometheusClient
from timekeeper.runtime.prometheus_settings import PrometheusSettings

# The build of Prometheus takes as long as that of the control plane.
pytestmark = pytest.mark.soak

ON_CARD = 'UUID="GPU-{card}",Hostname="n1",exported_namespace="team-a",exported_pod="{pod}"'
DCGM = f"DCGM_FI_DEV_GPU_UTIL{{{{{ON_CARD}}}}} {{busy}}\n"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusClient]:
    """A client of it, once it has scraped both cards."""
    page = DCGM.format(card=0, pod="busy", busy=80) + DCGM.format(card=1, pod="rests", busy=0)

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, page.encode())

    with Served(Handler) as served, Launcher() as launcher:
        server = Prometheus(tmp_path_factory.mktemp("prometheus"), served.port, launcher)
        server.start()
        settings = PrometheusSettings(f"http://127.0.0.1:{server.port}")
        client = PrometheusClient(settings, Api("http://none", tcp, dict))
        eventually(lambda: len(read_series(json.loads(answered(client)))) == 2)
        yield client
        client.close()


def answered(client: PrometheusClient) -> bytes:
    try:
        return client.ask("/api/v1/query", query=QUERY)
    except ValueError:
        return b'{"data": {"resultType": "vector", "result": []}}'


def test_the_use_of_pods_is_read(asked: PrometheusClient) -> None:
    series = read_series(json.loads(answered(asked)))
    holders = {("team-a", name): PodOnNode(name, "n1", 1, True) for name in ("busy", "rests")}
    found = measured_pods(series, holders, int(time.time() * 1000))

    assert found.findings == ()
    assert dict(found.pods) == {
        "busy": (CardSample("GPU-0", 80, None, exclusive=True),),
        "rests": (CardSample("GPU-1", 0, None, exclusive=True),),
    }
