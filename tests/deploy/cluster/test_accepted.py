"""The manifests and samples against the real API server."""

import json

import pytest

from deploy.local.cluster import ControlPlane
from tests.deploy.reading import (
    AGENTS,
    MANIFESTS,
    NAMESPACE,
    SAMPLES,
    Json,
    documents,
    named,
    template,
    workloads,
)
from timekeeper.core.budgets import reader as budgets
from timekeeper.core.budgets.policy import ineffective_fields


@pytest.fixture(scope="module", autouse=True)
def _applied(control_plane: ControlPlane) -> None:
    """All manifests applied for real, as the README says it. kubectl has the API server refuse unknown
    fields, and its warnings are those of pod security, of deprecated fields, and of CEL that cannot be
    typed."""
    done = control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS))

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(documents())


def test_applying_a_second_time_changes_nothing(control_plane: ControlPlane) -> None:
    done = control_plane.kubectl("diff", "--server-side", "-f", str(MANIFESTS))

    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_api_server_stores_the_ledgers_claim_as_it_is_written(control_plane: ControlPlane) -> None:
    """But for its defaults. What else it adds, Argo CD shows as a difference for ever."""
    (ledger,) = (workload for workload in workloads() if workload["kind"] == "StatefulSet")
    (written,) = ledger["spec"]["volumeClaimTemplates"]
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{ledger['metadata']['name']}"
    (stored,) = control_plane.api.call("GET", path)["spec"]["volumeClaimTemplates"]

    assert stored.pop("status") == {"phase": "Pending"}
    assert stored == {**written, "spec": {**written["spec"], "volumeMode": "Filesystem"}}


@pytest.fixture(scope="module")
def strict(control_plane: ControlPlane, _applied: None) -> str:
    """A namespace of Pod Security's level restricted, with the accounts of ours."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "strict", "labels": labels}})
    for account in {template(each)["spec"]["serviceAccountName"] for each in workloads()}:
        body = {"metadata": {"name": account}}
        control_plane.api.call("POST", "/api/v1/namespaces/strict/serviceaccounts", body)
    return "strict"


@pytest.mark.parametrize("workload", workloads(), ids=named)
def test_pod_security_admits_the_pods_of_a_workload(
    control_plane: ControlPlane, strict: str, workload: Json
) -> None:
    """Each in its own namespace, and all but the nodes' agents in one of the level restricted. The API server
    only warns about a Deployment; its pods are what a namespace's level refuses."""
    own = workload["metadata"]["namespace"]
    for namespace in (own,) if own == AGENTS else (own, strict):
        assert refused(control_plane, pod_of(workload, namespace)) == ""


def pod_of(workload: Json, namespace: str) -> Json:
    """A pod of a workload, which only its own controller would give a critical class."""
    spec = {name: part for name, part in template(workload)["spec"].items() if name != "priorityClassName"}
    claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
    spec["volumes"] = spec.get("volumes", []) + [{"name": name, "emptyDir": {}} for name in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": spec,
    }


def refused(cp: ControlPlane, pod: Json, *flags: str) -> str:
    """Why a pod may not be created; empty where it may. It is not."""
    done = cp.kubectl("create", "--dry-run=server", *flags, "-f", "-", input=json.dumps(pod))
    return done.stderr if done.returncode else ""


def test_our_namespace_takes_no_pod_that_reaches_for_its_node(control_plane: ControlPlane) -> None:
    (agents,) = (each for each in workloads() if each["kind"] == "DaemonSet")
    stray = pod_of(agents, NAMESPACE)
    stray["spec"]["serviceAccountName"] = "default"

    assert 'violates PodSecurity "restricted' in refused(control_plane, stray)


def test_who_administers_a_namespace_of_users_can_put_nothing_among_the_agents(
    control_plane: ControlPlane,
) -> None:
    control_plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    bound = ("create", "rolebinding", "admin", "-n", "team-a", "--clusterrole=admin", "--user=tenant")
    assert control_plane.kubectl(*bound).returncode == 0
    (agents,) = (each for each in workloads() if each["kind"] == "DaemonSet")
    harmless: Json = {"containers": [{"name": "main", "image": "example"}]}

    for spec in (harmless, pod_of(agents, AGENTS)["spec"]):
        metadata = {"name": "p", "namespace": AGENTS}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        assert "Forbidden" in refused(control_plane, pod, "--as=tenant")
    for what in ("serviceaccounts/token", "secrets", "configmaps", "daemonsets.apps"):
        asked = ("auth", "can-i", "create", what, "-n", AGENTS, "--as=tenant")
        assert control_plane.kubectl(*asked).stdout.strip() == "no"
    own = ("auth", "can-i", "create", "pods", "-n", "team-a", "--as=tenant")
    assert control_plane.kubectl(*own).stdout.strip() == "yes"


def test_pod_security_would_refuse_a_pod_that_is_not_hardened(
    control_plane: ControlPlane, strict: str
) -> None:
    containers = [{"name": "main", "image": "example"}]
    metadata = {"name": "p", "namespace": strict}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}

    done = control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))

    assert 'violates PodSecurity "restricted' in done.stderr


def test_the_sample_budgets_are_accepted_and_every_entry_is_good_and_built(
    control_plane: ControlPlane,
) -> None:
    (sample,) = [document for document in documents(SAMPLES) if document["kind"] == "ConfigMap"]
    done = control_plane.kubectl("apply", "--server-side", "-f", str(SAMPLES / "budgets.yaml"))
    reading = budgets.read({sample["metadata"]["name"]: sample["data"]})

    assert done.returncode == 0, done.stderr
    assert not reading.errors
    assert reading.settings is None  # a sample that wrote them would end `mode: observe`
    assert {name: ineffective_fields(budget) for name, budget in reading.budgets.items()} == {
        "team-a": (),
        "team-b": (),
        "team-c": (),
    }
