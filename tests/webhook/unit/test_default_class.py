"""The cluster gives each pod without a class its `globalDefault` PriorityClass before any webhook runs:
admission takes it for none."""

from dataclasses import replace

import pytest

from tests.webhook.worlds import OBSERVING, POLICY, admitted, governed, half, mutated, operations, review
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from webhook.admission.validation import validate

IN_CLUSTER = replace(POLICY, cluster_default="everyday")
STRICT = replace(IN_CLUSTER, rules={"priority-class": "enforce"})


def given(value: int, name: str = "everyday") -> Json:
    return admitted(half(), priorityClassName=name, priority=value)


@pytest.mark.parametrize("value", [1000, 0, -10])
@pytest.mark.parametrize("policy", [IN_CLUSTER, STRICT])
def test_a_pod_of_the_clusters_default_class_gets_its_standings_class_in_silence(
    value: int, policy: AdmissionPolicy
) -> None:
    answer = mutated(given(value), policy=policy)
    after = governed(given(value), policy=policy)

    assert (answer.refusal, answer.warnings) == ("", ())
    assert after["spec"]["priorityClassName"] == "gpu-default-priority"
    assert operations(after, policy=policy) == []
    assert not validate(review(after), policy).refusal


def test_another_class_above_ours_is_its_users() -> None:
    assert "priority-class" in dict(mutated(given(1000, "urgent"), policy=STRICT).rules)
    assert mutated(given(1000, "urgent"), policy=IN_CLUSTER).warnings


def test_a_replica_that_knew_of_no_default_kept_a_lower_one() -> None:
    after = governed(given(-10), policy=POLICY)

    assert after["spec"]["priorityClassName"] == "everyday"
    assert not validate(review(after), IN_CLUSTER).refusal


def test_in_observe_mode_a_pod_keeps_it_and_nothing_is_said() -> None:
    answer = mutated(given(1000), policy=replace(OBSERVING, cluster_default="everyday"))

    assert answer.operations == ()
    assert not [warning for warning in answer.warnings if "everyday" in warning]
