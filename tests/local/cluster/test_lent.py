"""The control plane that a worker's tests share is like a new one for each of its files."""

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.support.control_plane import create_namespace, refused
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
NOBODY: Json = {
    "metadata": {"name": "nobody"},
    "webhooks": [
        {
            "name": "nobody.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [RULE],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
    ],
}


def named(cp: ControlPlane, path: str) -> set[str]:
    """The names of the objects of a kind."""
    return {each["metadata"]["name"] for each in cp.api.call("GET", path)["items"]}


def refusal(cp: ControlPlane) -> str:
    """What the creation of a ConfigMap is refused with; empty where it is not."""
    return refused(cp, "POST", f"{CONFIG_MAPS}?dryRun=All", {"metadata": {"name": "x"}})


def policy(cp: ControlPlane) -> None:
    """A policy that asks its parameter whether a ConfigMap may be created: it may not."""
    spec = {
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [RULE]},
        "validations": [{"expression": "params.data.allowed == 'yes'"}],
    }
    parameter = {"name": "parameter", "namespace": "default", "parameterNotFoundAction": "Allow"}
    binding = {"policyName": "asks", "paramRef": parameter, "validationActions": ["Deny"]}
    cp.api.call("POST", CONFIG_MAPS, {"metadata": {"name": "parameter"}, "data": {"allowed": "no"}})
    cp.api.call(
        "POST", f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": "asks"}, "spec": spec}
    )
    of_policy = f"{ADMISSION}/validatingadmissionpolicybindings"
    cp.api.call("POST", of_policy, {"metadata": {"name": "asks"}, "spec": binding})
    eventually(lambda: "asks" in refusal(cp), "the policy with its parameter")


def test_what_a_file_leaves_behind_is_gone_for_the_next_one(lender: Lender) -> None:
    with lender.lent() as cp:
        url, namespaces = cp.url, named(cp, "/api/v1/namespaces")
        labels = cp.api.call("GET", "/api/v1/namespaces/default")["metadata"]["labels"]
        pods = create_namespace(cp, "team-a")
        cp.api.call("POST", "/api/v1/nodes", kwok_node("left", cards=1))
        held = {"metadata": {"name": "held", "finalizers": ["example.com/held"]}}
        cp.api.call("POST", pods, held | {"spec": {"containers": [{"name": "a", "image": "x"}]}})
        patch = {"metadata": {"labels": {"changed": "true"}}}
        cp.api.call("PATCH", "/api/v1/namespaces/default", patch, "application/merge-patch+json")
        cp.api.call("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
        cp.start_scheduler()
        policy(cp)
        cp.api.call("POST", f"{ADMISSION}/mutatingwebhookconfigurations", NOBODY)
        eventually(lambda: "nobody.example.com" in refusal(cp), "the webhook to be asked")

    with lender.lent() as cp:
        assert cp.url == url
        assert refusal(cp) == ""
        assert named(cp, "/api/v1/namespaces") == namespaces
        assert cp.api.call("GET", "/api/v1/namespaces/default")["metadata"]["labels"] == labels
        assert named(cp, "/api/v1/nodes") == named(cp, "/api/v1/pods") == set()
        assert cp.api.answers("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
        assert "kube-scheduler" not in cp.processes
        policy(cp)


@pytest.mark.soak
def test_one_that_lost_a_part_is_followed_by_a_new_one(lender: Lender) -> None:
    with lender.lent() as cp:
        url = cp.url
        cp.stop_process("kwok")

    with lender.lent() as cp:
        assert cp.url != url
        assert "kwok" in cp.processes
