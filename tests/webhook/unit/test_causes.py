"""What a LimitRange filled in is named first, before what it led to."""

from dataclasses import replace

import pytest

from tests.webhook.worlds import OBSERVING, POLICY, admitted, governed, mutated, plain, review
from tests.worlds import Json
from timekeeper.core.admission.policy import Standing
from webhook.admission.validation import validate

CAUSE = (
    "spec.containers[0].resources.limits[nvidia.com/gpu]: a LimitRange of namespace team-a filled in"
    ' "8"; for a container without devices write nvidia.com/gpu: "0"'
)
SET = (
    "LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; "
    "cpu, nvidia.com/gpu limit for container main"
)


def filled(mark: str = SET, **spec: object) -> Json:
    """A pod whose card LimitRanger has requested."""
    raw = admitted(plain("main", resources={"limits": {"nvidia.com/gpu": "8", "cpu": "4"}}), **spec)
    raw["metadata"]["annotations"] = {"kubernetes.io/limit-ranger": mark}
    return raw


def test_a_pod_that_a_limit_range_gave_cards_is_warned_of_it_first() -> None:
    answer = mutated(filled())

    assert (answer.warnings[0], answer.refusal) == (CAUSE, "")


def test_what_refuses_such_a_pod_comes_after_its_cause() -> None:
    refused = mutated(filled(hostPID=True)).refusal

    assert refused.splitlines()[0] == CAUSE
    assert "spec.hostPID" in refused


def test_what_time_heals_begins_with_the_words_that_programs_read_before_its_cause() -> None:
    spent = mutated(filled(), Standing("OVER_BUDGET", on_exhausted="deny")).refusal

    assert spent.splitlines()[0] == f"exceeded quota: {CAUSE}"
    assert spent.splitlines()[1].startswith("Namespace team-a has used its GPU budget")


def test_what_a_limit_range_adds_to_a_container_of_another_webhook_is_named_after_the_webhooks_too() -> None:
    after = governed(filled(mark="LimitRanger plugin set: cpu request for container main"))
    after["spec"]["containers"].append(plain("proxy", resources={"limits": {"nvidia.com/gpu": "8"}}))
    after["metadata"]["annotations"]["kubernetes.io/limit-ranger"] = (
        "LimitRanger plugin set: nvidia.com/gpu limit for container proxy"
    )

    cause = CAUSE.replace("containers[0]", "containers[1]")
    assert mutated(after).warnings[0] == cause
    assert validate(review(after), POLICY).refusal.splitlines()[0] == cause


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "LimitRanger plugin set: cpu limit for container main",
        "forged;;: limit for",
        SET.replace("main", "x"),
    ],
)
def test_nothing_is_said_of_what_the_pods_own_writer_requested(mark: str) -> None:
    assert CAUSE not in mutated(filled(mark)).warnings


def test_it_is_said_in_observe_mode_and_not_where_pods_are_only_metered() -> None:
    metering = replace(POLICY, mode="meter")
    observed, metered = (mutated(filled(), policy=policy) for policy in (OBSERVING, metering))

    assert (observed.warnings[0], metered.warnings) == (CAUSE, ())
