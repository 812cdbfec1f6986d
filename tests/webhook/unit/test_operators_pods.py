"""The pods that operators create (`operators_pods.yaml`), under four policies: /mutate answers each as stands
beside it, and /validate agrees."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.webhook.worlds import POLICY, UNPLACED, mutated, patched, review
from tests.worlds import Json
from timekeeper.core.admission.rules.bypass import bypass_violations
from webhook.admission.validation import validate

RECORDED: list[Json] = yaml.safe_load((Path(__file__).parent / "operators_pods.yaml").read_text())["pods"]
POLICIES = {
    "default": POLICY,
    "other schedulers": replace(POLICY, other_schedulers=frozenset(("volcano", "yunikorn"))),
    "placement off": UNPLACED,
    "whole cards": replace(POLICY, takes_whole_cards=True),
}
STORED = {  # as the API server hands them on
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
}


def pods() -> Iterator[Any]:
    """Each under each policy."""
    for recorded in RECORDED:
        metadata, spec = recorded["pod"]["metadata"], recorded["pod"]["spec"]
        owners = [
            owner | {"uid": "uid-o", "controller": True} for owner in metadata.get("ownerReferences", [])
        ]
        pod = {"metadata": {**metadata, "ownerReferences": owners}, "spec": STORED | spec}
        for name, right in recorded["right"].items():
            yield pytest.param(pod, POLICIES[name], right, id=f"{recorded['of']}: {name}")


def containers(pod: Json, field: str = "containers") -> list[Json]:
    found: list[Json] = pod["spec"].get(field, [])
    return found


def asks(pod: Json) -> str:
    """The resources of GPUs that its containers request."""
    limits = [container.get("resources", {}).get("limits", {}) for container in containers(pod)]
    return " ".join(
        name for each in limits for name, amount in each.items() if "/gpu" in name and amount != "0"
    )


def decided(pod: Json) -> Json:
    """What of the stored pod says who starts and watches it."""
    gates = pod["spec"].get("schedulingGates", [])
    return {
        "scheduler": pod["spec"]["schedulerName"],
        "asks": asks(pod),
        "gates": [gate["name"].removeprefix("bursar.dev/") for gate in gates],
        "sidecar": "bursar-sidecar" in [init["name"] for init in containers(pod, "initContainers")],
    }


def test_each_pod_has_an_answer_under_each_policy() -> None:
    assert all(recorded["right"].keys() == POLICIES.keys() for recorded in RECORDED)


@pytest.mark.parametrize(("pod", "policy", "right"), list(pods()))
def test_a_pod_that_an_operator_creates_is_answered_as_is_right(pod: Json, policy: Any, right: Any) -> None:
    answer = mutated(pod, policy=policy)

    if isinstance(right, dict) and "refused" in right:
        assert {rule for rule, _ in answer.rules} == {right["refused"]}
        assert re.search(right["says"], answer.refusal), answer.refusal
        return
    assert answer.refusal == ""
    stored = patched(pod, list(answer.operations))
    assert decided(stored) == (decided(pod) if right == "as it is" else right)
    assert (not answer.operations) == (right == "as it is")
    assert validate(review(stored), policy).refusal == ""
    assert bypass_violations(stored, policy.parsed(stored, "team-a")) == ()
    assert mutated(stored, policy=policy).operations == ()
