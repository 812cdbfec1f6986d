"""What the webhook refused, demoted or held becomes a record with its reason; a dry run leaves none."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.process_metrics import of_this_process
from tests.webhook.unit.test_claims import CLAIMS, after, claiming
from tests.webhook.unit.test_templates import BAD, GOOD, workload
from tests.webhook.worlds import OBSERVING, POLICY, admitted, governed, half, review_of
from tests.worlds import Json, limits_of
from timekeeper.accounts.decisions.sentences import sentence
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.decisions import Decision
from timekeeper.core.wire import HeldFor, StandingWord
from webhook.server.app import create_calls
from webhook.server.reviewer import Reviewer
from webhook.standings import decode

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7c9f", "uid": "u", "controller": True}
METADATA: Json = {
    "generateName": "web-7c9f-",
    "labels": {"pod-template-hash": "7c9f"},
    "ownerReferences": [OWNER],
}


def decided(
    path: str,
    raw: Json,
    policy: AdmissionPolicy = POLICY,
    table: StandingsTable | None = None,
    **request: Any,
) -> list[Decision]:
    """What is recorded of one review."""
    found: list[Decision] = []
    metrics = of_this_process()
    admission = Reviewer(policy, lambda: table, lambda: "ca", lambda: 0, 30_000)
    calls = create_calls(admission, metrics, into([]), record=found.append)
    body = orjson.dumps(review_of(raw, **request))
    calls[path](body)
    return [replace(each, at_ms=0) for each in found]


def owned(raw: Json, **metadata: object) -> Json:
    """The pod of a Deployment, without a name."""
    merged = {**raw["metadata"], **METADATA, **metadata}
    merged["labels"] = {**raw["metadata"].get("labels", {}), **METADATA["labels"]}
    merged.pop("name", None) if "name" not in metadata else None
    return {**raw, "metadata": merged}


def test_a_refused_pod_is_recorded_under_the_prefix_of_its_name_and_its_deployment() -> None:
    wrong = owned(admitted(half(), half("other")) | {})
    wrong["spec"]["containers"][0]["resources"]["limits"]["bursar.dev/gpu-percent"] = "150"

    (found,) = decided("/mutate", wrong)

    assert (found.kind, found.namespace, found.owner) == ("refused", "team-a", "Deployment/web")
    assert (found.name, found.generate_name, found.uid) == ("", "web-7c9f-", "")
    assert found.reason[0].isupper()
    assert "150" in str(found.figures["message"])
    assert decided("/mutate", wrong, dryRun=True) == []


def test_a_pod_that_is_created_over_budget_is_recorded_with_its_class_name_and_uid() -> None:
    raw = owned(governed(admitted(half()), "OVER_BUDGET"), name="web-7c9f-x", uid="uid-x")

    (found,) = decided("/validate", raw)

    assert (found.kind, found.reason, found.name, found.uid) == (
        "demoted",
        "OverBudget",
        "web-7c9f-x",
        "uid-x",
    )
    assert found.figures["priorityClass"] == "gpu-lower-priority"
    assert found.owner == "Deployment/web"
    assert decided("/validate", raw, dryRun=True) == []


def test_a_pod_in_budget_and_a_pod_of_an_observed_namespace_leave_no_record() -> None:
    assert decided("/validate", governed(admitted(half()), "IN_BUDGET")) == []
    assert decided("/validate", governed(admitted(half()), "OVER_BUDGET", OBSERVING), OBSERVING) == []
    assert decided("/mutate", admitted(half())) == []


def test_a_pod_that_is_held_is_recorded_with_its_reason() -> None:
    raw = owned(governed(admitted(half()), "OVER_BUDGET", POLICY, "budget"), name="p", uid="uid-p")

    (found,) = decided("/validate", raw)

    assert (found.kind, found.reason, found.uid) == ("held", "OverBudget", "uid-p")


@pytest.mark.parametrize(
    ("word", "hold", "by_table", "reason", "said"),
    [
        ("OVER_BUDGET", "budget", "OVER_BUDGET", "OverBudget", "its namespace is over its GPU budget"),
        ("OVER_BUDGET", "budget", "IN_BUDGET", "WaitsForBudget", "does not pay its lookahead"),
        ("IN_BUDGET", "budget", "IN_BUDGET", "WaitsForTurn", "it must wait for its turn"),
        ("IN_BUDGET", "turn", "IN_BUDGET", "WaitsForTurn", "it must wait for its turn"),
        ("OVER_BUDGET", "", "OVER_BUDGET", "OverBudget", "its namespace was over its GPU budget"),
        ("OVER_BUDGET", "", "IN_BUDGET", "OverBudget", "pods admitted in the seconds before used the"),
    ],
)
def test_a_record_says_of_a_pod_in_budget_what_it_waits_for(
    word: StandingWord, hold: HeldFor, by_table: str, reason: str, said: str
) -> None:
    raw = owned(governed(admitted(half()), word, POLICY, hold), name="p", uid="uid-p")
    table = decode(orjson.dumps(standings(team_a=entry(by_table))), '"1"', 0)

    (found,) = decided("/validate", raw, table=table)

    assert (found.reason, said in sentence(found)) == (reason, True)


def test_a_record_says_of_a_pod_whose_claims_are_not_known_that_it_waits_for_these() -> None:
    raw = owned(after(claiming("later")), name="p", uid="uid-p")

    (found,) = decided("/validate", raw, CLAIMS)

    assert found.reason == "WaitsForClaims"
    assert sentence(found).endswith("bursar.dev/budget: it was not known what its claims ask for.")


def test_a_held_pod_that_another_scheduler_places_is_recorded_with_the_schedulers_name() -> None:
    policy = replace(POLICY, other_schedulers=frozenset(("volcano",)))
    whole = admitted(limits_of("main", nvidia_com__gpu="1"), schedulerName="volcano")
    theirs = owned(governed(whole, "IN_BUDGET", policy, "turn"), name="p", uid="uid-p")
    ours = owned(governed(admitted(half()), "IN_BUDGET", policy, "turn"), name="q", uid="uid-q")

    found = [*decided("/validate", theirs, policy), *decided("/validate", ours, policy)]

    assert [(each.kind, each.figures.get("schedulerName")) for each in found] == [
        ("held", "volcano"),
        ("held", None),
    ]


def by_lab(**fields: Any) -> StandingsTable:
    """The table in which team-a is over budget and the account of its group decides."""
    its = entry("OVER_BUDGET", group="lab", groupDecides=True, **fields)
    return decode(orjson.dumps(standings(team_a=its)), '"1"', 0)


def test_a_decision_by_the_account_of_the_group_names_the_groups_budget() -> None:
    over = owned(governed(admitted(half()), "OVER_BUDGET"), name="p", uid="uid-p")
    held = owned(governed(admitted(half()), "OVER_BUDGET", POLICY, "budget"), name="p", uid="uid-p")
    own = decode(orjson.dumps(standings(team_a=entry("OVER_BUDGET", group="lab"))), '"1"', 0)

    (demoted,) = decided("/validate", over, table=by_lab())
    (waits,) = decided("/validate", held, table=by_lab())
    (refused,) = decided("/mutate", owned(admitted(half())), table=by_lab(onExhausted="deny"))
    (by_own,) = decided("/validate", over, table=own)

    assert [(each.kind, each.budget) for each in (demoted, waits, refused, by_own)] == [
        ("demoted", "_group.lab"),
        ("held", "_group.lab"),
        ("refused", "_group.lab"),
        ("demoted", ""),
    ]


def test_tries_of_one_owner_whose_figure_grows_are_one_record() -> None:
    def tried(remaining: int) -> Decision:
        spent = standings(team_a=entry("OVER_BUDGET", onExhausted="deny", remaining=remaining))
        (refused,) = decided("/mutate", owned(admitted(half())), table=decode(orjson.dumps(spent), '"1"', 0))
        return refused

    first, later = tried(-3_600_000), tried(-7_200_000_000)

    assert first == later
    assert "has used its GPU budget (onExhausted: deny). New GPU pods" in str(first.figures["message"])


def test_what_the_namespaces_own_budget_decides_does_not_name_the_groups() -> None:
    turn = owned(governed(admitted(half()), "OVER_BUDGET", POLICY, "turn"), name="p", uid="uid-p")
    queued = owned(governed(admitted(half()), "IN_BUDGET", POLICY, "budget"), name="p", uid="uid-p")
    wrong = owned(admitted(half()))
    wrong["spec"]["containers"][0]["resources"]["limits"]["bursar.dev/gpu-percent"] = "150"

    found = [*decided("/validate", turn, table=by_lab()), *decided("/validate", queued, table=by_lab())]
    found += decided("/mutate", wrong, table=by_lab())

    assert [(each.kind, each.reason, each.budget) for each in found] == [
        ("held", "WaitsForTurn", ""),
        ("held", "WaitsForTurn", ""),
        ("refused", found[2].reason, ""),
    ]


def of_template(raw: Json, **request: Any) -> list[Decision]:
    """What is recorded of one review of a workload in a template of which a pod asks for 1.5 cards."""
    group, _, version = raw["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": raw["kind"]}
    return decided("/templates", raw, kind=kind, namespace="team-a", **request)


def test_a_refused_template_is_recorded_under_its_workload_and_a_replica_set_under_its_deployment() -> None:
    (found,) = of_template(workload("CronJob", BAD, name="nightly"))

    assert (found.kind, found.namespace, found.owner) == ("refused", "team-a", "CronJob/nightly")
    assert (found.name, found.generate_name, found.uid) == ("", "", "")
    assert "jobTemplate" in str(found.figures["message"])
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": True}
    made = workload("ReplicaSet", BAD, name="web-7c9f")
    made["metadata"]["ownerReferences"] = [owner]
    assert [each.owner for each in of_template(made)] == ["Deployment/web"]
    assert of_template(made, dryRun=True) == []
    notebook = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "name": "nb",
        "uid": "u",
        "controller": True,
    }
    made = workload("StatefulSet", BAD, name="nb")
    made["metadata"]["ownerReferences"] = [notebook, {**owner, "kind": "Team", "controller": False}]
    assert [each.owner for each in of_template(made)] == ["StatefulSet/nb", "Notebook/nb", "Team/web"]
    made["metadata"]["ownerReferences"] = [{**notebook, "name": f"nb-{at}"} for at in range(9)]
    assert len(of_template(made)) == 5
    assert of_template(workload("Deployment", GOOD)) == []
