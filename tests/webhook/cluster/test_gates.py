"""Who may remove Bursar's scheduling gate from a pod, on a real API server with the manifests' policies and
rights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.deploy.reading import NAMESPACE, the
from tests.support.waiting import eventually
from tests.webhook.policies import Policies
from tests.webhook.worlds import plain
from tests.worlds import Json
from timekeeper.accounts.held.order import HeldPod
from timekeeper.runtime.api_server import Answered, Reply
from timekeeper.runtime.connect import connect
from timekeeper.settler.releaser import patch_with, removal

PODS = "/api/v1/namespaces/team-a/pods"
OURS = {"name": "bursar.dev/budget"}
THEIRS = {"name": "example.com/quota"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """The policies in force, and the timekeeper's account with its rights."""
    made = Policies(control_plane)
    call = control_plane.api.call
    call(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        the("ServiceAccount", "bursar-timekeeper"),
    )
    call("POST", f"{RBAC}/clusterroles", the("ClusterRole", "bursar-timekeeper"))
    call("POST", f"{RBAC}/clusterrolebindings", the("ClusterRoleBinding", "bursar-timekeeper"))
    return made


@pytest.fixture(scope="module")
def patch(policies: Policies) -> Callable[[str, Any], Reply]:
    """Patches with the timekeeper's token."""
    made = policies.kubectl("create", "token", "bursar-timekeeper", "-n", NAMESPACE, "--duration=1h")
    sent = patch_with(connect(policies.cp.kubeconfig(made.stdout.strip(), "timekeeper")))
    probe = make(policies, "probe")
    label = {"metadata": {"labels": {"a": "b"}}}
    eventually(lambda: "changes nothing else" in message(sent(path_of(probe), label)), "the policy")
    return sent


def make(policies: Policies, name: str, *gates: Json, claims: str = "") -> Json:
    """A held pod as the webhook makes it. ``claims``: what is recorded of its claims."""
    metadata = {
        "name": name,
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {"bursar.dev/held": "budget"} | ({"bursar.dev/claims": claims} if claims else {}),
    }
    spec = {
        "containers": [plain()],
        "initContainers": [plain("first")],
        "schedulingGates": list(gates or (THEIRS, OURS)),
    }
    pod: Json = policies.cp.api.call("POST", PODS, {"metadata": metadata, "spec": spec})
    return pod


def path_of(pod: Json) -> str:
    return f"{PODS}/{pod['metadata']['name']}"


def message(reply: Reply) -> str:
    """Status and message of an answer."""
    return f"{reply.status} {reply.message}" if isinstance(reply, Answered) else reply.message


def of(pod: Json, uid: str = "") -> HeldPod:
    """The pod as the releaser knows it."""
    metadata = pod["metadata"]
    return HeldPod(
        uid=uid or metadata["uid"],
        namespace="team-a",
        name=metadata["name"],
        priority=0,
        created_ms=0,
        rate_milli=1_000,
        needs_budget=True,
    )


def test_the_timekeeper_removes_its_gate_from_this_pod_alone_and_no_user_adds_it_again(
    policies: Policies, patch: Callable[[str, Any], Reply]
) -> None:
    pod = make(policies, "held")

    other = message(patch(path_of(pod), removal(of(pod, "another"))))
    before = policies.get(path_of(pod))
    done = patch(path_of(pod), removal(of(pod)))
    again = patch(path_of(pod), removal(of(pod)))
    after = policies.get(path_of(pod))
    back = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": [OURS, THEIRS]}})

    assert other.startswith("422 ")
    assert before["spec"] == pod["spec"]
    assert [each.status for each in (done, again) if isinstance(each, Answered)] == [200, 200]
    assert after["spec"] == pod["spec"] | {"schedulingGates": [THEIRS]}
    assert back.startswith("422")


def test_no_user_lifts_the_gate(policies: Policies, patch: Callable[[str, Any], Reply]) -> None:
    pod = make(policies, "kept")

    refused = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": [THEIRS]}})
    theirs = policies.said("PATCH", path_of(pod), {"spec": {"schedulingGates": [OURS]}})

    assert "only Bursar's timekeeper removes this gate" in refused
    assert theirs == ""


CHANGES: dict[str, Json] = {
    "a label": {"metadata": {"labels": {"app": "x"}}},
    "an annotation": {"metadata": {"annotations": {"note": "x"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    "an image": {"spec": {"containers": [{"name": "web", "image": "other"}]}},
    "an image of an init container": {"spec": {"initContainers": [{"name": "first", "image": "other"}]}},
    "an owner": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}
    },
    "the deadline": {"spec": {"activeDeadlineSeconds": 5}},
    "a toleration": {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}},
    "the nodes": {"spec": {"nodeSelector": {"a": "b"}}},
    "the required nodes": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                    }
                }
            }
        }
    },
    "another's gate": {
        "spec": {"schedulingGates": [{"$patch": "delete", "name": each["name"]} for each in (OURS, THEIRS)]}
    },
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_timekeeper_changes_nothing_else_of_a_pod(
    policies: Policies, patch: Callable[[str, Any], Reply], case: str
) -> None:
    pod = make(policies, f"pod-{list(CHANGES).index(case)}")
    release = removal(of(pod))
    change = CHANGES[case]
    both = {
        "metadata": release["metadata"] | change.get("metadata", {}),
        "spec": release["spec"] | change.get("spec", {}),
    }

    assert "changes nothing else of a pod" in message(patch(path_of(pod), both))
    assert policies.get(path_of(pod))["spec"] == pod["spec"]


def test_the_timekeeper_records_what_claims_were_judged_for_with_the_release_and_once(
    policies: Policies, patch: Callable[[str, Any], Reply]
) -> None:
    unknown = make(policies, "unknown", claims="unknown")
    known = make(policies, "known", claims="1")
    late = replace(of(unknown), late_devices=2)
    record = removal(late)
    beside = {"metadata": {"annotations": record["metadata"]["annotations"] | {"a": "b"}}}
    text = {"metadata": {"annotations": {"bursar.dev/claims": "many"}}}

    said = [message(patch(path_of(unknown), each)) for each in (beside, text)]
    assert all("changes nothing else of a pod" in each for each in said)
    by_user = policies.said("PATCH", path_of(unknown), {"metadata": record["metadata"]})
    assert "must not change on an existing pod" in by_user
    assert message(patch(path_of(unknown), record)).startswith("200 ")
    after = policies.get(path_of(unknown))
    assert after["spec"]["schedulingGates"] == [THEIRS]
    assert after["metadata"]["annotations"] == {"bursar.dev/held": "budget", "bursar.dev/claims": "2"}
    for pod in (unknown, known):  # a number stays
        again = removal(replace(of(pod), late_devices=7))
        assert message(patch(path_of(pod), again)).startswith("403 ")
