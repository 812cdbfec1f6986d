"""Pods that are created with Bursar's scheduling gate: who gets it, and that nobody else sets or lifts it."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.exports import without_empty
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    counted,
    governed,
    half,
    mutated,
    operations,
    patched,
    review,
    with_annotations,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import Standing
from timekeeper.core.budgets.policy import HOLDS
from webhook.admission.validation import validate
from webhook.standings import decode

OURS, GANGS = {"name": "bursar.dev/budget"}, {"name": "bursar.dev/gang"}
THEIRS = {"name": "kueue.x-k8s.io/admission"}
OVER = Standing("OVER_BUDGET", on_exhausted="hold", hold="budget")


def gates(raw: Json) -> list[Json]:
    """The pod's scheduling gates."""
    return list(raw["spec"].get("schedulingGates") or [])


def held(raw: Json) -> str | None:
    """How the pod is held by its annotation."""
    value = (raw["metadata"].get("annotations") or {}).get("bursar.dev/held")
    return None if value is None else str(value)


def test_a_pod_that_cannot_be_paid_waits_behind_the_gate_with_the_class_in_budget() -> None:
    raw = admitted(half())

    answer = mutated(raw, OVER)
    after = patched(raw, list(answer.operations))

    assert gates(after) == [OURS]
    assert held(after) == "budget"
    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert after["spec"]["priorityClassName"] == "gpu-default-priority"
    assert answer.audit == {"standing": "OVER_BUDGET", "held": "budget"}
    assert answer.warnings == (
        "Namespace team-a has used its GPU budget. This pod is held until the budget can pay it.",
    )
    assert counted(answer) is None  # it uses nothing of the budget yet


def test_a_pod_that_waits_for_its_turn_keeps_the_class_of_its_standing() -> None:
    after = governed(admitted(half()), "OVER_BUDGET", hold="turn")

    assert gates(after) == [OURS]
    assert after["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert validate(review(after), POLICY).verdict == "valid"


HOLDING: dict[str, tuple[Standing, Any, str]] = {
    "in budget": (Standing("IN_BUDGET", on_exhausted="hold"), POLICY, ""),
    "in budget, where older pods wait": (
        Standing("IN_BUDGET", on_exhausted="hold", hold="budget"),
        POLICY,
        "budget",
    ),
    "for its turn": (Standing("IN_BUDGET", hold="turn"), POLICY, "turn"),
    "over budget, demoted": (Standing("OVER_BUDGET", on_exhausted="deprioritize"), POLICY, ""),
    "without a limit": (Standing("UNLIMITED", on_exhausted="hold"), POLICY, ""),
    "unknown": (Standing("UNKNOWN", on_exhausted="hold", hold="budget"), POLICY, ""),
    "observed": (OVER, OBSERVING, ""),
    **{
        f"over budget with {mode}": (Standing("OVER_BUDGET", on_exhausted=mode), POLICY, "budget")
        for mode in HOLDS
    },
    **{
        f"by estimate with {mode}": (
            Standing("OVER_BUDGET", on_exhausted=mode, by_estimate=True),
            POLICY,
            "budget",
        )
        for mode in HOLDS
    },
}


@pytest.mark.parametrize("case", HOLDING)
def test_who_is_held(case: str) -> None:
    standing, policy, expected = HOLDING[case]
    raw = admitted(half())

    after = patched(raw, list(mutated(raw, standing, policy).operations))

    assert (gates(after), held(after)) == (([OURS], expected) if expected else ([], None))


def test_the_table_says_how_new_pods_are_held() -> None:
    said = {each: entry("IN_BUDGET", hold=each) for each in ("budget", "turn", "later", "")}
    table = decode(orjson.dumps(standings(None, "1", **said)), '"1"', 0)

    read = {name: table.entry_of(name).standing.hold for name in said}

    assert read == {"budget": "budget", "turn": "turn", "later": "", "": ""}
    assert table.entry_of("elsewhere").standing.hold == ""


WORDS: Any = st.sampled_from(["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"])
HOLDINGS: Any = st.sampled_from(["", "budget", "turn"])
OTHERS: Any = st.lists(st.sampled_from([THEIRS, {"name": "example.com/a"}]), max_size=2, unique_by=str)


@given(WORDS, HOLDINGS, WORDS, HOLDINGS, OTHERS, st.booleans())
def test_the_last_call_decides_and_others_gates_stay(
    first: Any, then: Any, word: Any, hold: Any, others: list[Json], forged: bool
) -> None:
    """Whatever an earlier call or a user wrote, and whoever waits for other gates."""
    raw = admitted(half(), schedulingGates=[dict(each) for each in others])
    if forged:
        raw["spec"]["schedulingGates"].insert(0, dict(OURS))
        raw["metadata"]["annotations"] = {"bursar.dev/held": "budget"}
    before = governed(raw, first, POLICY, then)

    after = governed(before, word, POLICY, hold)

    assert operations(after, word, POLICY, hold) == []
    assert [each for each in gates(after) if each != OURS] == others
    assert (OURS in gates(after), held(after)) == (bool(hold), hold or None)
    demoted = "OVER_BUDGET" in [each for each, how in ((first, then), (word, hold)) if how != "budget"]
    assert after["spec"]["priorityClassName"] == (
        "gpu-lower-priority" if demoted else "gpu-default-priority"  # governing alone lifts no class
    )
    assert validate(review(after), POLICY).verdict == "valid"


def test_a_user_cannot_add_the_gate() -> None:
    alone = mutated(admitted(half(), schedulingGates=[dict(OURS)]), Standing("IN_BUDGET"))
    copied = governed(admitted(half()), "OVER_BUDGET", POLICY, "budget")  # of a pod that is held

    after = patched(copied, list(mutated(copied, Standing("IN_BUDGET")).operations))

    assert alone.rules == (("forged-gate", "warn"),)
    for raw in (after, patched(admitted(half(), schedulingGates=[dict(OURS)]), list(alone.operations))):
        assert (gates(raw), held(raw)) == ([], None)


LIFTED: dict[str, list[Any]] = {
    "the gate": [{"op": "remove", "path": "/spec/schedulingGates"}],
    "the annotation": [{"op": "remove", "path": "/metadata/annotations/bursar.dev~1held"}],
    "the class": [
        {"op": "replace", "path": "/spec/priorityClassName", "value": "gpu-lower-priority"},
        {"op": "replace", "path": "/spec/priority", "value": 1},
    ],
}


@pytest.mark.parametrize("case", LIFTED)
def test_another_webhook_cannot_lift_the_gate(case: str) -> None:
    raw = patched(governed(admitted(half()), "OVER_BUDGET", POLICY, "budget"), LIFTED[case])

    refused = {rule for rule, mode in validate(review(raw), POLICY).rules if mode == "enforce"}

    assert refused & {"not-governed", "forged-gate"}


def test_observing_a_pod_says_that_it_would_be_held() -> None:
    said = [mutated(admitted(half()), replace(OVER, on_exhausted=mode), OBSERVING).warnings for mode in HOLDS]

    assert all("this pod would be held." in each[0] for each in said)


def of_gang(**annotations: str) -> Json:
    """A pod of a gang of two, unless the annotations say else."""
    raw = admitted(half())
    raw["metadata"]["annotations"] = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2", **annotations}
    return raw


@pytest.mark.parametrize("word", ["IN_BUDGET", "OVER_BUDGET", "UNKNOWN"])
def test_each_pod_of_a_gang_waits_behind_both_gates_whatever_its_standing_is(word: Any) -> None:
    answer = mutated(of_gang(), Standing(word))
    after = patched(of_gang(), list(answer.operations))

    assert gates(after) == [OURS, GANGS]
    assert (held(after), after["metadata"]["annotations"]["bursar.dev/gang-key"]) == ("turn", "bursar/g")
    assert validate(review(after), POLICY).refusal == ""
    assert mutated(after, Standing(word)).operations == ()


def test_a_pod_of_a_pod_group_is_a_member_though_its_name_is_dropped_after_the_first_call() -> None:
    raw = admitted(half())
    raw["spec"]["schedulingGroup"] = {"podGroupName": "g"}

    after = patched(raw, list(mutated(raw, Standing("IN_BUDGET")).operations))

    assert (held(after), gates(after)) == ("turn", [OURS, GANGS])
    assert after["metadata"]["annotations"]["bursar.dev/gang-key"] == "podgroup/g"
    assert mutated(after, Standing("IN_BUDGET")).operations == ()
    for there in (True, False):
        if not there:  # an API server without the feature drops it after all calls of /mutate
            del after["spec"]["schedulingGroup"]
        assert validate(review(after), POLICY).refusal == ""


GANG = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
FORGED = {
    "a mark": GANG | {"bursar.dev/gang-started": "2026-11-01T00:00:00Z"},
    "with how many it starts": GANG | {"bursar.dev/gang-needs": "1"},
    "the key of another gang": GANG | {"bursar.dev/gang-key": "bursar/h"},
    "a key without a gang": {"bursar.dev/gang-key": "bursar/g"},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_users_mark_or_key_is_removed(case: str) -> None:
    raw = admitted(half())
    raw["metadata"]["annotations"] = dict(FORGED[case])
    own = {name: text for name, text in FORGED[case].items() if name in GANG}

    answer = mutated(raw, Standing("IN_BUDGET"))
    plain = with_annotations(admitted(half()), own)

    assert answer.rules == (("forged-annotation", "warn"),)
    assert without_empty(patched(raw, list(answer.operations))) == without_empty(
        patched(plain, list(mutated(plain, Standing("IN_BUDGET")).operations))
    )


def test_a_users_gate_of_gangs_is_removed_and_a_copied_one_goes_with_its_key() -> None:
    alone = mutated(admitted(half(), schedulingGates=[dict(GANGS)]), Standing("IN_BUDGET"))
    copied = governed(of_gang(), "OVER_BUDGET", POLICY, "turn")
    del copied["metadata"]["annotations"]["bursar.dev/gang-size"]
    del copied["metadata"]["annotations"]["bursar.dev/gang"]

    answer = mutated(copied, Standing("IN_BUDGET"))
    assert alone.rules == (("forged-gate", "warn"),)
    assert answer.rules == (("forged-annotation", "warn"),)
    assert gates(patched(copied, list(answer.operations))) == []


@pytest.mark.parametrize(
    "gone",
    ["/spec/schedulingGates/1", "/metadata/annotations/bursar.dev~1gang-key", "/spec/schedulingGates/0"],
)
def test_another_webhook_cannot_lift_one_of_a_gangs_gates(gone: str) -> None:
    raw = governed(of_gang(), "IN_BUDGET", POLICY, "turn")

    raw = patched(raw, [{"op": "remove", "path": gone}])

    refused = {rule for rule, mode in validate(review(raw), POLICY).rules if mode == "enforce"}
    assert refused & {"not-governed", "forged-gate"}


def test_a_pod_of_a_gang_that_cannot_be_paid_waits_for_its_budget() -> None:
    answer = mutated(of_gang(), OVER)

    assert held(patched(of_gang(), list(answer.operations))) == "budget"


@pytest.mark.parametrize("policy", [OBSERVING, replace(POLICY, places=False), replace(POLICY, mode="meter")])
def test_a_gang_that_bursar_does_not_place_is_not_held(policy: Any) -> None:
    raw = of_gang()
    raw["spec"]["schedulerName"] = POLICY.scheduler_name if policy is OBSERVING else ""
    answer = mutated(raw, Standing("IN_BUDGET"), policy)

    assert gates(patched(raw, list(answer.operations))) == []
    assert "held" not in answer.audit


def test_a_gang_without_a_size_is_refused_with_the_field() -> None:
    raw = of_gang()
    del raw["metadata"]["annotations"]["bursar.dev/gang-size"]

    assert (
        "metadata.annotations[bursar.dev/gang-size]: a gang needs its number of pods"
        in mutated(raw, Standing("IN_BUDGET")).refusal
    )
