"""The admission manifests against the code: expressions, routes, rules, who is left out."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds import Json
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE
from timekeeper.core.names import NAMESPACE, USER_ANNOTATIONS
from webhook import match
from webhook.settings import read, read_certificates

MANIFESTS = Path(__file__).parent.parent.parent / "deploy" / "manifests"


def documents(name: str) -> list[Json]:
    """The documents of a manifest."""
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def webhooks() -> dict[str, Json]:
    """The one webhook of each configuration, by kind."""
    found = {}
    for document in documents("webhook-configurations"):
        assert document["metadata"]["name"] == read_certificates([], {}).configuration
        (found[document["kind"]],) = document["webhooks"]
    return found


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_only_gpu_pods_come_and_no_system_namespace(kind: str) -> None:
    webhook = webhooks()[kind]

    assert webhook["matchConditions"] == [{"name": "gpu-pods", "expression": match.gpu_pods()}]
    assert webhook["namespaceSelector"] == {
        "matchExpressions": [
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": list(match.SYSTEM_NAMESPACES),
            }
        ]
    }
    assert (
        webhook["failurePolicy"],
        webhook["sideEffects"],
        webhook["matchPolicy"],
        webhook["timeoutSeconds"],
    ) == (
        "Fail",
        "None",
        "Equivalent",
        5,
    )


def test_neither_updates_nor_deletions_of_pods_wait_for_us() -> None:
    found = webhooks()

    def rules(webhook: Json) -> list[tuple[list[str], list[str]]]:
        return [(rule["operations"], rule["resources"]) for rule in webhook["rules"]]

    assert rules(found["MutatingWebhookConfiguration"]) == [(["CREATE"], ["pods"])]
    assert rules(found["ValidatingWebhookConfiguration"]) == [
        (["CREATE"], ["pods"]),
        (["UPDATE"], ["pods/ephemeralcontainers", "pods/resize"]),
    ]
    assert found["MutatingWebhookConfiguration"]["reinvocationPolicy"] == "IfNeeded"


def test_the_routes_are_ours_and_the_ca_is_left_to_the_certificate_process() -> None:
    for kind, path in (
        ("MutatingWebhookConfiguration", "/mutate"),
        ("ValidatingWebhookConfiguration", "/validate"),
    ):
        assert webhooks()[kind]["clientConfig"] == {
            "service": {"namespace": NAMESPACE, "name": "bursar-webhook", "port": 443, "path": path}
        }


def test_every_resource_of_every_dialect_brings_a_pod_to_us() -> None:
    for dialect in DIALECTS:
        for resource in dialect.resources:
            assert re.search(GPU_RESOURCE, resource), resource
    assert match.gpu_pods().count(f"r'{GPU_RESOURCE}'") == 2


def policy() -> Json:
    """The policy's spec."""
    (found,) = (
        each for each in documents("admission-policies") if each["kind"] == "ValidatingAdmissionPolicy"
    )
    spec: Json = found["spec"]
    return spec


def patterns(variable: str) -> set[str]:
    """The regular expressions in one of the policy's variables."""
    (found,) = (each["expression"] for each in policy()["variables"] if each["name"] == variable)
    return set(re.findall(r"matches\(r'(.*?)'\)", found))


def test_what_no_one_may_change_afterwards_follows_from_the_dialects() -> None:
    assert patterns("annotations") == {match.immutable_annotations()}
    assert patterns("labels") == patterns("gates") == {match.immutable_labels()}


@pytest.mark.parametrize(
    ("name", "immutable"),
    [
        ("bursar.dev/request", True),
        ("bursar.dev/anything-later", True),
        ("visible-devices.bursar.dev/main", True),
        ("tencent.com/predicate-gpu-idx-0", True),
        ("tencent.com/vcuda-core-limit", True),
        ("tencent.com/gpu-assigned", False),
        ("tencent.com/vcuda-core-limit-soft", False),
        ("local.bursar.dev/run-for", False),
        ("notbursar.dev/x", False),
        ("example.com/bursar.dev/", False),
        *((name, True) for name in USER_ANNOTATIONS),
    ],
)
def test_these_annotations_are_immutable_and_those_are_not(name: str, immutable: bool) -> None:
    assert bool(re.search(match.immutable_annotations(), name)) is immutable


def test_the_policy_looks_at_every_way_to_update_a_pod_and_is_bound() -> None:
    assert policy()["failurePolicy"] == "Fail"
    (rule,) = policy()["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["UPDATE"]
    assert rule["resources"] == ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    (binding,) = (
        each for each in documents("admission-policies") if each["kind"] == "ValidatingAdmissionPolicyBinding"
    )
    assert binding["spec"] == {"policyName": "bursar-written-once", "validationActions": ["Deny"]}


def test_the_priority_classes_are_those_of_our_defaults() -> None:
    terms = read([], {}).terms
    classes: dict[str, Any] = {each["metadata"]["name"]: each for each in documents("priority-classes")}

    assert {name: each["value"] for name, each in classes.items()} == {
        terms.in_budget.name: terms.in_budget.value,
        terms.over_budget.name: terms.over_budget.value,
    }
    assert classes[terms.over_budget.name]["preemptionPolicy"] == "Never"
    assert "preemptionPolicy" not in classes[terms.in_budget.name]
    assert not any(each.get("globalDefault") for each in classes.values())
    assert all(each["description"] for each in classes.values())
