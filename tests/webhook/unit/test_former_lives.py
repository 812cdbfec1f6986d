"""What a pod brings from a former life, or from another pod, changes nothing of what it becomes: a second
call for it is as the first one."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.exports import but_for_the_sidecars_amounts, marks_of, with_marks
from tests.webhook.governing import EVERY_SIDECAR, LIMITED, WORDS, pods
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    governed,
    half,
    mutated,
    patched,
    plain,
    review,
    with_annotations,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import Standing
from webhook.admission.validation import validate

GANG = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
OTHERS = [
    governed(with_annotations(admitted(half("other")), GANG), "OVER_BUDGET", POLICY, "turn"),
    governed(admitted(half("main")), "IN_BUDGET", POLICY, "budget"),
    governed(admitted(half("main")), "OVER_BUDGET"),
]
MARKS = [mark for other in OTHERS for mark in marks_of(other)]


def becomes(raw: Json, standing: Standing, policy: Any) -> Json:
    """The pod after /mutate, of which /validate agrees."""
    answer = mutated(raw, standing, policy)
    assert not answer.refusal
    after = patched(raw, list(answer.operations))
    assert not validate(review(after), policy).refusal
    return but_for_the_sidecars_amounts(after)


STANDINGS: Any = WORDS.flatmap(
    lambda word: st.sampled_from(["deprioritize", "hold"]).map(
        lambda mode: Standing(word, on_exhausted=mode, hold="budget" if mode == "hold" else "")
    )
)


def is_governed(raw: Json) -> bool:
    answer = mutated(raw)
    return not answer.refusal and answer.admission is not None


@given(
    pods().filter(is_governed),
    STANDINGS,
    st.sampled_from([*EVERY_SIDECAR, LIMITED]),
    st.sets(st.sampled_from(range(len(MARKS)))),
)
def test_no_mark_of_another_pod_changes_what_a_pod_becomes(
    raw: Json, standing: Standing, policy: Any, chosen: set[int]
) -> None:
    marks = [MARKS[number] for number in sorted(chosen)]
    if policy.sidecar is None:  # no other pod has one there
        marks = [mark for mark in marks if mark[0] not in ("initContainers", "volumes")]

    assert becomes(with_marks(raw, marks), standing, policy) == becomes(raw, standing, policy)


@given(pods().filter(is_governed), STANDINGS, STANDINGS)
def test_a_pod_that_comes_again_becomes_what_it_would_at_first(
    raw: Json, before: Standing, standing: Standing
) -> None:
    after = patched(raw, list(mutated(raw, before).operations))

    again = mutated(after, standing)

    assert again.warnings[-1:] != ("This is removed",)
    assert but_for_the_sidecars_amounts(patched(after, list(again.operations))) == becomes(
        raw, standing, POLICY
    )
    if before == standing:
        assert again.operations == ()


def test_a_pod_demoted_while_it_waited_and_made_again_is_in_budget_in_its_own_class() -> None:
    demoted = governed(admitted(half()), "OVER_BUDGET")

    answer = mutated(demoted, Standing("IN_BUDGET"))
    after = patched(demoted, list(answer.operations))

    assert (answer.refusal, answer.warnings) == ("", ())
    assert after["spec"]["priorityClassName"] == "gpu-default-priority"
    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"


def test_under_deny_it_is_admitted_too() -> None:
    demoted = governed(admitted(half()), "OVER_BUDGET")

    assert mutated(demoted, Standing("IN_BUDGET", on_exhausted="deny")).refusal == ""


@pytest.mark.parametrize("own", [("batch", -100), ("gpu-lower-priority", -5)])
def test_a_lower_class_that_its_user_chose_stays_on_all_calls(own: tuple[str, int]) -> None:
    raw = admitted(half(), priorityClassName=own[0], priority=own[1])
    for _ in range(2):
        raw = patched(raw, list(mutated(raw).operations))

        assert raw["spec"]["priorityClassName"] == own[0]


def test_one_restored_where_images_have_another_registry_gets_the_sidecar_of_here() -> None:
    elsewhere = replace(POLICY.sidecar, image="elsewhere.example/sidecar:9")  # type: ignore[type-var]
    stored = governed(admitted(half()), policy=replace(POLICY, sidecar=elsewhere))

    answer = mutated(stored)
    after = patched(stored, list(answer.operations))

    assert answer.rules == (("sidecar-name", "warn"),)
    assert but_for_the_sidecars_amounts(after) == becomes(admitted(half()), Standing("IN_BUDGET"), POLICY)


def test_a_pod_without_a_request_keeps_no_mark() -> None:
    raw = admitted(plain())
    marks = [mark for mark in MARKS if mark[0] not in ("initContainers", "volumes")]

    answer = mutated(with_marks(raw, marks))

    assert patched(with_marks(raw, marks), list(answer.operations))["metadata"].get("annotations", {}) == {}
    assert answer.refusal == ""
    assert len(answer.warnings) == 1


def test_a_forged_mark_is_one_warning_and_one_kind_of_violation() -> None:
    raw = with_annotations(admitted(half()), {"bursar.dev/devices": "{}", "bursar.dev/gang-needs": "1"})

    answer = mutated(raw)

    assert answer.warnings == (
        "This is removed, for only Bursar, schedulers and node plugins write it:"
        " metadata.annotations[bursar.dev/devices], metadata.annotations[bursar.dev/gang-needs].",
    )
    assert answer.rules == (("forged-annotation", "warn"),)
    assert validate(review(raw), POLICY).refusal
    observed = mutated(raw, policy=OBSERVING)
    assert (observed.operations, observed.verdict) == ((), "observed")
    assert observed.warnings[-1].startswith("Observe mode: with enforcement on, this would be removed")
    assert validate(review(raw), OBSERVING).warnings == ()


@pytest.mark.parametrize(
    "mistake",
    [
        {"annotations": {"bursar.dev/gpu-model": "H100"}},
        {"annotations": {"bursar.dev/gpu-percent": "50"}},
        {"labels": {"bursar.dev/policy": "spread"}},
    ],
)
def test_what_is_misspelt_or_misplaced_stays_refused(mistake: Json) -> None:
    raw = admitted(half())
    raw["metadata"] |= mistake

    assert mutated(raw).refusal


def test_marks_in_any_order_are_removed_by_one_patch_that_applies() -> None:
    """Whatever else stands between them."""
    for seed in range(40):
        chance = random.Random(seed)
        raw = admitted(half(), init=[plain("setup")], schedulingGates=[{"name": "example.com/x"}])
        chosen = chance.sample(MARKS, chance.randrange(len(MARKS)))

        assert becomes(with_marks(raw, chosen), Standing("IN_BUDGET"), POLICY) == becomes(
            raw, Standing("IN_BUDGET"), POLICY
        ), seed
