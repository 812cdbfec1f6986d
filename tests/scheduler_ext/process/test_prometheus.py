"""Prometheus as the extender asks it: found among the Services or at a URL, within bounds, and away."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from scheduler_ext.clients.card_load_poller import STALE_MS, Measuring, Prometheus, read_samples
from scheduler_ext.scoring.card_points import Scale
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.worlds import Json, node, percent
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from tests.support.waiting import eventually
from timekeeper.core.values import Card
from timekeeper.edge.http_client import tcp
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import PrometheusError, service_url
from timekeeper.runtime.prometheus_settings import PrometheusSettings


def vector(**busy: int) -> Json:
    """The answer that tells the utilisation of these cards."""
    result = [
        {
            "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": uuid.replace("_", "-")},
            "value": [1, str(each)],
        }
        for uuid, each in busy.items()
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Simulated(SimpleNamespace):
    """Prometheus, and an API server that lists its Services, at one address."""

    status = 200
    body: object = vector(a_GPU_0=5, b_GPU_0=90)
    services: object = ()


@pytest.fixture
def server() -> Iterator[Simulated]:
    """One that knows how busy two cards are."""
    world = Simulated(asked=[])

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            at = urlsplit(self.path)
            world.asked.append((at.path, parse_qs(at.query), self.headers.get("Authorization")))
            if at.path.endswith("/services"):
                self.answer(200, {"items": world.services})
            else:
                self.answer(world.status, world.body)

    with Served(Handler) as served:
        world.url, world.port = served.url, served.port
        yield world


@pytest.fixture
def caller(server: Simulated) -> Iterator[Api]:
    """The client of the API server."""
    made = Api(server.url, tcp, dict)
    yield made
    made.close()


def service(name: str, ports: list[Json], **spec: object) -> Json:
    """A Service in the namespace monitoring."""
    return {"metadata": {"name": name, "namespace": "monitoring"}, "spec": {"ports": ports, **spec}}


@pytest.mark.parametrize(
    ("found", "url"),
    [
        (service("p", [{"port": 80}], clusterIP="10.0.0.7"), "http://10.0.0.7:80"),
        (service("p", [{"port": 9090}], clusterIP="fd00::7"), "http://[fd00::7]:9090"),
        (service("p", [{"port": 9090}], clusterIP="None"), "http://p.monitoring.svc:9090"),
        (
            service("p", [{"port": 9090}], type="ExternalName", externalName="p.example"),
            "http://p.example:9090",
        ),
        (
            service(
                "p",
                [{"port": 8080, "name": "reloader-web"}, {"port": 9090, "name": "http-web"}],
                clusterIP="10.0.0.7",
            ),
            "http://10.0.0.7:9090",
        ),
        (service("p", [{"port": 53, "protocol": "UDP"}], clusterIP="10.0.0.7"), ""),
        (service("p", []), ""),
    ],
)
def test_where_a_service_answers(found: Json, url: str) -> None:
    assert service_url(found) == url


def test_it_is_found_by_its_service_and_again_after_each_failure(server: Simulated, caller: Api) -> None:
    source = Prometheus(PrometheusSettings("", "monitoring"), ["busy"], caller)
    with pytest.raises(PrometheusError, match="namespace monitoring has no Service with the label"):
        source.get("")

    port = [{"port": server.port}]
    server.services = [service("x", port, clusterIP="127.0.0.9"), service("a", port, clusterIP="127.0.0.1")]
    assert read_samples(source.get("").body) == {"a-GPU-0": {"busy": 5}, "b-GPU-0": {"busy": 90}}
    source.get("")
    source.close()
    source.get("")
    source.close()
    paths = [path.rpartition("/")[2] for path, _, _ in server.asked]
    assert paths == ["services", "services", "query", "query", "services", "query"]
    assert server.asked[0][:2] == (
        "/api/v1/namespaces/monitoring/services",
        {"labelSelector": ["app.kubernetes.io/name=prometheus"]},
    )


def test_the_token_is_read_before_each_query(server: Simulated, caller: Api, tmp_path: Path) -> None:
    token = tmp_path / "token"
    source = Prometheus(PrometheusSettings(server.url + "/base", token_file=token), ["busy"], caller)

    for each in ("first", "second"):
        token.write_text(each + "\n")
        source.get("")
    assert [(path, given) for path, _, given in server.asked] == [
        ("/base/api/v1/query", "Bearer first"),
        ("/base/api/v1/query", "Bearer second"),
    ]
    token.unlink()
    with pytest.raises(PrometheusError, match="No such file"):
        source.get("")
    source.close()


def test_over_tls_its_certificate_is_verified_by_the_bundle(caller: Api, tls: Tls, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes(tls.ca.bundle)

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, vector(a_GPU_0=5))

    with Served(Handler, tls.server()) as served:
        source = Prometheus(PrometheusSettings(served.url, ca=bundle), ["busy"], caller)
        assert read_samples(source.get("").body) == {"a-GPU-0": {"busy": 5}}
        source.close()
        unknown = Prometheus(PrometheusSettings(served.url), ["busy"], caller)
        with pytest.raises(PrometheusError, match="its certificate is not accepted"):
            unknown.get("")


def test_what_it_refuses_is_an_error_with_the_reason(server: Simulated, caller: Api) -> None:
    source = Prometheus(PrometheusSettings(server.url), ["busy"], caller)
    server.status, server.body = (
        422,
        {"status": "error", "error": "query processing would load too many samples"},
    )
    with pytest.raises(PrometheusError, match="answers 422: query processing would load"):
        source.get("")
    server.status, server.body = 302, b"elsewhere"
    with pytest.raises(PrometheusError, match="answers 302: elsewhere"):
        source.get("")
    source.close()


def test_while_it_is_away_the_last_figures_age_until_there_are_none_and_that_is_logged_once(
    server: Simulated, caller: Api
) -> None:
    lines: list[str] = []
    polls: list[str] = []
    at = SimpleNamespace(ms=0)
    measuring = Measuring(
        Prometheus(PrometheusSettings(server.url), ["busy"], caller),
        read_samples,
        lambda: [("a", Card("a-GPU-0", 0, "T4", 16_000))],
        Scale(),
        lambda: at.ms,
        lambda event, **fields: lines.append(event),
        polls.append,
    )
    measuring.poll()
    assert measuring.figures() == {"a-GPU-0": 100}

    server.status = 503
    for at.ms in (10_000, 20_000, STALE_MS):
        measuring.poll()
        assert measuring.figures() == {"a-GPU-0": 100}
    at.ms = STALE_MS + 1
    assert measuring.figures() is None
    server.status = 200
    measuring.poll()
    assert measuring.figures() == {"a-GPU-0": 100}
    assert lines == ["usage-updated", "usage-failed", "usage-updated"]
    assert polls == ["heard", "failed", "failed", "failed", "heard"]
    measuring.close()


def test_the_running_extender_places_by_prometheus_and_without_it_as_by_default(
    start: Start, server: Simulated
) -> None:
    quiet = percent(10, annotations={"bursar.dev/policy": "load"})
    world = start("--prometheus-url", server.url, "--load-weights", "busy=2")
    server.status = 503
    for name in ("a", "b"):
        world.put_node(node(name))
    assert world.prioritize(quiet, "a", "b") == {"a": 10, "b": 9}
    eventually(lambda: any(line.startswith("usage-failed") for line in world.lines))
    assert sum(line.startswith("policy") and "no measurements" in line for line in world.lines) == 1
    assert world.filter(quiet, "a", "b")["NodeNames"] == ["a", "b"]

    server.status, server.body = 200, vector(a_GPU_0=90, b_GPU_0=5)
    measuring = world.extender.polling.card_loads
    assert measuring is not None
    measuring.poll()
    assert world.prioritize(quiet, "a", "b") == {"a": 9, "b": 10}
    told = world.client.get("/metrics").text
    assert 'bursar_extender_usage_polls_total{outcome="failed"}' in told
    assert 'bursar_extender_usage_polls_total{outcome="heard"}' in told
