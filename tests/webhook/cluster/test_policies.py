"""The policies alone in a real API server, without the webhook: what they leave to it, and their limits."""

import re
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import OF_POLICIES
from tests.support.waiting import eventually
from tests.webhook.cases import NOTHING, REQUESTS, a_pod, by_name, told
from tests.webhook.policies import Policies
from tests.webhook.worlds import plain
from tests.worlds import Json, container
from timekeeper.core.request.request import parse


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """A cluster with the policies in force."""
    return Policies(control_plane)


def test_without_the_webhook_requests_pass_that_break_its_rules(policies: Policies) -> None:
    """docs/bypass.md names the rules."""
    assert {case: refusal for case, (pod, _) in REQUESTS.items() if (refusal := policies.refusal(pod))} == {}


def test_fractions_negatives_and_requests_unlike_their_limits_the_api_server_refuses_itself(
    policies: Policies,
) -> None:
    for pod in (
        a_pod(container(gpu_percent="0.5")),
        a_pod(container(gpu_percent="-1")),
        a_pod(container(requests={"bursar.dev/gpu-percent": "50"})),
        a_pod(container(requests={"bursar.dev/gpu-percent": "50"}, gpu_percent="60")),
    ):
        refusal = policies.refusal(pod)

        assert re.match(r'422: Pod "p" is invalid: \[?spec\.containers\[0\]\.resources', refusal), pod
        (violation,) = parse(pod).violations
        assert by_name(pod, violation.path).startswith("spec.containers[main].resources")


def crowded(count: int, **limits: str) -> Json:
    """A pod of so many containers with 20 variables each."""
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(20)]
    return a_pod(*(container(f"c{number}", None, **limits) | {"env": variables} for number in range(count)))


@pytest.mark.parametrize("count", [100, 500])
def test_a_pod_of_many_containers_and_variables_stays_within_the_cost_limit(
    policies: Policies, count: int
) -> None:
    assert policies.refusal(crowded(count)) == ""
    named = min(count, 150)  # for the letters in names of resources and in host paths are bounded, too
    assert policies.refusal(crowded(named, gpu_percent="50", gpu_memory="4096")) == ""
    volumes = [{"name": f"v{number}", "hostPath": {"path": f"/srv/data/{number}"}} for number in range(named)]
    assert policies.refusal(a_pod(plain(), volumes=volumes)) == ""


def test_no_expression_is_mistyped(policies: Policies) -> None:
    """A controller checks the types of fields some time after a policy was written, and only tells."""

    def checked() -> list[Any]:
        path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        found = policies.cp.api.call("GET", path)["items"]
        return [each.get("status", {}) for each in found if each["metadata"]["name"].startswith("bursar-")]

    policies.cp.start_controllers("types", [OF_POLICIES])
    eventually(lambda: all("typeChecking" in each for each in checked()), "the types to be checked")
    policies.cp.stop_process("types")

    assert [each["typeChecking"] for each in checked()] == [{}] * len(checked()) != []


def test_excluded_namespaces_are_left_alone(policies: Policies) -> None:
    bad = a_pod(plain(), hostPID=True)
    policies.namespace("exempt", exempt="true")
    policies.namespace("half-exempt", exempt="false")

    left = ("bursar-system", "kube-system", "exempt")
    assert {each: policies.refusal(bad, each) for each in left} == dict.fromkeys(left, "")
    assert told(policies.refusal(bad, "half-exempt")) != NOTHING


def test_of_a_pod_of_kai_only_what_its_webhook_repeats_of_the_request_is_admitted(policies: Policies) -> None:
    name = "nvidia.com/container.main.gpu-memory.request"

    def said(value: str, asked: str = "2048", scheduler: str = "kai-scheduler", called: str = name) -> str:
        annotations = {called: value, **({"gpu-memory": asked} if asked else {})}
        return policies.refusal(a_pod(plain("main"), annotations=annotations, schedulerName=scheduler))

    assert said("2Gi") == said("2048Mi") == ""
    for value in ("3Gi", "2G", "2048", "all", ""):
        assert f"metadata.annotations[{name}]: the container runtime" in said(value), value
    for asked in ("", "x", "2048.0"):
        assert f"metadata.annotations[{name}]: the container runtime" in said("2Gi", asked), asked
    assert f"metadata.annotations[{name}]: the container runtime" in said("2Gi", scheduler="nobody")
    limit = "nvidia.com/container.main.gpu-memory.limit"
    assert f"metadata.annotations[{limit}]: the container runtime" in said("2Gi", called=limit)
