"""How a broken rule is answered: its mode, observing, exempt users, and a budget that refuses."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.rule_examples import PODS, SEES_ALL
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
    violations_of,
    with_class,
)
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.rules.modes import effective_mode, split_by_mode
from timekeeper.core.budgets.rule_ids import FIXED, SETTABLE
from timekeeper.core.standings import Cap, Caps
from webhook.admission.pods import NOTHING_TO_DO
from webhook.admission.validation import validate
from webhook.wire.pod_review import AdmissionAnswer

IN_BUDGET = Standing("IN_BUDGET")
RUNNER = "system:serviceaccount:ci:runner"


def by(user: str, *groups: str) -> dict[str, Any]:
    """Who asks."""
    return {"userInfo": {"username": user, "groups": list(groups)}}


# modes

ROOTED = admitted(half(securityContext={"privileged": True}), hostPID=True)


def test_a_rule_that_warns_lets_the_pod_be_governed_and_says_why() -> None:
    answer = mutated(ROOTED, policy=replace(POLICY, rules={"privileged": "warn", "host-pid": "off"}))

    assert (answer.verdict, answer.refusal) == ("governed", "")
    assert answer.rules == (("privileged", "warn"),)
    assert answer.warnings == (
        "spec.containers[0].securityContext.privileged: a privileged container can open every card of its "
        'node, got "true"; admitted'.replace('"true"', "true"),
    )


def test_what_refuses_is_reported_as_a_refusal_and_what_warns_as_a_warning() -> None:
    answer = mutated(ROOTED, policy=replace(POLICY, rules={"privileged": "warn"}))

    assert (answer.verdict, answer.operations) == ("refused", ())
    assert answer.refusal.startswith("spec.hostPID: ")
    assert "privileged" not in answer.refusal
    assert len(answer.warnings) == 1
    assert answer.rules == (("host-pid", "enforce"), ("privileged", "warn"))


def test_a_refused_pod_gets_no_warning_of_a_replacement_that_did_not_happen() -> None:
    answer = mutated(admitted(half(), schedulerName="volcano", nodeName="n1"))

    assert answer.warnings == (
        'spec.schedulerName: only bursar-scheduler assigns cards, got "volcano"; would be replaced',
    )


def test_a_foreign_scheduler_and_a_high_class_can_be_refused() -> None:
    strict = replace(POLICY, rules={"foreign-scheduler": "enforce", "priority-class": "enforce"})

    answer = mutated(with_class(admitted(half(), schedulerName="volcano"), "urgent", 7), policy=strict)

    assert answer.rules == (("foreign-scheduler", "enforce"), ("priority-class", "enforce"))


@pytest.mark.parametrize("rule", ["foreign-scheduler", "priority-class", "visible-devices"])
def test_what_governing_replaces_it_replaces_in_silence_where_the_rule_is_off(rule: str) -> None:
    raw = PODS[rule]

    answer = mutated(raw, policy=replace(POLICY, rules={rule: "off"}))

    assert (answer.verdict, answer.warnings, answer.rules) == ("governed", (), ())
    assert patched(raw, list(answer.operations))["spec"] == governed_spec(raw)


def governed_spec(raw: Json) -> Json:
    """The spec that governing leaves, before the API server resolves the class."""
    spec = governed(raw)["spec"]
    if raw["spec"].get("priorityClassName"):
        spec = {key: value for key, value in spec.items() if key not in ("priority", "preemptionPolicy")}
    return {key: value for key, value in spec.items() if key in patched_keys(raw)}


def patched_keys(raw: Json) -> set[str]:
    """The fields of the spec once it is patched."""
    return set(patched(raw, list(mutated(raw).operations))["spec"])


def test_both_webhooks_say_the_same_so_that_people_read_it_once() -> None:
    """The API server drops a warning that it has shown already."""
    raw = admitted(half(envFrom=[{"secretRef": {"name": "keys"}}]))

    first = mutated(raw)
    second = validate(review(patched(raw, list(first.operations))), POLICY)

    assert first.warnings == second.warnings
    assert first.warnings == (
        "spec.containers[0].envFrom[0]: it may set variables that change the isolation of cards, got "
        '"Secret keys"; admitted: admission does not see what it sets',
    )


@given(
    st.lists(st.sampled_from(sorted(PODS)), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from((*SETTABLE, *FIXED)), st.sampled_from(["enforce", "warn", "off"])),
    st.sampled_from(["enforce", "observe"]),
    st.booleans(),
)
def test_each_violation_refuses_or_warns_or_is_off_and_is_in_one_place_only(
    broken: list[str], modes: dict[str, str], mode: Any, exempt: bool
) -> None:
    policy = replace(POLICY, rules=modes, mode=mode)
    found = [each for rule in broken for each in violations_of(PODS[rule], policy)]

    refusing, warned = split_by_mode(found, policy, exempt)

    how = {each.rule: effective_mode(each.rule, policy, exempt) for each in found}
    assert list(refusing) == [each for each in found if how[each.rule] == "enforce"]
    assert list(warned) == [each for each in found if how[each.rule] in ("warn", "observe", "exempt")]
    assert all(how[each.rule] != "off" or modes[each.rule] == "off" for each in found)
    assert not (mode == "observe" and refusing)
    assert not any(each.rule in SETTABLE for each in refusing if exempt)


# who is exempt

EXEMPTING = replace(POLICY, exempt=frozenset((RUNNER, "gpu-admins")))


@pytest.mark.parametrize(
    "who", [by(RUNNER), by("someone", "developers", "gpu-admins")], ids=["user", "group"]
)
def test_an_exempt_user_is_warned_and_the_pod_governed_like_any_other(who: dict[str, Any]) -> None:
    answer = mutated(admitted(half(), hostPID=True), policy=EXEMPTING, **who)

    assert (answer.verdict, answer.rules) == ("governed", (("host-pid", "exempt"),))
    assert answer.operations == mutated(admitted(half()), policy=EXEMPTING).operations
    assert answer.warnings == (
        "spec.hostPID: it exposes the processes of other tenants of a card; admitted "
        "(you are exempt from this rule)",
    )


def test_others_are_not_exempt() -> None:
    for who in (by("someone", "developers"), by("system:serviceaccount:ci:other"), {"userInfo": None}):
        assert mutated(admitted(half(), hostPID=True), policy=EXEMPTING, **who).verdict == "refused"


FORGED = {"forged-annotation", "forged-gate", "forged-label"}  # which /mutate removes


@pytest.mark.parametrize("rule", sorted(set(PODS) & set(FIXED) - FORGED))
def test_no_user_is_exempt_from_what_keeps_the_accounts_right(rule: str) -> None:
    answer = mutated(PODS[rule], policy=EXEMPTING, **by(RUNNER))

    assert (answer.verdict, answer.rules) == ("refused", ((rule, "enforce"),))


@pytest.mark.parametrize("rule", sorted(FORGED))
def test_no_user_is_exempt_from_the_removal_of_marks(rule: str) -> None:
    answer = mutated(PODS[rule], policy=EXEMPTING, **by(RUNNER))

    assert (answer.verdict, answer.rules) == ("governed", ((rule, "warn"),))
    assert validate(review(PODS[rule], **by(RUNNER)), EXEMPTING).refusal


def test_an_exempt_user_may_also_attach_a_debugger_that_sees_cards() -> None:
    before = governed(admitted(half()))
    after = copy.deepcopy(before)
    after["spec"]["ephemeralContainers"] = [plain("debug", env=SEES_ALL)]
    update: dict[str, Any] = {
        "operation": "UPDATE",
        "subResource": "ephemeralcontainers",
        "oldObject": before,
    }

    answer = validate(review(after, **update, **by(RUNNER)), EXEMPTING)

    assert (answer.refusal, answer.rules) == ("", (("ephemeral-sees-cards", "exempt"),))


# observing


@pytest.mark.parametrize("rule", sorted(PODS))
def test_while_observing_nothing_is_refused_and_no_pod_is_changed(rule: str) -> None:
    raw = PODS[rule]

    answer = mutated(raw, policy=OBSERVING)

    assert (answer.refusal, answer.operations) == ("", ())
    assert answer.rules
    assert not [each for each in answer.warnings if "replaced" in each.replace("would be replaced", "")]
    assert validate(review(raw), OBSERVING).refusal == ""


@pytest.mark.parametrize("rule", sorted(PODS))
def test_where_pods_are_metered_alone_nothing_is_said_of_them(rule: str) -> None:
    metering = replace(POLICY, mode="meter")

    assert mutated(PODS[rule], policy=metering) == NOTHING_TO_DO
    assert validate(review(PODS[rule]), metering) == NOTHING_TO_DO


def test_while_observing_an_unreadable_request_gets_a_warning_that_its_charge_is_assumed() -> None:
    answer = mutated(admitted(container(gpu_percent="150"), schedulerName="volcano"), policy=OBSERVING)

    assert answer.warnings[0] == (
        "The GPU request of this pod cannot be read; what it holds is charged as far as it is known."
    )
    assert answer.warnings[1].startswith(
        "Observe mode: this would be refused: spec.containers[0].resources.limits"
    )
    assert answer.warnings[2].endswith("; would be replaced")


def test_while_observing_a_users_class_stays_with_a_warning_of_what_enforcing_would_do() -> None:
    raw = with_class(admitted(half(), schedulerName="bursar-scheduler"), "urgent", 7)

    answer = mutated(raw, policy=OBSERVING)

    assert patched(raw, list(answer.operations))["spec"]["priorityClassName"] == "urgent"
    assert answer.warnings == (
        "Observe mode: the pod is not changed, so its containers see no cards of bursar.dev/ resources.",
        'spec.priorityClassName: its value is above the class of pods in budget, got "urgent" of value 7; '
        "would be replaced by the highest class that the namespace's budget allows",
    )


REFUSED, ADMITTED = "this would be refused", "this pod would"


@pytest.mark.parametrize("on_exhausted", ["deny", "hold", "deprioritize"])
@pytest.mark.parametrize("rule", ["", *sorted(PODS)])
def test_no_pod_reads_both_that_it_would_be_refused_and_what_it_would_get(
    rule: str, on_exhausted: str
) -> None:
    spent = Standing("OVER_BUDGET", 1_000, 800, on_exhausted=on_exhausted)
    raw = PODS[rule] if rule else admitted(half())

    told = mutated(raw, spent, OBSERVING).warnings

    verdicts = {word for word in (REFUSED, ADMITTED) if any(word in each for each in told)}
    is_refused = on_exhausted == "deny" or "observe" in dict(mutated(raw, policy=OBSERVING).rules).values()
    assert verdicts == {REFUSED if is_refused else ADMITTED}, told


# a budget that refuses

DENYING = Standing("OVER_BUDGET", 1_000, 800, on_exhausted="deny", until_ms=1_796_083_200_000)


def test_a_budget_that_is_used_up_and_denies_refuses_until_its_next_period() -> None:
    answer = mutated(admitted(half()), DENYING)

    assert (answer.verdict, answer.rules, answer.operations) == (
        "refused",
        (("budget-exhausted", "enforce"),),
        (),
    )
    assert answer.refusal == (
        "exceeded quota: Namespace team-a has used its GPU budget (onExhausted: deny). New GPU pods are "
        "refused until the budget is raised or the next period begins (2026-12-01 00:00 UTC). Ask your "
        "budget administrator: kubectl bursar budget has names and a text."
    )


@pytest.mark.parametrize(
    ("remaining", "figures"),
    [(0, "0.00 GPU-hours are left"), (-1_800_000_000, "It is 0.50 GPU-hours over")],
)
def test_the_refusal_of_a_budget_that_denies_has_what_is_left_and_what_was_asked(
    remaining: int, figures: str
) -> None:
    answer = mutated(admitted(half()), replace(DENYING, remaining=remaining))

    assert f"(onExhausted: deny). {figures}; this pod asks for 0.5 card" in answer.refusal


def test_a_budget_without_a_next_period_refuses_until_it_is_raised() -> None:
    answer = mutated(admitted(half()), replace(DENYING, until_ms=None))

    assert answer.refusal == (
        "exceeded quota: Namespace team-a has used its GPU budget (onExhausted: deny). New GPU pods are "
        "refused until the budget is raised. Ask your budget administrator: kubectl bursar budget has names"
        " and a text."
    )


NO_MORE = replace(POLICY, caps=Caps(Cap(0, 0)))


@pytest.mark.parametrize(
    ("raw", "standing", "policy", "may_try"),
    [
        (admitted(half()), DENYING, POLICY, True),
        (admitted(half()), replace(DENYING, by_estimate=True), POLICY, True),
        (admitted(half()), IN_BUDGET, NO_MORE, True),
        (admitted(half()), DENYING, NO_MORE, True),
        (admitted(container(gpu_count="3")), IN_BUDGET, replace(POLICY, caps=Caps(Cap(2_500))), False),
        (admitted(half(), hostPID=True), DENYING, POLICY, False),
        (admitted(container(gpu_percent="150")), DENYING, POLICY, False),
    ],
)
def test_what_time_heals_alone_is_tried_again_by_programs_that_create_pods(
    raw: Json, standing: Standing, policy: AdmissionPolicy, may_try: bool
) -> None:
    """They ask for 403, reason Forbidden, and a part of the message, which begins with the API server's
    'admission webhook ... denied the request: '."""
    refusal = mutated(raw, standing, policy).refusal

    words = {
        "argo-workflows util/errors/errors.go": "exceeded quota",
        "tektoncd/pipeline pkg/reconciler/taskrun/taskrun.go": "exceeded quota",
        "flyte flytepropeller backoff/handler.go": "exceeded quota",
        "airflow kubernetes_executor.py": "exceeded quota",
        "actions-runner-controller ephemeralrunner_controller.go": "exceeded quota:",
    }
    assert {program: word in refusal for program, word in words.items()} == dict.fromkeys(words, may_try)
    assert refusal.startswith("exceeded quota: ") == may_try


def test_a_burst_cannot_run_past_a_budget_that_denies() -> None:
    answer = mutated(admitted(half()), replace(DENYING, by_estimate=True))

    assert "pods admitted in the last few seconds will use the remaining GPU budget" in answer.refusal


@pytest.mark.parametrize("word", ["IN_BUDGET", "UNLIMITED", "UNKNOWN"])
def test_a_budget_denies_only_what_is_over_it(word: Any) -> None:
    assert mutated(admitted(half()), replace(DENYING, status=word)).refusal == ""


def test_a_budget_that_denies_leaves_pods_without_a_gpu_alone() -> None:
    assert mutated(admitted(plain()), DENYING) == AdmissionAnswer("passed")


def test_in_observe_mode_a_budget_denies_no_pod_and_says_so() -> None:
    answer = mutated(admitted(half()), DENYING, OBSERVING)

    assert (answer.verdict, answer.rules) == ("observed", (("budget-exhausted", "observe"),))
    assert any(
        each.startswith("Observe mode: this would be refused: Namespace team-a has used its GPU budget")
        for each in answer.warnings
    )


def test_not_even_an_exempt_user_runs_past_a_budget_that_denies() -> None:
    assert mutated(admitted(half()), DENYING, EXEMPTING, **by(RUNNER)).verdict == "refused"


# ephemeral containers


def ephemeral(before: Json, *added: Json) -> dict[str, Any]:
    """The review of an update that adds ephemeral containers, as arguments of `mutated`."""
    after = copy.deepcopy(before)
    after["spec"].setdefault("ephemeralContainers", []).extend(added)
    return {"raw": after, "operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": before}


def test_an_ephemeral_container_of_an_image_made_for_cuda_sees_no_card() -> None:
    old = governed(admitted(half(), ephemeralContainers=[plain("earlier")]))
    update = ephemeral(old, plain("debug"), plain("quiet", env=[{"name": "NVIDIA_VISIBLE_DEVICES"}]))

    answer = mutated(**update)
    after = patched(update["raw"], list(answer.operations))

    assert [each.get("env") for each in after["spec"]["ephemeralContainers"]] == [
        None,
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES"}],
    ]
    assert mutated(**(update | {"raw": after})) == AdmissionAnswer("passed")


def test_what_an_ephemeral_container_says_itself_is_for_the_rule_to_judge() -> None:
    update = ephemeral(governed(admitted(half())), plain("debug", env=SEES_ALL))

    assert mutated(**update) == AdmissionAnswer("passed")
    raw = update.pop("raw")
    assert validate(review(raw, **update), POLICY).verdict == "refused"


def test_a_privileged_debugger_is_refused_and_an_existing_one_forbids_no_other() -> None:
    rooted = plain("root", securityContext={"privileged": True})
    fresh = ephemeral(governed(admitted(half())), rooted)
    later = ephemeral(governed(admitted(half(), ephemeralContainers=[rooted])), plain("other"))

    answers = [validate(review(each.pop("raw"), **each), POLICY) for each in (fresh, later)]

    assert [each.rules for each in answers] == [(("privileged", "enforce"),), ()]


# caps

TWO_AND_A_HALF = Caps(Cap(2_500, 1_500), "lab", Cap(2_000))


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({"gpu_percent": "100"}, []),
        ({"gpu_memory": "500000"}, []),  # there may be a card that large
        ({"gpu_count": "2"}, [("the namespace", "maxGPUsPerPod", "2", "1.5")]),
        (
            {"gpu_count": "3"},
            [
                ("the namespace", "maxGPUsPerPod", "3", "1.5"),
                ("the namespace", "maxGPUs", "3", "2.5"),
                ("group lab", "maxGPUs", "3", "2"),
            ],
        ),
    ],
)
def test_a_pod_that_fits_below_no_cap_is_refused_and_any_other_is_not(
    limits: Json, refused: list[tuple[str, str, str, str]]
) -> None:
    answer = mutated(admitted(container(**limits)), policy=replace(POLICY, caps=TWO_AND_A_HALF))

    assert answer.refusal.count("spec.containers: the budget of") == len(refused)
    for whose, field, needs, most in refused:
        problem = f"the budget of {whose} allows no pod so much at one time ({field})"
        assert f'{problem}, got "{needs} GPUs"; allowed: at most {most};' in answer.refusal
    assert answer.rules == ((("above-cap", "enforce"),) if refused else ())


def test_in_observe_mode_a_cap_refuses_no_pod_and_says_so() -> None:
    answer = mutated(admitted(container(gpu_count="3")), policy=replace(OBSERVING, caps=Caps(Cap(2_500))))

    assert (answer.verdict, answer.rules) == ("observed", (("above-cap", "observe"),))


def test_a_cap_of_nothing_says_that_no_new_pod_is_taken() -> None:
    answer = mutated(admitted(container(gpu_count="1")), policy=replace(POLICY, caps=Caps(Cap(0))))

    assert answer.refusal == (
        "exceeded quota: The budget of the namespace takes no new GPU pods (maxGPUs: 0): running ones go on."
        " Ask your budget administrator."
    )
