"""The rules on a request inside the API server, against those in Python: one table of cases, and random
pods."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.cluster import ControlPlane
from deploy.local.commands import OF_POLICIES
from tests.support.profile import examples
from tests.support.waiting import eventually
from tests.webhook.cases import NOTHING, RANGES, a_pod, broken_by, by_name, told
from tests.webhook.policies import MANIFESTS, Policies
from tests.webhook.worlds import POLICY, plain, violations_of
from tests.worlds import Json, container
from timekeeper.core.request.request import parse

# The policy's rules. That a request equals its limit the API server itself checks of every extended resource.
COVERED = frozenset(
    (
        "amount",
        "count-divides",
        "dialect-not-spoken",
        "memory-floor",
        "memory-range",
        "memory-with-whole-cards",
        "several-dialects",
        "share-range",
        "share-without-memory",
        "vgpu-number",
        "vgpu-one-container",
        "vgpu-range",
        "whole-cards-only",
    )
)


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """A cluster with the policies in force."""
    return Policies(control_plane)


@pytest.mark.parametrize("case", RANGES)
def test_python_finds_what_the_table_says(case: str) -> None:
    pod, broken = RANGES[case]

    assert broken_by(pod, parse(pod).violations) == broken
    assert broken_by(pod, (each for each in violations_of(pod, POLICY) if each.rule in COVERED)) == broken


@pytest.mark.parametrize("case", RANGES)
def test_the_api_server_finds_what_the_table_says(policies: Policies, case: str) -> None:
    pod, broken = RANGES[case]

    refusal = policies.refusal(pod)

    assert told(refusal) == broken
    assert bool(refusal) is bool(broken)


def test_the_table_knows_every_rule_that_the_policy_has() -> None:
    text = (MANIFESTS / "admission-ranges.yaml").read_text()
    in_table = {rule for _, broken in RANGES.values() for rule, _ in broken}

    assert in_table == COVERED == set(re.findall(r"\[([a-z-]+)\]'", text))


WRITTEN = """
    0 1 2 3 31 32 50 63 64 65 99 100 101 126 128 150 200 202 300 6400 6401 6500 8192 1048576 1048577 2097152
    1k 1e2 2E2 4Ki 64Ki 1Mi 2M 1Gi 9223372036854775807 9E 8Ei 1e18 1e30 2500m 1000m 0.5 1.0 100.00 -1 -0 500u
    0.1k 1e-1 +50 050"""
AMOUNTS = st.sampled_from(WRITTEN.split())
# CEL counts no quantity of 19 digits, so it calls these no amount where Python finds them too large.
UNCOUNTABLE = ("9223372036854775807", "8Ei", "1e30")
NAMES = st.sampled_from(
    [
        *["bursar.dev/gpu-percent", "bursar.dev/gpu-memory", "bursar.dev/gpu-count"] * 4,
        *["tencent.com/vcuda-core", "tencent.com/vcuda-memory"] * 2,
        *("nvidia.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu.shared"),
        *(
            "volcano.sh/vgpu-number",
            "aliyun.com/gpu-mem",
            "aliyun.com/gpu-count",
            "bursar.dev/other",
            "gpu.intel.com/i915",
        ),
        *["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"] * 2,
        "nvidia.com/priority",
        *(
            "volcano.sh/vgpu-number",
            "volcano.sh/vgpu-memory",
            "volcano.sh/vgpu-cores",
            "volcano.sh/gpu-memory",
            "volcano.sh/gpu-number",
        ),
        *("nano-gpu.io/gpu-core", "nano-gpu.io/gpu-memory", "nano-gpu/gpu-percent", "nano-gpu/qgpu-core"),
        *("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),
        *("nano-gpu/qgpu-memory", "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"),
        *("tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"),
    ]
)
LIMITS = st.dictionaries(NAMES, AMOUNTS, max_size=3)


@st.composite
def containers(draw: st.DrawFn, name: str) -> Json:
    """A container with a few limits, now and then with requests that may differ from them."""
    limits = draw(LIMITS)
    resources: Json = {"limits": limits} if limits else {}
    if limits and draw(st.integers(0, 4)) == 0:
        resources["requests"] = draw(st.one_of(st.just(dict(limits)), LIMITS))
    if draw(st.integers(0, 4)) == 0:
        resources["limits"] = {**resources.get("limits", {}), "nvidia.com/hca": "1"}
    return {"name": name, "image": "registry.example/app:1", "resources": resources}


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """One to three containers, and now and then one that comes before them."""
    several = [draw(containers(name)) for name in ("a", "b", "c")[: draw(st.integers(1, 3))]]
    first = [draw(containers("first"))] if draw(st.integers(0, 2)) == 0 else []
    return a_pod(*several, init=first)


@settings(max_examples=examples(150), deadline=None)
@given(pod=pods())
def test_random_pods_are_judged_alike(policies: Policies, pod: Json) -> None:
    """What Python refuses the API server refuses, by the policy with the same rules at the same paths, or by
    itself: amounts that are no integers, and requests that differ from limits."""
    violations = parse(pod).violations

    refusal = policies.refusal(pod)

    assert bool(refusal) is bool(violations), refusal
    if any(f'"{amount}"' in json.dumps(pod) for amount in UNCOUNTABLE):
        return
    if refusal.endswith("..."):
        assert told(refusal) < broken_by(pod, violations)
    elif "denied request" in refusal:
        assert told(refusal) == broken_by(pod, violations)
    elif refusal:
        assert re.match(r'422: Pod "p" is invalid: \[?spec\.', refusal)


def test_what_the_policy_leaves_to_the_api_server_it_refuses_itself(policies: Policies) -> None:
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


def test_of_many_mistakes_the_first_are_reported(policies: Policies) -> None:
    refusal = policies.refusal(crowded(100, gpu_percent="150"))

    assert "spec.containers[c0].resources.limits[bursar.dev/gpu-percent]: " in refusal
    assert refusal.endswith("...")
    assert len(refusal) < 4096


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
    bad = a_pod(container(gpu_percent="150"))
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
