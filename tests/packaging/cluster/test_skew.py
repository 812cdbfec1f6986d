"""Each part of this release with the others of the release before, and the other way round, on one database,
whose schema is this release's: pods are refused, governed, bound, metered and explained all the same."""

import sqlite3
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack, Tuning
from tests.node.cluster.test_on_api_server import TWO, Agent, World
from tests.packaging.conftest import built, environment_with
from tests.packaging.environment import Environment
from tests.packaging.former import checked_out, former_release
from tests.story.cluster.test_idle_pods import agents_pod
from tests.story.cluster.test_metering import gpu_pod, held_ms, set_budgets
from tests.story.conftest import reader, sidecars
from tests.support.control_plane import create_namespace, refused
from tests.worlds import Json

__all__ = ["reader", "sidecars"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

PARTS = ("timekeeper", "webhook", "extender", "sidecar")


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel of the release before."""
    source = checked_out(former_release(), tmp_path_factory.mktemp("former-source"))
    wheel = built(source, tmp_path_factory.mktemp("former-wheel"))
    environment = environment_with(wheel, tmp_path_factory.mktemp("former"))
    for package in ("timekeeper", "webhook", "scheduler_ext", "sidecar"):
        found = environment.ask(f"import {package}; print({package}.__file__)")
        assert found.startswith(str(environment.folder)), found
    return environment


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """Every role of this release, which has migrated the database, and a card."""
    with Stack(control_plane, Tuning(heartbeat_interval="200ms")) as running:
        control_plane.api.call("POST", "/api/v1/nodes", kwok_node("node", cards=1))
        create_namespace(control_plane, "paid")
        create_namespace(control_plane, "spent")
        set_budgets(running, paid="gpuHours: 100\n", spent="gpuHours: 0\nonExhausted: deny\n")
        yield running


def run_former(stack: Stack, parts: set[str], former: Environment) -> None:
    """These parts are of the release before from now on, the others of this one."""
    before = set(stack.pythons)
    stack.pythons = dict.fromkeys(parts, former.python)
    for role, url in (
        ("timekeeper", stack.timekeeper_url),
        ("extender", stack.extender_url),
        ("webhook", stack.webhook_url),
    ):
        if (role in parts) != (role in before):
            stack.stop(role)
            stack.start(role)
        stack.wait(f"{role}", lambda url=url: stack.is_ready(url), role)  # type: ignore[misc]


def is_refused(stack: Stack, name: str, query: str = "") -> bool:
    """Whether a pod of the namespace without a budget left is refused for it."""
    path = f"/api/v1/namespaces/spent/pods{query}"
    return "has used its GPU budget" in refused(stack.cp, "POST", path, gpu_pod(name, 50, "1s"))


def has_row(stack: Stack, query: str, uid: str) -> bool:
    """Whether the ledger's database has a row for a pod."""
    connection = sqlite3.connect(f"file:{stack.folder}/bursar.db?mode=ro", uri=True)
    try:
        return connection.execute(query, (uid,)).fetchone() is not None
    finally:
        connection.close()


CASES = {
    **{f"{part} of the release before": {part} for part in PARTS},
    **{f"{part} of this release": set(PARTS) - {part} for part in PARTS},
}


@pytest.mark.parametrize("case", CASES)
def test_parts_of_two_releases_work_together(
    stack: Stack, sidecars: Sidecars, reader: str, former: Environment, case: str
) -> None:
    run_former(stack, CASES[case], former)
    name = case.replace(" ", "-")

    def explained(namespace: str, kind: str, reason: str) -> bool:
        try:
            steps = stack.get(f"/v1/explain/{namespace}/{name}", reader)["steps"]
        except urllib.error.HTTPError:
            return False
        return (kind, reason) in [(each["kind"], each["reason"]) for each in steps]

    def posted() -> list[int]:
        rows = stack.get("/v1/usage?namespace=paid&group=pod", reader)["rows"]
        return [row["posted"] for row in rows if row["pod"] == name and not row["pending"]]

    # the webhook polls standings, and posts its decisions
    wait(stack, "the standings", lambda: all(is_refused(stack, name, "?dryRun=All") for _ in range(4)))
    assert is_refused(stack, name)
    wait(stack, "the refusal", lambda: explained("spent", "refused", "BudgetExhausted"))

    # the extender places a governed pod and posts decisions and Bindings, its sidecar beats, it is charged
    path = "/api/v1/namespaces/paid/pods"
    pod = stack.cp.api.call("POST", path, gpu_pod(name, 50, "3s"))
    uid = pod["metadata"]["uid"]
    assert pod["metadata"]["labels"]["bursar.dev/governed"] == "true"
    wait(stack, "its placement", lambda: explained("paid", "placed", "Bound"))
    wait(stack, "its Binding", lambda: has_row(stack, "SELECT 1 FROM bindings WHERE uid = ?", uid))
    wait(stack, "a beat", lambda: has_row(stack, "SELECT 1 FROM heartbeats WHERE session_uid = ?", uid))
    wait(stack, "its end", lambda: has_ended(stack.cp.api.call("GET", f"{path}/{name}")))
    held = held_ms(stack.cp.api.call("GET", f"{path}/{name}"))
    wait(stack, "its charge", lambda: posted() == [held * 500])


@pytest.mark.parametrize("part", ["agent", "timekeeper"])
def test_a_nodes_agent_reports_to_the_timekeeper_of_the_other_release(
    stack: Stack, former: Environment, tmp_path: Path, part: str
) -> None:
    run_former(stack, {part}, former)
    node = f"node-of-{part}"
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(node))
    token = tmp_path / "for-timekeeper"
    token.write_text(stack.token("bursar-node", "bursar-node", "bursar", pod=agents_pod(stack, node)))
    urls = {"timekeeper_url": stack.timekeeper_url, "ca": str(stack.ca_file)}
    files = {"token_file": str(token), "spool": str(tmp_path / "spool")}
    agent = Agent(World(stack.cp), tmp_path, node, TWO, **urls, **files)
    agent.command[:1] = stack.python("agent")
    agent.start()
    try:
        wait(stack, "its inventory", agent.is_whole)
        wait(stack, "its report", lambda: has_row(stack, "SELECT 1 FROM node_uses WHERE name = ?", node))
        assert agent.stop() == 0
    finally:
        print(agent.log.read_text())
        if agent.process:
            agent.process.kill()
            agent.process.wait()


def test_the_ledger_of_both_releases_adds_up(stack: Stack, former: Environment) -> None:
    run_former(stack, set(), former)
    database = f"sqlite:///{stack.folder}/bursar.db"

    for python in ([sys.executable], [str(former.python), "-P"]):
        command = [*python, "-m", "timekeeper", "audit", "--database", database]
        done = subprocess.run(command, env=stack.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def has_ended(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Succeeded")


def wait(stack: Stack, what: str, is_so: Callable[[], bool]) -> None:
    """As the stack's own, for a machine in use."""
    stack.wait(what, is_so)
