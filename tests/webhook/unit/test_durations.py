"""How long pods mean to run: who must say it, and what a Job says for its pods."""

import copy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.unit.test_templates import template, workload
from tests.webhook.worlds import (
    POLICY,
    admitted,
    half,
    mutated,
    object_review,
    patched,
    review,
    with_annotations,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import Standing
from timekeeper.core.admission.rules.pod_rules import duration_violations
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import Budget, ineffective_fields
from timekeeper.core.budgets.reader import read_entry
from webhook.admission.validation import validate
from webhook.admission.workloads import judge, with_jobs_duration
from webhook.standings import decode
from webhook.wire.pod_review import AdmissionAnswer

REQUIRING = replace(POLICY, requires_duration=True)
HOUR = {"activeDeadlineSeconds": 3_600}


def with_own(raw: Json, seconds: object = 7_200) -> Json:
    """The Job or CronJob with a deadline of its own."""
    raw = copy.deepcopy(raw)
    spec = raw["spec"]["jobTemplate"]["spec"] if raw["kind"] == "CronJob" else raw["spec"]
    spec["activeDeadlineSeconds"] = seconds
    return raw


def copied(raw: Json, policy: Any = REQUIRING) -> AdmissionAnswer:
    """The answer of /jobs."""
    return with_jobs_duration(object_review(raw), policy)


def test_the_table_of_standings_says_where_a_pod_must_declare_its_duration() -> None:
    document = standings(team_a=entry(requireDuration=True, reserve="declared"))
    table = decode(orjson.dumps(document), "e", 0)

    policy = effective_policy(POLICY, table, namespace="team-a")
    assert (policy.requires_duration, policy.reserves_declared) == (True, True)
    assert [each.rule for each in duration_violations(admitted(half()), policy)] == ["no-duration"]
    assert not list(duration_violations(admitted(half(), **HOUR), policy))
    other = effective_policy(POLICY, table, namespace="team-b")
    assert not list(duration_violations(admitted(half()), other))


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_a_template_without_a_duration_is_refused_where_it_is_written(kind: str) -> None:
    answer = judge(object_review(workload(kind, template(half()))), REQUIRING)

    at = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    assert f"{at}.spec.activeDeadlineSeconds: the budget of the namespace asks" in answer.refusal
    assert not judge(object_review(workload(kind, template(half(), **HOUR))), REQUIRING).refusal
    assert not judge(object_review(workload(kind, template(half()))), POLICY).refusal


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_the_deadline_of_a_job_counts_for_its_template(kind: str) -> None:
    assert not judge(object_review(with_own(workload(kind, template(half())))), REQUIRING).refusal


@pytest.mark.parametrize(
    "policy", [REQUIRING, replace(POLICY, reserves_declared=True)], ids=["required", "reserved"]
)
def test_the_deadline_of_a_new_job_is_copied_into_its_template(policy: Any) -> None:
    job = with_own(workload("Job", template(half())))

    after = patched(job, list(copied(job, policy).operations))

    assert after["spec"]["template"]["spec"] == job["spec"]["template"]["spec"] | {
        "activeDeadlineSeconds": 7_200
    }
    assert copied(job, policy).warnings == (
        "activeDeadlineSeconds is copied to the pods, so they count in ResourceQuotas of the scope"
        " Terminating.",
    )
    assert not copied(after, policy).operations
    assert not judge(object_review(after), policy).refusal


@pytest.mark.parametrize(
    ("job", "policy"),
    [
        (with_own(workload("Job", template(half(), **HOUR))), REQUIRING),
        (with_own(workload("Job", template({"name": "main", "image": "a"}))), REQUIRING),
        (workload("Job", template(half())), REQUIRING),
        (with_own(workload("CronJob", template(half()))), REQUIRING),
        (with_own(workload("Job", template(half()))), POLICY),
        (with_own(workload("Job", template(half()))), replace(REQUIRING, mode="observe")),
    ],
    ids=["has-its-own", "no-gpu", "no-deadline", "cronjob", "not-declared", "observe"],
)
def test_nothing_else_is_copied(job: Json, policy: Any) -> None:
    assert copied(job, policy) == AdmissionAnswer("passed")


# the gate where pods reserve their declared time

RESERVING = replace(POLICY, reserves_declared=True)
IN_BUDGET = Standing("IN_BUDGET", hold="budget")


def created(raw: Json, policy: Any = RESERVING, standing: Standing = IN_BUDGET) -> Json:
    """The pod after /mutate."""
    answer = mutated(raw, standing, policy)
    assert not answer.refusal
    return patched(raw, list(answer.operations))


def noted(raw: Json) -> str | None:
    """What the annotation says."""
    value = raw["metadata"].get("annotations", {}).get("bursar.dev/declared")
    return None if value is None else str(value)


def test_every_pod_waits_behind_the_gate_with_its_time_noted() -> None:
    after = created(admitted(half(), **HOUR))

    assert after["spec"]["schedulingGates"] == [{"name": "bursar.dev/budget"}]
    assert (noted(after), after["metadata"]["annotations"]["bursar.dev/held"]) == ("3600", "budget")
    assert after["spec"]["priorityClassName"] == "gpu-default-priority"
    assert created(after) == after


@pytest.mark.parametrize(
    ("raw", "policy", "standing"),
    [
        (admitted(half()), RESERVING, IN_BUDGET),
        (admitted(half(), **HOUR), POLICY, IN_BUDGET),
        (admitted(half(), **HOUR), RESERVING, Standing("UNKNOWN")),
    ],
    ids=["declares-none", "reserves-none", "unknown"],
)
def test_no_other_pod_gets_the_note_and_a_forged_one_is_removed(
    raw: Json, policy: Any, standing: Standing
) -> None:
    forged = with_annotations(copy.deepcopy(raw), {"bursar.dev/declared": "60"})

    assert noted(created(raw, policy, standing)) is None
    assert noted(created(forged, policy, standing)) is None


def test_a_deadline_that_another_webhook_changed_is_refused_by_validate() -> None:
    after = created(admitted(half(), **HOUR))
    assert not validate(review(after), RESERVING).refusal

    after["spec"]["activeDeadlineSeconds"] = 60

    answer = validate(review(after), RESERVING)
    assert "metadata/annotations/bursar.dev~1declared" in answer.refusal


def test_the_budget_makes_the_table_say_so() -> None:
    """From the entry's text to what the webhook reads."""
    value = read_entry("team-a", "gpuHours: 1\nreserve: declared\nrequireDuration: true\novertime: evict")

    assert isinstance(value, Budget)
    assert (value.reserve, value.require_duration, value.overtime) == ("declared", True, "evict")
    assert isinstance(read_entry("team-a", "gpuHours: 1\nrequireDuration: yes"), EntryError)
    assert ineffective_fields(value) == ()
    (said,) = ineffective_fields(Budget(amount=1, overtime="evict"))
    assert said == "overtime: it has no effect without reserve: declared"
