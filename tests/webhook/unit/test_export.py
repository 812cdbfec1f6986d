"""The export of a bound pod is governed anew, as a pod of its template is (the corpus has each dialect)."""

from dataclasses import replace

import pytest

from tests.webhook.exports import exported_of, without_empty
from tests.webhook.worlds import (
    OBSERVING,
    PAID,
    POLICY,
    UNPLACED,
    WITHOUT_SIDECAR,
    admitted,
    governed,
    half,
    mutated,
    patched,
    plain,
    review,
)
from tests.worlds import Json, limits_of
from timekeeper.core.admission.policy import AdmissionPolicy
from webhook.admission.validation import validate


def again(exported: Json, policy: AdmissionPolicy = POLICY) -> Json:
    answer = mutated(exported, policy=policy)
    assert answer.refusal == ""
    assert answer.warnings[-1].startswith("This is removed, for only Bursar")
    return patched(exported, list(answer.operations))


@pytest.mark.parametrize("policy", [POLICY, WITHOUT_SIDECAR])
def test_it_becomes_a_pod_of_its_template(policy: AdmissionPolicy) -> None:
    raw = admitted(half(), init=[plain("setup")], volumes=[{"name": "data", "emptyDir": {}}])
    raw["metadata"] |= {"labels": {"app": "x"}, "annotations": {"note": "y", "bursar.dev/policy": "spread"}}
    stored = governed(raw, policy=policy)

    after = again(exported_of(stored), policy)

    assert without_empty(after) == without_empty(stored)
    assert not validate(review(after), policy).refusal


def test_it_gets_the_class_and_the_standing_of_now() -> None:
    over = governed(admitted(half()), "OVER_BUDGET")
    assert over["spec"]["priorityClassName"] == "gpu-lower-priority"
    held = governed(admitted(half()), hold="budget")
    assert held["spec"]["schedulingGates"]

    for stored in (over, held):
        exported = exported_of(stored)
        assert without_empty(again(exported)) == without_empty(governed(admitted(half())))


def test_its_users_own_class_stays() -> None:
    stored = governed(admitted(half(), priorityClassName="low", priority=-10))

    assert again(exported_of(stored))["spec"]["priorityClassName"] == "low"


def test_a_node_by_hand_stays_refused_also_beside_a_placement_without_our_label() -> None:
    bare = admitted(half(), nodeName="n")
    forged = admitted(half(), nodeName="n")
    forged["metadata"]["annotations"] = {"bursar.dev/devices": "main:GPU-0/50/8192"}

    for raw in (bare, forged):
        assert mutated(raw).rules == (("node-name", "enforce"),)


def test_where_placement_is_off_a_node_by_hand_stays_and_one_that_a_scheduler_gave_goes() -> None:
    by_hand = governed(admitted(limits_of("main", nvidia_com__gpu="1"), nodeName="n"), policy=UNPLACED)
    placed = governed(
        admitted(plain(), schedulerName="kai-scheduler", annotations={"gpu-fraction": "0.5"}), policy=UNPLACED
    )

    assert mutated(by_hand, policy=UNPLACED).operations == ()
    bound = {**placed, "spec": {**placed["spec"], "nodeName": "n"}}
    assert without_empty(again(bound, UNPLACED)) == without_empty(placed)


def test_validate_refuses_what_mutate_did_not_see() -> None:
    refused = validate(review(exported_of(governed(admitted(half())))), POLICY).refusal

    assert "metadata.annotations[bursar.dev/devices]: only Bursar and node plugins write this" in refused


def test_another_reason_to_refuse_it_stands_alone() -> None:
    exported = exported_of(governed(admitted(half(), hostPID=True)))

    assert "spec.hostPID" in (refusal := mutated(exported).refusal)
    assert "bursar.dev/devices" not in refusal


def test_in_observe_mode_nothing_is_changed_and_a_sentence_says_what_would_go() -> None:
    answer = mutated(exported_of(governed(admitted(half()))), policy=OBSERVING)

    assert answer.operations == ()
    assert answer.warnings[-1].startswith("Observe mode: with enforcement on, this would be removed")
    metering = replace(POLICY, mode="meter")
    assert mutated(exported_of(governed(admitted(half()))), PAID, metering).operations == ()
