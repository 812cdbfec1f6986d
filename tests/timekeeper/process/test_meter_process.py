"""``bursar-timekeeper meter --kubeconfig FILE``: a ledger on the loopback that only reads."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from tests.support.waiting import eventually
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.worlds import T0, gpu_pod
from timekeeper.core.budgets.policy import Budget
from timekeeper.core.budgets.reader import read_entry

EMPTY = {"version": 1, "budgets": [], "groups": [], "broken": []}
COMMAND = "bursar-timekeeper meter --kubeconfig ~/.kube/config"
PAGES = [Path(__file__).parents[3] / "docs" / page for page in ("install.md", "meter.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_command_that_is_tested_here(page: Path) -> None:
    assert COMMAND in [line.strip() for line in page.read_text().splitlines()]


def test_the_budget_on_trial_is_an_entry_with_a_price() -> None:
    ((key, text),) = re.findall(r"--from-literal='([^=]+)=(.+)'", PAGES[1].read_text())

    found = read_entry(key, text)
    assert isinstance(found, Budget)
    assert (key, found.amount, found.price) == ("team-a", 120 * 3_600_000_000, "2.5")


def asked(port: int, path: str, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


@contextmanager
def busy_cards() -> Iterator[str]:
    """The URL of a Prometheus by which the pod p uses one card of its two."""
    labels = {"UUID": "GPU-0", "Hostname": "n1", "namespace": "team-a", "pod": "p"}

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            series = {"metric": labels, "value": [time.time(), "50"]}
            data = {"resultType": "vector", "result": [series]}
            self.answer(200, {"status": "success", "data": data})

    with Served(Handler) as served:
        yield served.url


def test_meter_serves_one_person_on_the_loopback_and_writes_nothing(tmp_path: Path) -> None:
    api = FakeApiServer()
    pod = gpu_pod("p", started_ms=T0)
    pod["metadata"] |= {"annotations": {}}
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    api.put("pods", pod)
    with (
        serving(api) as url,
        busy_cards() as prometheus,
        Launcher() as launcher,
        (tmp_path / "log").open("wb") as log,
    ):
        port = free_port()
        typed = COMMAND.replace("~/.kube/config", str(kubeconfig(tmp_path, url))).split()[1:]
        command = [sys.executable, "-m", "timekeeper", *typed, f"--listen=127.0.0.1:{port}"]
        command.append(f"--prometheus-url={prometheus}")
        variables = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
        launcher.start(command, log, env=variables, folder=tmp_path)
        assert eventually(lambda: asked(port, "/readyz")[0] == 200), (tmp_path / "log").read_text()
        file = tmp_path / "bursar-meter.db.token"
        token = file.read_text()
        path = f"/v1/sessions?{urlencode({'namespace': 'team-a'})}"

        def rates() -> list[int]:
            status, body = asked(port, path, token)
            return [each["rateMilli"] for each in json.loads(body)["sessions"]] if status == 200 else []

        assert eventually(lambda: rates() == [2_000])

        def measuring() -> dict[str, Any]:
            status, body = asked(port, "/v1/idle", token)
            return (json.loads(body)["prometheus"] or {}) if status == 200 else {}

        assert eventually(lambda: measuring().get("measured") == 1, measuring)
        assert asked(port, "/v1/would", token)[0] == 200
        budget = json.loads(asked(port, "/v1/budgets/team-a", token)[1])
        published = json.loads(asked(port, "/v1/standings", token)[1])["default"]["mode"]
        assert (budget["mode"], budget["modeFrom"], published) == ("meter", "ledger", "meter")
        assert str(file).encode() in asked(port, "/login")[1]
        assert asked(port, path)[0] == 401
        assert asked(port, path, f"{token[:-1]}{'A' if token[-1] != 'A' else 'B'}")[0] == 401
        assert file.stat().st_mode & 0o777 == 0o600
        said = (tmp_path / "log").read_text().splitlines()
        assert [line for line in said if "level=" not in line] == [
            f"Open http://127.0.0.1:{port}/ and log in with the token in bursar-meter.db.token",
            "For kubectl bursar, in another terminal:",
            f"export BURSAR_SERVER=http://127.0.0.1:{port}",
            f"export BURSAR_TOKEN_FILE={file}",
        ]
        named = {
            words[0]: words[1] for line in said if (words := line.removeprefix("export ").split("=", 1))[1:]
        }
        typed_there = [sys.executable, "-m", "timekeeper.cli.main", "budget", "-A", "-o", "json"]
        exported = {name: named[name] for name in ("BURSAR_SERVER", "BURSAR_TOKEN_FILE")}
        without_kubectl = variables | exported | {"PATH": str(tmp_path)}
        shown = subprocess.run(typed_there, env=without_kubectl, capture_output=True, text=True, check=False)
        empty: dict[str, object] = {
            "version": 1,
            "silentSince": None,
            "broken": [],
            "next": None,
            "items": [],
        }
        assert json.loads(shown.stdout or "null") == empty
        assert [line for line in said if "level=info" in line] == []
    assert (tmp_path / "bursar-meter.db").is_file()
    assert (api.patches, api.events, api.deletions, api.evictions, api.reviews) == ([], [], [], [], [])
