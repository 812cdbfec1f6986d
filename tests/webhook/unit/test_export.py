"""The export of a bound pod is governed anew, as a pod of its template is (the corpus has each dialect)."""

from dataclasses import replace

import pytest

from tests.webhook.exports import exported_of, without_empty
from tests.webhook.worlds import (
    OBSERVING,
    PAID,
    POLICY,
    WITHOUT_SIDECAR,
    admitted,
    governed,
    half,
    mutated,
    patched,
    plain,
    review,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from webhook.admission.answers import EXPORTED
from webhook.admission.pods import validate
from webhook.admission.reinvocation import earlier_standing
from webhook.admission.warnings import EXPORT


def again(exported: Json, policy: AdmissionPolicy = POLICY) -> Json:
    answer = mutated(exported, policy=policy)
    assert (answer.refusal, answer.warnings[-1]) == ("", EXPORT)
    return patched(exported, list(answer.operations))


@pytest.mark.parametrize("policy", [POLICY, WITHOUT_SIDECAR])
def test_it_becomes_a_pod_of_its_template(policy: AdmissionPolicy) -> None:
    raw = admitted(half(), init=[plain("setup")], volumes=[{"name": "data", "emptyDir": {}}])
    raw["metadata"] |= {"labels": {"app": "x"}, "annotations": {"note": "y", "bursar.dev/policy": "spread"}}
    stored = governed(raw, policy=policy)

    after = again(exported_of(stored), policy)

    assert without_empty(after) == without_empty(stored)
    assert not validate(review(after), policy).refusal


def test_it_gets_the_class_and_the_standing_of_now_and_is_no_second_call() -> None:
    over = governed(admitted(half()), "OVER_BUDGET")
    assert over["spec"]["priorityClassName"] == "gpu-lower-priority"
    held = governed(admitted(half()), hold="budget")
    assert held["spec"]["schedulingGates"]

    for stored in (over, held):
        exported = exported_of(stored)
        assert without_empty(again(exported)) == without_empty(governed(admitted(half())))
        assert earlier_standing(review(exported), POLICY) is None


def test_its_users_own_class_stays() -> None:
    stored = governed(admitted(half(), priorityClassName="low", priority=-10))

    assert again(exported_of(stored))["spec"]["priorityClassName"] == "low"


def test_a_node_by_hand_and_a_placement_without_our_label_stay_refused() -> None:
    bare = admitted(half(), nodeName="n")
    forged = admitted(half())
    forged["metadata"]["annotations"] = {"bursar.dev/devices": "main:GPU-0/50/8192"}

    assert [rule for rule, _ in mutated(bare).rules] == ["node-name"]
    assert [rule for rule, _ in mutated(forged).rules] == ["forged-annotation"]


def test_validate_refuses_what_mutate_did_not_see_and_names_the_cause_first() -> None:
    refused = validate(review(exported_of(governed(admitted(half())))), POLICY).refusal

    assert refused.splitlines()[0] == EXPORTED


def test_another_reason_to_refuse_it_stands_alone() -> None:
    exported = exported_of(governed(admitted(half(), hostPID=True)))

    assert "spec.hostPID" in (refusal := mutated(exported).refusal)
    assert EXPORTED not in refusal


def test_in_observe_mode_nothing_is_changed_and_the_first_sentence_says_what_to_delete() -> None:
    answer = mutated(exported_of(governed(admitted(half()))), policy=OBSERVING)

    assert (answer.operations, answer.warnings[0]) == ((), EXPORTED)
    metering = replace(POLICY, mode="meter")
    assert mutated(exported_of(governed(admitted(half()))), PAID, metering).operations == ()
