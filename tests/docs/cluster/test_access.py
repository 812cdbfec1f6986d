"""docs/access.md, typed on a real API server by a plain user who has the documented rights and no others."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.stack import Stack
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run
from tests.support.worker_control_plane import Lender
from timekeeper.api.ledger.login_sessions import LoginSessions
from timekeeper.runtime.auth.gate import gate_of
from timekeeper.runtime.connect import connect
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "access.md").read_text()
ADMINISTRATOR, READER, LEADS = console(PAGE)
(EXPLAIN,) = console((ROOT / "docs" / "explain.md").read_text())
(LOGIN,) = console((ROOT / "docs" / "login.md").read_text())
INSTALL = (ROOT / "docs" / "install.md").read_text()
# The local cluster has no kubelet, so no connection can be forwarded to a pod: the rights are checked.
RIGHTS = """\
kubectl auth can-i get pods/bursar-timekeeper-0 -n bursar-system
kubectl auth can-i create pods/bursar-timekeeper-0 --subresource=portforward -n bursar-system
"""


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    with lender.stack(new_ledger=True) as running:
        for name in ("team-a", "team-b"):
            running.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        yield running


def kubeconfig_of(cp: ControlPlane, group: str, folder: Path) -> Path:
    """The kubeconfig of the user alice, who is in one group: the API server judges her rights alone."""
    content = yaml.safe_load(cp.admin_kubeconfig.read_text())
    content["users"][0]["user"] |= {"as": "alice", "as-groups": [group, "system:authenticated"]}
    path = folder / f"{group}.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path


def forwarding(stack: Stack) -> str:
    """What the reader types, with the timekeeper's own port instead of the forwarded one."""
    port = stack.timekeeper_url.rpartition(":")[2]
    (line,) = [each for each in READER.splitlines() if "port-forward" in each]
    return READER.replace(line, RIGHTS.strip()).replace("8444", port)


def test_a_plain_user_with_the_documented_rights_reads_the_budget_of_the_namespace(
    stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    run(stack.cp, ADMINISTRATOR, tmp_path)
    stack.wait("the agents' CA", lambda: stack.exists("/api/v1/namespaces/bursar-node/configmaps/bursar-ca"))

    whole = f"{forwarding(stack)}echo; echo ---\n{EXPLAIN}"
    said, _, explained = run(
        stack.cp, whole, tmp_path, kubeconfig_of(stack.cp, "team-a", tmp_path)
    ).partition("\n---\n")

    allowed, balance, table = said.partition("{")[0], *rest_of(said)
    assert allowed.split() == ["yes", "yes"]
    assert (balance["namespace"], balance["standing"]) == ("team-a", "UNLIMITED")
    assert table.startswith("from,to,namespace,")
    assert '"subject":"Pod/train-x7k2p"' in explained
    assert '"decisions":[]' in explained


def rest_of(said: str) -> tuple[dict[str, Any], str]:
    """The balance and the table that follows it."""
    start = said.index("{")
    value, end = json.JSONDecoder().raw_decode(said[start:])
    return value, said[start + end :].strip()


def test_a_reader_may_simulate_in_its_own_namespace_and_nowhere_else(stack: Stack, tmp_path: Path) -> None:
    def may(namespace: str) -> bool:
        asked = {"group": "bursar.dev", "resource": "simulations", "verb": "create", "namespace": namespace}
        spec = {"user": "system:serviceaccount:team-a:bursar-reader", "resourceAttributes": asked}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(stack.cp.api.call("POST", path, {"spec": spec})["status"]["allowed"])

    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    run(stack.cp, ADMINISTRATOR, tmp_path)
    assert (may("team-a"), may("team-b")) == (True, False)


def test_a_person_of_a_group_has_its_rights_as_with_kubectl(stack: Stack, tmp_path: Path) -> None:
    """docs/login.md, and the RBAC of a real API server, which the gate asks about a session."""
    run(stack.cp, LOGIN, tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/logins.db")
    upgrade(store)
    sessions = LoginSessions(store, lambda: time.time_ns() // 1_000_000)
    gate = gate_of(connect(stack.cp.admin_kubeconfig), logins=sessions.caller)
    until_ms = time.time_ns() // 1_000_000 + 60_000

    def may(*groups: str, namespace: str = "team-a") -> bool:
        session = sessions.begin("oidc:ada", groups, until_ms)
        try:
            gate.allow(f"Bearer {session}", "get", "budgets", namespace)
        except Problem as problem:
            if problem.status != 403:
                raise
            return False
        return True

    with closing(store):
        assert may("oidc:research")
        assert not may("research")
        assert not may("oidc:research", namespace="team-b")
        assert not may()


def test_the_rights_lead_to_nothing_else(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    run(stack.cp, ADMINISTRATOR, tmp_path)
    alice = kubeconfig_of(stack.cp, "team-a", tmp_path)
    token = run(
        stack.cp, "kubectl create token bursar-reader -n team-a --audience bursar", tmp_path, alice
    ).strip()
    mine = {"Authorization": f"Bearer {token}"}

    assert status(stack, "/v1/budgets/team-a", mine, tmp_path) == "200"
    assert status(stack, "/v1/budgets/team-b", mine, tmp_path) == "403"
    assert status(stack, "/v1/budgets", mine, tmp_path) == "403"
    for words in (
        "create serviceaccounts/default --subresource=token -n team-a",
        "create serviceaccounts/bursar-reader --subresource=token -n team-b",
        "get secrets/bursar-timekeeper-tls -n bursar-system",
        "create pods -n bursar-node",
    ):
        assert "no" in run(stack.cp, f"kubectl auth can-i {words} || true", tmp_path, alice).split(), words


def test_who_may_grant_may_read_what_the_grant_follows_from(stack: Stack, tmp_path: Path) -> None:
    commands = """
kubectl create serviceaccount giver -n team-a > /dev/null
kubectl create rolebinding giver -n team-a --clusterrole bursar-grants --serviceaccount team-a:giver > out
kubectl create token giver -n team-a --audience bursar
"""
    mine = {"Authorization": f"Bearer {run(stack.cp, commands, tmp_path).strip()}"}

    paths = ("/v1/budgets/team-a", "/v1/balances/team-a", "/v1/grants?subject=team-a", "/v1/budgets/team-b")
    assert [status(stack, path, mine, tmp_path) for path in paths] == ["200", "200", "200", "403"]


def test_the_step_that_verifies_shows_a_governed_pod(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (commands,) = [each for each in console(INSTALL) if "--dry-run=server" in each]
    whole = [line for line in commands.splitlines() if "kubectl wait" not in line]  # no kubelet, so no pods

    said = run(stack.cp, "\n".join(whole), tmp_path)

    assert said.splitlines()[-1] == "true UNLIMITED bursar-scheduler"


def status(stack: Stack, path: str, headers: dict[str, str], folder: Path) -> str:
    """The HTTP status that curl gets."""
    named = " ".join(f"-H '{key}: {value}'" for key, value in headers.items())
    url = f"{stack.timekeeper_url}{path}"
    command = f"curl -s -o /dev/null -w '%{{http_code}}' --cacert {stack.ca_file} {named} '{url}'"
    return run(stack.cp, command, folder)
