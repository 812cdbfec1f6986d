"""200 pages of one cluster that are opened at once, in the memory of the manifest."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.kubeconfig import kubeconfig
from tests.support.shape import installed, shape_of
from tests.support.waiting import eventually
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, prepared, send
from tests.timekeeper.worlds import ADMIN, budgets, gpu_pod, lease, node, pod_status, token, user_status
from timekeeper.edge.clock import now_ms

pytestmark = pytest.mark.make_all("it mounts, as root")

NAMESPACES, PAGES = 7_000, 200


def cluster() -> FakeApiServer:
    api, now = FakeApiServer(), now_ms()
    pod = gpu_pod("p", bound_ms=now, started_ms=now)
    api.tokens |= {ADMIN: user_status("admin"), token("p"): pod_status(pod)}
    api.allowed |= {("admin", "get", right, "") for right in ("budgets", "usage", "standings")}
    for kind, each in (("nodes", node("n1")), ("leases", lease(now)), ("pods", pod)):
        api.put(kind, each)
    texts = {f"team_{at:05}": "gpuHours: 100\nperiod: month\nwarnAt: 0.8" for at in range(NAMESPACES)}
    api.put("configmaps", budgets(**texts))
    return api


def visitor(process: Process) -> dict[str, str]:
    """The headers of somebody who has logged in."""
    cookies, form = SimpleCookie(), {"token": ADMIN, "next": "/"}

    def ask(method: str, body: str | None) -> str:
        kind = {
            "Cookie": cookies.output([], header="", sep=";"),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        with closing(process.connection()) as connection:
            connection.request(method, "/login", body, kind)
            answer = connection.getresponse()
            for each in answer.headers.get_all("Set-Cookie", []):
                cookies.load(each)
            return answer.read().decode()

    form["form_token"] = ask("GET", None).partition('name="form_token" value="')[2].partition('"')[0]
    ask("POST", urlencode(form))
    return {"Cookie": cookies.output([], header="", sep=";")}


def opened(process: Process, headers: dict[str, str], _: int) -> tuple[int, bool]:
    """Open the page of all budgets: the status, and whether a refusal says when to come again."""
    with closing(process.connection()) as connection:
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.status == 200 or "Retry-After" in answer.headers


def test_200_open_pages_cost_no_worker_and_no_heartbeat_and_the_memory_comes_back(tmp_path: Path) -> None:
    api, shape = cluster(), shape_of("timekeeper")
    with (
        serving(api) as url,
        installed(shape, tmp_path) as here,
        prepared(tmp_path, kubeconfig(tmp_path, url), "--workers=2") as process,
        ThreadPoolExecutor(PAGES) as pool,
        closing(process.connection()) as pod,
    ):
        process.prefix, process.url = here.prefix, f"sqlite:///{tmp_path}/ledger/bursar.db"
        process.start_ready()
        process.wait(
            "the budgets",
            lambda: len(process.call("GET", "/v1/standings", ADMIN)[1]["namespaces"]) == NAMESPACES,
        )
        headers, at_rest = visitor(process), here.anonymous_mib

        pages = [pool.submit(opened, process, headers, at) for at in range(PAGES)]
        beats = list[int]()
        while not all(page.done() for page in pages):
            body = {
                "version": 1,
                "boot": "b",
                "sequence": len(beats) + 1,
                "beats": [{"age_ms": 0, "devices": []}],
            }
            beats.append(send(pod, "POST", "/v1/heartbeats", token("p"), body)[0])

        answers = Counter(page.result() for page in pages)
        assert answers.keys() <= {(200, True), (503, True)}
        assert answers[200, True]
        assert len(beats) > 9
        assert set(beats) == {200}
        assert here.oom_kills == 0
        eventually(
            lambda: here.anonymous_mib < 1.5 * at_rest, lambda: f"{at_rest} -> {here.anonymous_mib} MiB"
        )
        process.end()
