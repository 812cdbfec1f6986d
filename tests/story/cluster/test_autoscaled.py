"""A HorizontalPodAutoscaler with metrics, of a namespace with `onExhausted: hold`: the real controller and a
stand-in metrics API that reports the CPU of each running pod."""

import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options, webhook_service
from deploy.local.identity import new_authority
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.story.cluster.test_held_pods import GATE, gated, running, template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import at_once
from tests.worlds import Json

pytestmark = pytest.mark.soak

GROUP = "metrics.k8s.io"
TARGET_MILLICORES = 10


@dataclass
class MetricsApi:
    """The resource metrics API with one answer: each of the pods that run uses this much CPU."""

    names: list[str] = field(default_factory=list)
    millicores: int = 0
    reads: int = 0  # of the pods' metrics

    def answer(self, path: str) -> Json:
        version = {"groupVersion": f"{GROUP}/v1beta1", "version": "v1beta1"}
        if path == f"/apis/{GROUP}":
            return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version]}
        if path == f"/apis/{GROUP}/v1beta1":
            pods = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
            return {"kind": "APIResourceList", "apiVersion": "v1", **version, "resources": [pods]}
        self.reads += 1
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        use = {"cpu": f"{self.millicores}m", "memory": "1Mi"}
        items = [
            {
                "metadata": {"name": name, "namespace": "scaled", "labels": {"app": "a"}},
                "timestamp": now,
                "window": "1s",
                "containers": [{"name": "main", "usage": use}],
            }
            for name in self.names
        ]
        return {"kind": "PodMetricsList", "apiVersion": f"{GROUP}/v1beta1", "items": items}


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[tuple[MetricsApi, int]]:
    """The API on a port of this machine, over TLS."""
    api = MetricsApi()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(api.answer(self.path.partition("?")[0])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            """Keeps the output of the tests clean."""

    certificate, key = new_authority("metrics").leaf(["metrics"])
    (tmp_path / "metrics.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "metrics.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield api, server.server_address[1]
        server.shutdown()


def test_held_pods_count_as_pods_without_use(metrics: tuple[MetricsApi, int]) -> None:
    """One pod runs and one is held. At twice the target the mean of both is the target, and the Deployment
    stays at two; at six times it grows to six, at which the mean is the target again; with the budget back,
    all run and it grows to its maximum."""
    api, port = metrics
    options = Options(controller_flags=("--horizontal-pod-autoscaler-sync-period=1s",))
    with ControlPlane(options) as cp, Stack(cp, Tuning(heartbeat_interval="200ms")) as stack:
        serve(cp, port)
        path = create_namespace(cp, "scaled")
        cp.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=4, memory_mib=16_000, model="T4"))
        set_budgets(stack, scaled="gpuHours: 0\nonExhausted: hold\n")

        def is_held() -> bool:
            made = cp.api.call("POST", f"{path}?dryRun=All", template() | {"metadata": {"name": "dry"}})
            return bool(made["spec"].get("schedulingGates") == GATE)

        stack.wait("both workers to hold", lambda: all(at_once(is_held)))
        deploy(cp)
        stack.wait("two held", lambda: count(cp, path) == (0, 2))
        # a release reserves a sixtieth of a GPU-hour: this pays for one pod
        set_budgets(stack, scaled="gpuHours: 0.017\nonExhausted: hold\n")
        stack.wait("one running, one held", lambda: count(cp, path) == (1, 1))

        set_use(api, cp, path, 2 * TARGET_MILLICORES)
        scale(cp)
        stack.wait("the autoscaler to be active", lambda: status(cp) == ("True", 2))
        before = api.reads
        stack.wait("five more of its reads", lambda: api.reads >= before + 5)
        assert (status(cp), count(cp, path)) == (("True", 2), (1, 1))

        set_use(api, cp, path, 6 * TARGET_MILLICORES)
        stack.wait("six pods", lambda: count(cp, path) == (1, 5))
        before = api.reads
        stack.wait("five more of its reads", lambda: api.reads >= before + 5)
        assert (status(cp), count(cp, path)) == (("True", 6), (1, 5))

        set_budgets(stack, scaled="gpuHours: 9\nonExhausted: hold\n")

        def at_most() -> bool:
            set_use(api, cp, path, 6 * TARGET_MILLICORES)
            return count(cp, path) == (8, 0)

        stack.wait("all eight to run", at_most)


def serve(cp: ControlPlane, port: int) -> None:
    """Makes the API server ask the stand-in for metrics."""
    cp.api.call("POST", "/api/v1/namespaces/kube-system/services", webhook_service("kube-system", "metrics"))
    spec = {
        "group": GROUP,
        "version": "v1beta1",
        "service": {"name": "metrics", "namespace": "kube-system", "port": port},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    cp.api.call(
        "POST",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        {"metadata": {"name": f"v1beta1.{GROUP}"}, "spec": spec},
    )


def deploy(cp: ControlPlane) -> None:
    """A Deployment of two pods of a tenth of a card."""
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template()}
    body = {"metadata": {"name": "d"}, "spec": spec}
    cp.api.call("POST", "/apis/apps/v1/namespaces/scaled/deployments", body)


def scale(cp: ControlPlane) -> None:
    """Its autoscaler, by the main container's CPU."""
    target = {"type": "AverageValue", "averageValue": f"{TARGET_MILLICORES}m"}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "minReplicas": 1,
        "maxReplicas": 8,
        "metrics": [metric],
    }
    body = {"metadata": {"name": "d"}, "spec": spec}
    cp.api.call("POST", "/apis/autoscaling/v2/namespaces/scaled/horizontalpodautoscalers", body)


def set_use(api: MetricsApi, cp: ControlPlane, path: str, millicores: int) -> None:
    """Each pod that runs uses this much from now on."""
    found: list[Json] = cp.api.call("GET", path)["items"]
    api.millicores, api.names = millicores, [each["metadata"]["name"] for each in running(found)]


def count(cp: ControlPlane, path: str) -> tuple[int, int]:
    """Pods that run, and pods that are held."""
    found: list[Json] = cp.api.call("GET", path)["items"]
    return len(running(found)), len(gated(found))


def status(cp: ControlPlane) -> tuple[str, int]:
    """Whether the autoscaler has figures to scale by, and the number of pods that it wants."""
    path = "/apis/autoscaling/v2/namespaces/scaled/horizontalpodautoscalers/d"
    found = cp.api.call("GET", path)["status"]
    conditions = {each["type"]: each["status"] for each in found.get("conditions") or []}
    return conditions.get("ScalingActive", ""), found.get("desiredReplicas", 0)
