"""The extender's read-only port: TLS, tokens and rights; the verbs stay on their own port."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.scheduler_ext.apiserver import ApiServer, api_server
from tests.scheduler_ext.processes import Process
from tests.scheduler_ext.worlds import asking, node, percent
from tests.support.kubeconfig import kubeconfig
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.timekeeper.worlds import token
from tests.worlds import card, container, pod

SCRAPER, TEAM, PLANNER = "scraper", "team-planner", "planner"
LASTS_MS = 4_000_000_000_000


@dataclass(frozen=True)
class Port:
    """The port of a running extender, and its API server."""

    api: ApiServer
    extender: Process
    number: int
    tls: Tls

    def ask(
        self, path: str, user: str = "", body: object = None, audience: str = "bursar"
    ) -> tuple[int, Any]:
        """Status and decoded body (text if it is no JSON) for this user's token; "" sends none."""
        headers = {"Authorization": f"Bearer {token(user, LASTS_MS, audience)}"} if user else {}
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.number, timeout=LONGEST_S, context=self.tls.client()
        )
        try:
            method = "GET" if body is None else "POST"
            client.request(method, path, None if body is None else json.dumps(body), headers)
            answer = client.getresponse()
            text = answer.read().decode()
            is_json = "json" in (answer.getheader("Content-Type") or "")
            return answer.status, json.loads(text) if is_json else text
        finally:
            client.close()


@contextmanager
def serving(folder: Path, *flags: str, with_certificate: bool = True) -> Iterator[Port]:
    """An extender with a node, a waiting pod and a read-only port."""
    tls, number = Tls(folder / "made"), free_port()
    files = tls.folder if with_certificate else folder / "absent"
    with api_server() as api:
        api.put("nodes", node("a"))
        api.put("pods", pod(container("main", {"bursar.dev/gpu-percent": "50"})))
        api.users = {token(user, LASTS_MS): user for user in (SCRAPER, TEAM, PLANNER)}
        api.rights = {
            (SCRAPER, "get", "/metrics", ""),
            (PLANNER, "create", "simulations", ""),
            (TEAM, "create", "simulations", "team-a"),
        }
        process = Process(
            folder,
            f"--kubeconfig={kubeconfig(folder, api.url)}",
            f"--read-listen=127.0.0.1:{number}",
            f"--read-tls-cert={files / 'tls.crt'}",
            f"--read-tls-key={files / 'tls.key'}",
            *flags,
        )
        process.start_ready()
        try:
            yield Port(api, process, number, Tls(folder / "made", tls.ca))
            assert "Traceback" not in process.said()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    with serving(tmp_path_factory.mktemp("port")) as found:
        yield found


def test_metrics_are_served_to_those_who_may_read_them(port: Port) -> None:
    status, metrics = port.ask("/metrics", SCRAPER)

    assert status == 200
    assert "bursar_extender_nodes 1.0" in metrics


@pytest.mark.parametrize(
    ("path", "user", "status", "said"),
    [
        ("/metrics", "", 401, "a bearer token is required"),
        ("/metrics", "stranger", 401, "the API server rejected the token"),
        ("/metrics", PLANNER, 403, "planner may not get the nonResourceURL /metrics"),
        ("/filter", PLANNER, 404, "there is no route /filter"),
        ("/bind", PLANNER, 404, "there is no route /bind"),
    ],
)
def test_others_get_a_problem_that_names_the_right(
    port: Port, path: str, user: str, status: int, said: str
) -> None:
    answer, problem = port.ask(path, user, {} if path in ("/filter", "/bind") else None)

    assert answer == status
    assert said in problem["detail"]


def asked(count: int, share: int = 50) -> dict[str, Any]:
    """The body of a simulation of pods that request this share of a card."""
    pods = [percent(share, f"p{at}") for at in range(count)]
    return {"version": 1, "pods": pods}


def test_a_simulation_says_where_pods_would_be_placed_and_binds_none(port: Port) -> None:
    status, answer = port.ask("/v1/simulate", PLANNER, asked(3))

    assert status == 200
    assert [pod["outcome"] for pod in answer["pods"]] == ["fits", "fits", "waits"]
    assert ([pod["node"] for pod in answer["pods"]], answer["partial"]) == (["a", "a", ""], False)
    (card,) = answer["pods"][0]["cards"]
    assert (card["uuid"], card["model"], card["cardMemoryMib"]) == ("a-GPU-0", "A100", 16000)
    assert (card["shareMilli"], card["memoryMib"]) == (500, 8000)
    (reason,) = answer["pods"][2]["reasons"]
    assert (reason["kind"], reason["nodes"]) == ("full", 1)
    assert port.api.made("bind") == []
    assert port.extender.metric('bursar_extender_pods_waiting{standing="UNKNOWN"}') == 0
    assert port.extender.metric("bursar_extender_free_gpus") == 1


@pytest.mark.parametrize(
    ("user", "body", "status", "field", "said"),
    [
        (TEAM, {}, 403, "", "team-planner may not create simulations.bursar.dev in all namespaces"),
        (PLANNER, [], 400, "", "the body must be an object"),
        (PLANNER, {"version": 1, "pods": []}, 400, "pods", "a list of 1 to 50 pods"),
        (PLANNER, {"version": 1, "pods": [7]}, 400, "pods[0]", "it cannot be read as a Pod"),
        (PLANNER, {"version": 1, "pods": [{"metadata": {}}]}, 400, "pods[0]", "it cannot be read as a Pod"),
        (PLANNER, {"version": 1, "pods": [pod()]}, 400, "pods[0]", "it requests no GPU"),
        (
            PLANNER,
            {"version": 1, "pods": [percent(5) | {"spec": {"containers": 7}}]},
            400,
            "pods[0]",
            "",
        ),
        (PLANNER, asked(1) | {"protected": [7]}, 400, "protected", "it must be a list of UIDs"),
    ],
)
def test_a_bad_simulation_is_refused_with_its_field(
    port: Port, user: str, body: object, status: int, field: str, said: str
) -> None:
    got, problem = port.ask("/v1/simulate", user, body)

    assert (got, problem.get("field", "")) == (status, field)
    assert said in problem["detail"]


def test_a_simulation_that_would_take_long_is_partial_in_the_extenders_own_process(tmp_path: Path) -> None:
    """Pods with a search that takes long: hundreds of searches, on nodes that are all different."""
    with serving(tmp_path) as port:
        for at in range(300):
            port.api.put("nodes", node(f"n{at}", *(card(index, memory_mib=16000 + at) for index in range(8))))
        eventually(lambda: port.extender.metric("bursar_extender_nodes") == 301, "the nodes to be known")
        pods = [
            asking(*(container(f"c{c}", gpu_percent=str(31 + at % 7 + c)) for c in range(12)), name=f"p{at}")
            for at in range(50)
        ]
        processes = len(port.extender.descendants())

        status, answer = port.ask("/v1/simulate", PLANNER, {"version": 1, "pods": pods})

        assert (status, answer["partial"]) == (200, True)
        assert "unknown" in {pod["outcome"] for pod in answer["pods"]}
        (ms,) = re.findall(r"event=simulated pods=50 ms=(\d+)", port.extender.said())
        assert int(ms) > 0
        assert len(port.extender.descendants()) == processes
        assert port.ask("/v1/simulate", PLANNER, asked(1))[0] == 200


def test_a_token_for_another_audience_costs_no_review(port: Port) -> None:
    before = len(port.api.made("review"))

    status, problem = port.ask("/metrics", SCRAPER, audience="somebody")

    assert (status, len(port.api.made("review"))) == (401, before)
    assert 'not for the audience "bursar"' in problem["detail"]


def test_probes_need_no_token(port: Port) -> None:
    assert [port.ask(path) for path in ("/livez", "/readyz")] == [(200, "ok\n")] * 2


def test_without_a_certificate_the_verbs_are_served_and_the_port_opens_once_there_is_one(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, with_certificate=False) as port:
        with pytest.raises(OSError):
            port.ask("/livez")
        assert port.extender.get("/readyz")[0] == 200

        (tmp_path / "made").rename(tmp_path / "absent")

        def opened() -> bool:
            try:
                return bool(port.ask("/livez")[0] == 200)
            except OSError:
                return False

        eventually(opened, "the port to open")
