"""Who else selects GPU pods by their class on a real API server: quotas, and policies of tenants."""

from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import Answer, apply, create_namespace
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.unit.test_templates import GOOD, HELD, template, workload
from tests.webhook.worlds import half
from tests.worlds import Json

GOLD = {"name": "tier-gold", "value": 50, "preemptionPolicy": "Never"}
OURS = {"name": "gpu-default-priority", "value": 0, "preemptionPolicy": "PreemptLowerPriority"}
DOCUMENT = standings(
    given=entry("OVER_BUDGET"),
    kept=entry("OVER_BUDGET", priorityClasses={"inBudget": OURS, "overBudget": OURS, "keep": True}),
    golden=entry("OVER_BUDGET", priorityClasses={"inBudget": GOLD, "overBudget": GOLD}),
    planned=entry("IN_BUDGET", requireDuration=True),
    team_b=entry("OVER_BUDGET", onExhausted="hold"),
)
BY_CLASS = {
    "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}
}
GOLD_ALONE = "has(object.spec.priorityClassName) && object.spec.priorityClassName == 'tier-gold'"
TENANTS = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tenants"},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "golden"}},
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ],
            },
            "validations": [{"expression": GOLD_ALONE, "message": "may use tier-gold only"}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tenants"},
        "spec": {"policyName": "tenants", "validationActions": ["Deny"]},
    },
]


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    made = Registered(control_plane, tmp_path_factory.mktemp("classes"), document=DOCUMENT)
    for namespace in ("given", "kept", "golden", "planned"):
        create_namespace(control_plane, namespace)
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    apply(control_plane, kind | {"metadata": {"name": "tier-gold"}, "value": 50, "preemptionPolicy": "Never"})
    with made:
        yield made


def create(world: Registered, namespace: str, name: str, **spec: Any) -> Answer:
    """What the API server says to a GPU pod."""
    raw: Json = {"metadata": {"name": name}, "spec": {"containers": [half()], **spec}}
    return world.answer("POST", f"/api/v1/namespaces/{namespace}/pods", raw)


def classes(world: Registered, namespace: str) -> list[str | None]:
    """Of the pods there."""
    pods = world.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod["spec"].get("priorityClassName") for pod in pods]


def limit(world: Registered, namespace: str, hard: str, **spec: Any) -> None:
    """A quota of 100 of a resource, or 2 pods, in force."""
    body = {"metadata": {"name": "q"}, "spec": {"hard": {hard: "2" if hard == "pods" else "100"}, **spec}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    world.post(path, body)
    eventually(lambda: world.get(f"{path}/q").get("status", {}).get("hard"), "the quota to be in force")


def test_a_quota_of_pods_without_a_class_counts_those_of_an_entry_that_keeps_classes(
    world: Registered,
) -> None:
    for namespace in ("given", "kept"):
        limit(world, namespace, "requests.bursar.dev/gpu-percent", **BY_CLASS)

    refused = {
        namespace: [create(world, namespace, f"p{number}").refusal for number in range(4)]
        for namespace in ("given", "kept")
    }

    assert refused["given"] == [""] * 4
    assert classes(world, "given") == ["gpu-lower-priority"] * 4
    assert refused["kept"][:2] == [""] * 2
    assert all(
        "exceeded quota: q, requested: requests.bursar.dev/gpu-percent=50" in text
        for text in refused["kept"][2:]
    )
    assert classes(world, "kept") == [None] * 2


def test_a_policy_that_allows_a_tenant_one_class_takes_the_pods_of_an_entry_that_names_it(
    world: Registered,
) -> None:
    apply(world.cp, *TENANTS)
    plain: Json = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    eventually(
        lambda: (
            "may use tier-gold only"
            in world.answer("POST", "/api/v1/namespaces/golden/pods?dryRun=All", plain).refusal
        ),
        "the policy to be in force",
    )

    assert create(world, "golden", "without").refusal == ""
    assert create(world, "golden", "named", priorityClassName="tier-gold").refusal == ""
    assert classes(world, "golden") == ["tier-gold"] * 2


def test_whoever_writes_a_job_whose_deadline_is_copied_reads_which_quotas_count_its_pods(
    world: Registered,
) -> None:
    limit(world, "planned", "pods", scopes=["Terminating"])
    job = workload("Job", template(half()))
    job["spec"] |= {"activeDeadlineSeconds": 600, "parallelism": 3, "completions": 3}

    said = world.answer("POST", "/apis/batch/v1/namespaces/planned/jobs", job)

    assert said == Answer(
        "",
        [
            "activeDeadlineSeconds is copied to the pods, so they count in ResourceQuotas of the scope"
            " Terminating."
        ],
    )
    used = "/api/v1/namespaces/planned/resourcequotas/q"
    eventually(lambda: world.get(used)["status"]["used"]["pods"] == "2", "two of its three pods")


def test_whoever_writes_a_cron_job_under_hold_reads_that_its_pods_will_wait(world: Registered) -> None:
    path = "/apis/batch/v1/namespaces/team-b/cronjobs"
    said = HELD.replace("team-a", "team-b")

    assert world.answer("POST", path, workload("CronJob", GOOD)) == Answer("", [said])
    changed = {"spec": {"jobTemplate": {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}}}
    assert world.answer("PATCH", f"{path}/w", changed) == Answer("", [said])
