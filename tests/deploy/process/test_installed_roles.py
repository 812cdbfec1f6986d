"""Each role does its work in the shape in which it is installed. The agent's test is beside its others."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local.identity import new_authority
from tests.scheduler_ext.apiserver import api_server
from tests.scheduler_ext.processes import Process as Extender
from tests.scheduler_ext.worlds import node as extenders_node
from tests.scheduler_ext.worlds import percent
from tests.sidecar.worlds import Timekeeper, beating, variables
from tests.support.kubeconfig import kubeconfig
from tests.support.shape import installed, shape_of
from tests.support.simulated_timekeeper import SimulatedTimekeeper, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import prepared
from tests.timekeeper.worlds import ADMIN, HOUR, SECOND, gpu_pod, lease, node, pod_status, token, user_status
from tests.webhook.floods import floods
from tests.webhook.servers import Webhook
from tests.webhook.worlds import admitted, half
from timekeeper.edge.clock import now_ms

pytestmark = pytest.mark.make_all("it mounts, as root")


def test_the_webhook_reviews(tmp_path: Path, tls: Tls) -> None:
    with (
        SimulatedTimekeeper(tls) as timekeeper,
        installed(shape_of("webhook"), tmp_path, tls.folder) as here,
    ):
        timekeeper.document = standings()
        with Webhook(tmp_path, tls, timekeeper.url, prefix=here.prefix) as webhook:
            assert webhook.review("/mutate", admitted(half()))["allowed"] is True
            for pid in (webhook.process.pid, *webhook.workers()):
                here.check(pid)


def test_sixteen_large_reviews_at_once_end_no_worker_of_the_webhook(tmp_path: Path, tls: Tls) -> None:
    with (
        SimulatedTimekeeper(tls, standings()) as timekeeper,
        installed(shape_of("webhook"), tmp_path, tls.folder) as here,
        Webhook(tmp_path, tls, timekeeper.url, prefix=here.prefix) as webhook,
    ):
        eventually(lambda: len(webhook.workers()) == 2, "both workers")
        workers = webhook.workers()

        def post(path: str, body: bytes) -> int:
            try:
                return webhook.ask("POST", path, body)[0]
            except OSError:
                return 0  # too much of it was unanswered

        answered = set[int]()
        for path in ("/mutate", "/simulate"):
            for body in floods(path).values():
                with ThreadPoolExecutor(16) as pool:
                    answered |= {*pool.map(post, [path] * 16, [body] * 16)}

        assert webhook.review("/mutate", admitted(half()))["allowed"] is True
        assert 200 in answered
        assert (here.oom_kills, webhook.workers()) == (0, workers)


def test_the_timekeeper_takes_a_heartbeat_and_reports_it(tmp_path: Path) -> None:
    begin = now_ms() - 60 * SECOND
    api, pod = FakeApiServer(), gpu_pod("p", bound_ms=begin, started_ms=begin)
    api.tokens |= {ADMIN: user_status("admin"), token("p"): pod_status(pod)}
    api.allowed.add(("admin", "get", "usage", ""))
    for kind, each in (("nodes", node("n1")), ("leases", lease(now_ms())), ("pods", pod)):
        api.put(kind, each)
    body = {"version": 1, "boot": "b", "sequence": 1, "beats": [{"age_ms": 0, "devices": []}]}
    with (
        serving(api) as url,
        installed(shape_of("timekeeper"), tmp_path) as here,
        prepared(tmp_path, kubeconfig(tmp_path, url)) as process,
    ):
        process.prefix, process.url = here.prefix, f"sqlite:///{here.folder}/ledger/bursar.db"
        process.start_ready()
        assert process.running is not None
        process.wait(
            "the session", lambda: process.call("POST", "/v1/heartbeats", token("p"), body)[0] == 200
        )
        status, report = process.call("GET", f"/v1/usage?from={begin}&to={begin + HOUR}", ADMIN)
        here.check(process.running.pid)
        process.end()

    assert status == 200
    assert report["total"]["amount"] != 0


def test_the_extender_filters_and_binds(tmp_path: Path) -> None:
    with api_server() as api, installed(shape_of("extender"), tmp_path) as here:
        api.put("nodes", extenders_node("a"))
        pod = api.put("pods", percent(50))
        extender = Extender(tmp_path, f"--kubeconfig={kubeconfig(tmp_path, api.url)}", prefix=here.prefix)
        extender.start_ready()
        eventually(lambda: "event=leads" in extender.said())
        names = {"PodName": pod["metadata"]["name"], "PodNamespace": pod["metadata"]["namespace"]}
        order = {**names, "PodUID": pod["metadata"]["uid"], "Node": "a"}

        _, filtered = extender.call("POST", "/filter", {"Pod": pod, "NodeNames": ["a"]})
        _, bound = extender.call("POST", "/bind", order)
        for pid in extender.pids():
            here.check(pid)
        extender.kill()

    assert json.loads(filtered)["NodeNames"] == ["a"]
    assert json.loads(bound)["Error"] == ""


def test_the_sidecar_beats(tmp_path: Path) -> None:
    authority = new_authority("bursar")
    timekeeper = Timekeeper(tmp_path, authority)
    timekeeper.start()
    with installed(shape_of("sidecar"), tmp_path) as here:
        spool = {"BURSAR_SPOOL": f"{here.folder}/bursar-spool"}
        with beating(
            tmp_path, variables(tmp_path, timekeeper.url, authority, **spool), here.prefix
        ) as sidecar:
            timekeeper.wait(lambda: timekeeper.arrivals)
            here.check(sidecar.process.pid)
    timekeeper.stop()
    assert "spool" not in sidecar.log()
