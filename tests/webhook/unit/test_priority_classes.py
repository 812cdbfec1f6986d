"""Whose priority class a GPU pod has: an entry names its own ones, or leaves the user's."""

import itertools
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.worlds import (
    POLICY,
    admitted,
    half,
    mutated,
    patched,
    review,
    with_annotations,
    with_class,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Standing
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.budgets.reader import ParsedBudgets, read, read_entry
from webhook.admission import budgets
from webhook.admission.validation import validate
from webhook.dryrun.judge.assumed_cluster import table_of
from webhook.server.reviewer import Reviewer
from webhook.standings import decode

TIER = {"name": "tier-gold", "value": 50, "preemptionPolicy": "Never"}
LOW = {"name": "tier-low", "value": 5, "preemptionPolicy": "Never"}
SPENT, PAID = Standing("OVER_BUDGET"), Standing("IN_BUDGET")


def policy_of(**fields: Any) -> AdmissionPolicy:
    """The policy of team-a by a table of standings whose entry has these fields."""
    document = standings(team_a=entry(**fields))
    return effective_policy(POLICY, decode(orjson.dumps(document), "e", 0), namespace="team-a")


OWN = policy_of(priorityClasses={"inBudget": TIER, "overBudget": LOW})
KEEP = policy_of(priorityClasses={"inBudget": TIER, "overBudget": TIER, "keep": True})


def stored(raw: Json, standing: Standing, policy: AdmissionPolicy) -> Json:
    """The pod after /mutate."""
    answer = mutated(raw, standing, policy)
    assert not answer.refusal
    return patched(raw, list(answer.operations))


def class_of(raw: Json) -> object:
    return raw["spec"].get("priorityClassName")


@pytest.mark.parametrize(
    ("theirs", "of_own", "of_own_over", "of_keep"),
    [
        (("", 0), "tier-gold", "tier-low", None),
        (("batch", -9), "batch", "batch", "batch"),
        (("batch", 5), "batch", "batch", "batch"),
        (("batch", 50), "batch", "tier-low", "batch"),
        (("gpu-default-priority", 0), "gpu-default-priority", "gpu-default-priority", "gpu-default-priority"),
        (("tier-gold", 50), "tier-gold", "tier-low", "tier-gold"),
        (("urgent", 51), "tier-gold", "tier-low", "tier-gold"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_pod_gets_the_classes_of_its_entry_or_keeps_its_own_up_to_the_one_in_budget(
    theirs: tuple[str, int], of_own: str, of_own_over: str, of_keep: str | None
) -> None:
    raw = with_class(admitted(half()), *theirs) if theirs[0] else admitted(half())

    after = [stored(raw, *given) for given in itertools.product((PAID, SPENT), (OWN, KEEP))]

    assert [class_of(pod) for pod in after] == [of_own, of_keep, of_own_over, of_keep]


@pytest.mark.parametrize("policy", [OWN, KEEP], ids=["own", "keep"])
@pytest.mark.parametrize("standing", [PAID, SPENT], ids=["in-budget", "over-budget"])
@pytest.mark.parametrize("theirs", [None, ("batch", 7), ("gpu-default-priority", 0), ("urgent", 51)])
def test_a_second_call_changes_nothing_and_validate_takes_what_mutate_left(
    policy: AdmissionPolicy, standing: Standing, theirs: tuple[str, int] | None
) -> None:
    raw = with_class(admitted(half()), *theirs) if theirs else admitted(half())
    once = stored(raw, standing, policy)
    values = {"batch": 7, "gpu-default-priority": 0, "tier-gold": 50, "tier-low": 5}
    once["spec"]["priority"] = values.get(str(class_of(once)), 0)

    assert stored(once, standing, policy) == once
    assert validate(review(once), policy).refusal == ""


def test_a_class_above_the_one_in_budget_that_is_there_after_all_is_refused() -> None:
    once = stored(admitted(half()), SPENT, KEEP)

    assert ("not-governed", "enforce") in validate(review(with_class(once, "urgent", 51)), KEEP).rules
    assert validate(review(with_class(once, "tier-gold", 50)), KEEP).refusal == ""


def test_a_copy_with_marks_keeps_the_class_that_its_user_wrote() -> None:
    marks = {"bursar.dev/standing": "IN_BUDGET", "bursar.dev/devices": "{}"}
    raw = with_annotations(with_class(admitted(half()), "gpu-default-priority", 0), marks)
    keeping = policy_of(priorityClasses={**dict.fromkeys(("inBudget", "overBudget"), DEFAULT), "keep": True})

    assert class_of(stored(raw, SPENT, keeping)) == "gpu-default-priority"


DEFAULT = {"name": "gpu-default-priority", "value": 0, "preemptionPolicy": "PreemptLowerPriority"}


def test_what_a_user_reads_names_the_class_that_the_pod_gets() -> None:
    over = "Namespace team-a has used its GPU budget."

    assert mutated(admitted(half()), SPENT, OWN).warnings == (
        f"{over} This pod gets priority class tier-low.",
    )
    assert mutated(admitted(half()), SPENT, KEEP).warnings == (over,)
    absent = replace(KEEP, in_budget=PriorityClass("gone", None, absent=True))
    assert mutated(admitted(half()), PAID, absent).warnings == ()
    observing = replace(KEEP, mode="observe")
    assert mutated(admitted(half()), SPENT, observing).warnings[0].endswith("this pod would keep its class.")


# which entry says it

KEYS = (
    "",
    "inBudget: a",
    "overBudget: b",
    "inBudget: a, overBudget: b",
    "inBudget: a, overBudget: keep",
    "keep",
)


def parsed(own: str, group: str, cluster: str) -> ParsedBudgets:
    """The entries of team-a, its group and the cluster with these classes."""

    def field(classes: str, prefix: str) -> str:
        named = classes.replace(": a", f": {prefix}-a").replace(": b", f": {prefix}-b")
        return f"\npriorityClasses: {named if classes == 'keep' else '{' + named + '}'}" if classes else ""

    data = {
        "team-a": "gpuHours: 1\ngroup: lab" + field(own, "own"),
        "_group.lab": "gpuHours: 1" + field(group, "group"),
        "_settings": "mode: enforce" + field(cluster, "cluster"),
    }
    found = read({"bursar-budgets": data})
    assert not found.errors
    return found


@pytest.mark.parametrize(("own", "group", "cluster"), list(itertools.product(KEYS, repeat=3)))
def test_the_namespace_goes_before_its_group_and_that_before_the_cluster(
    own: str, group: str, cluster: str
) -> None:
    said = [(own, "own"), (group, "group"), (cluster, "cluster")]
    within = next((f"{by}-a" for text, by in said if "inBudget" in text), "gpu-default-priority")
    over = next((f"{by}-b" for text, by in said if "overBudget: b" in text), "gpu-lower-priority")
    keeps = "keep" in next((text for text, _ in said if text), "")
    right = (within, within if keeps else over, keeps)
    found = parsed(own, group, cluster)
    assert found.settings is not None

    assert found.settings.classes_of(found.budgets["team-a"], found.budgets["_group.lab"]) == right
    reviewed = effective_policy(POLICY, table_of(found), namespace="team-a")
    assert (reviewed.in_budget.name, reviewed.over_budget.name, reviewed.keeps_classes) == right


def test_a_mistake_in_an_entrys_classes_is_named() -> None:
    unknown = read_entry("team-a", "gpuHours: 1\npriorityClasses: {within: a}")
    word = read_entry("team-a", "gpuHours: 1\npriorityClasses: leave")

    assert isinstance(unknown, EntryError)
    assert (unknown.line, unknown.field) == (2, "priorityClasses.within")
    assert isinstance(word, EntryError)
    assert (word.field, word.problem) == ("priorityClasses", "not a mapping")
    assert isinstance(read_entry("_defaults", "gpuHours: 1\npriorityClasses: keep"), Budget)
    assert isinstance(read_entry("_settings", "priorityClasses: keep"), BudgetSettings)


# what the author of an entry reads

NEVER = {"name": "patient", "value": 2, "preemptionPolicy": "Never"}
BATCH = {"name": "batch", "value": 10, "preemptionPolicy": "PreemptLowerPriority"}
SMALL = {"name": "small", "value": -3, "preemptionPolicy": "PreemptLowerPriority"}
URGENT = {"name": "urgent", "value": 100, "preemptionPolicy": "PreemptLowerPriority"}


def warned(text: str, *classes: Json) -> list[str]:
    """The warnings about the entry of team-a, in a cluster with these classes."""
    document = standings({"classes": [DEFAULT, *classes]})
    table = decode(orjson.dumps(document), "e", 0)
    reviewer = Reviewer(POLICY, lambda: table, lambda: "ca", lambda: 0, 30_000)
    fresh = budgets.entries({"team-a": text})
    return list(budgets._kept(fresh, reviewer.preempting))


def test_an_entry_that_keeps_classes_by_which_kube_scheduler_preempts_is_warned_of() -> None:
    said = "team-a: priorityClasses: over budget kube-scheduler preempts by {}, too; not by a class with"
    said += " preemptionPolicy: Never."
    keep, bounded = (
        "gpuHours: 1\npriorityClasses: keep",
        "gpuHours: 1\npriorityClasses: {inBudget: batch, overBudget: keep}",
    )

    assert warned(keep, NEVER, BATCH, SMALL, URGENT) == [said.format("gpu-default-priority, small")]
    assert warned(bounded, NEVER, BATCH, SMALL, URGENT) == [said.format("batch, gpu-default-priority, small")]
    assert warned("gpuHours: 1\npriorityClasses: {inBudget: batch}", BATCH) == []
    assert warned("gpuHours: 1", BATCH) == []


def test_an_entry_whose_kept_classes_preempt_nobody_is_not_warned_of() -> None:
    table = decode(orjson.dumps(standings({"classes": [NEVER, URGENT]})), "e", 0)
    reviewer = Reviewer(POLICY, lambda: table, lambda: "ca", lambda: 0, 30_000)

    assert reviewer.preempting("") == []
    assert Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, 30_000).preempting("") == []
