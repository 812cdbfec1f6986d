"""Whose word a node's report is, by a real API server: real tokens, the manifests' own rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from tests.deploy.reading import AGENTS, Json, the
from tests.support.clock import Clock
from tests.timekeeper.worlds import Town
from timekeeper.api.create_app import create_app
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.auth.gate import Gate

REPORT = {
    "version": 1,
    "boot": "b",
    "sequence": 1,
    "uses": [{"age_ms": 0, "pods": [], "cards": [{"uuid": "GPU-0", "utilisation": 7, "memory_mib": 1}]}],
}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The agent's account and rights as the manifests give them, and an account without any."""
    api = control_plane.api
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": AGENTS}})
    api.call("POST", f"/api/v1/namespaces/{AGENTS}/serviceaccounts", the("ServiceAccount", "bursar-node"))
    account = {"metadata": {"name": "nobody"}}
    api.call("POST", f"/api/v1/namespaces/{AGENTS}/serviceaccounts", account)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.call("POST", f"{rbac}/clusterroles", the("ClusterRole", "bursar-node"))
    api.call("POST", f"{rbac}/clusterrolebindings", the("ClusterRoleBinding", "bursar-node"))
    api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    return control_plane


@pytest.fixture
def town(cluster: ControlPlane, tmp_path: Path) -> Iterator[Town]:
    """A timekeeper that asks the real API server who calls."""
    built = Town(tmp_path, Clock(now_ms()))
    gate = Gate(lambda path, body: cluster.api.call("POST", path, body), "bursar", built.clock)
    built.client = create_app(built.store, gate, built.clock, lambda: "", 5_000).test_client()
    yield built
    built.close()


def token(cluster: ControlPlane, account: str, pod: str = "", node: str = "n1") -> str:
    """A token of the account; of a pod on a node, as a kubelet asks for it, or of none."""
    spec: Json = {"audiences": ["bursar"], "expirationSeconds": 600}
    if pod:
        containers = [{"name": "agent", "image": "example/agent:1"}]
        body = {
            "metadata": {"name": pod},
            "spec": {"serviceAccountName": account, "nodeName": node, "containers": containers},
        }
        made = cluster.api.call("POST", f"/api/v1/namespaces/{AGENTS}/pods", body)
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": made["metadata"]["uid"]}
        spec["boundObjectRef"] = reference
    path = f"/api/v1/namespaces/{AGENTS}/serviceaccounts/{account}/token"
    answer = cluster.api.call("POST", path, {"spec": spec})
    return str(answer["status"]["token"])


def test_the_agents_pod_reports_for_the_node_that_its_token_names(cluster: ControlPlane, town: Town) -> None:
    answer = town.post("/v1/nodeusage", REPORT, token(cluster, "bursar-node", "agent-n1"))

    assert answer.status_code == 200, answer.get_data(as_text=True)
    with town.store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT name FROM node_uses").fetchall()
    assert [tuple(row) for row in rows] == [("n1",)]


def test_the_agents_account_without_a_pod_reports_for_no_node(cluster: ControlPlane, town: Town) -> None:
    answer = town.post("/v1/nodeusage", REPORT, token(cluster, "bursar-node"))

    assert answer.status_code == 403
    assert "does not name a node" in answer.get_json()["detail"]


def test_a_pod_on_the_node_of_another_account_reports_for_no_node(cluster: ControlPlane, town: Town) -> None:
    answer = town.post("/v1/nodeusage", REPORT, token(cluster, "nobody", "other-n1"))

    assert answer.status_code == 403
    assert f"system:serviceaccount:{AGENTS}:nobody may not create nodeusage" in answer.get_json()["detail"]


def test_the_agent_may_report_and_not_read(cluster: ControlPlane, town: Town) -> None:
    bearer = token(cluster, "bursar-node", "reader-n1")

    assert town.get("/v1/nodeusage", bearer).status_code == 403
    assert town.get("/v1/overuse", bearer).status_code == 403
