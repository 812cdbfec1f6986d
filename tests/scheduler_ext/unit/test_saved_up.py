"""Pods that were created in budget and get their cards once their namespace is over it, as behind a gate of
their own: they go by the standing of now, and not by the class that they were created with."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from msgspec import structs

from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.model.standing_table import decode, standings_at
from scheduler_ext.preemption.cooldown import Cooldown, Eviction
from scheduler_ext.preemption.plan import PreemptibleNodes
from scheduler_ext.waiting.order import queue_key
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET, stage, unscheduled
from tests.scheduler_ext.preempting_worlds import begins, debtors
from tests.scheduler_ext.preemption_worlds import (
    DEMOTED,
    IN,
    NOW_MS,
    OVER,
    at,
    cards,
    chosen,
    names_of,
    of,
    standing,
)
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import node, on, percent, read, waiting
from tests.support.simulated_timekeeper import entry, standings
from tests.worlds import Json, card

CREATED, SAVED_UP = (
    {"annotations": {"bursar.dev/standing": text}} for text in ("IN_BUDGET", "IN_BUDGET OVER_BUDGET")
)


def there(name: str, annotations: Json, card: int = 0, namespace: str = "lab", **fields: Any) -> Json:
    """A pod on a card of node n, created with the class of pods in budget."""
    raw = percent(60, name, **fields)
    raw["metadata"]["annotations"] = {**annotations["annotations"]}
    return of(on(raw, "n", f"GPU-{card}"), namespace)


def said(lower: int | None = -5, **namespaces: NamespaceStanding) -> NamespaceStandings:
    return replace(standing(**{"team_a": IN, **namespaces}), lower=lower)


@pytest.mark.parametrize(
    ("annotations", "who", "leaves"),
    [
        (SAVED_UP, said(lab=DEMOTED), True),
        (CREATED, said(lab=DEMOTED), False),  # it runs on, in its class
        (SAVED_UP, said(lab=IN), False),  # back in budget
        (SAVED_UP, said(lab=replace(DEMOTED, protected=frozenset({"uid-saved"}))), False),
        (SAVED_UP, said(lab=DEMOTED, lower=None), False),
        (SAVED_UP, said(lab=replace(DEMOTED, lower=-5), lower=None), True),
        (SAVED_UP, said(lab=replace(DEMOTED, lower=0)), False),  # its pods keep their class
        (SAVED_UP, said(lab=DEMOTED, team_a=DEMOTED), False),
        (SAVED_UP, said(lab=replace(DEMOTED, on_exhausted="deny")), False),
    ],
)
def test_it_leaves_for_a_pod_that_is_above_the_class_of_pods_over_budget(
    annotations: Json, who: NamespaceStandings, leaves: bool
) -> None:
    snapshot = cards(1, there("saved", annotations, priority=0))
    nodes = PreemptibleNodes()
    nodes.follow(snapshot)

    choice = chosen(read(percent(60, "w", priority=0)), snapshot, at(snapshot, who))

    assert names_of(choice) == (["saved"] if leaves else None)
    assert chosen(read(percent(60, "w", priority=-5)), snapshot, at(snapshot, who)) is None
    if who.of("team-a") == IN and not who.of("lab").protected:
        assert nodes.worth(read(percent(60, "w", priority=0)), who) == (["n"] if leaves else [])
    assert nodes.worth(read(percent(60, "w", priority=-5)), who) == []


def test_it_leaves_before_one_that_got_its_cards_in_budget() -> None:
    snapshot = cards(2, there("honest", CREATED, priority=0), there("saved", SAVED_UP, 1, priority=0))
    context = at(snapshot, said(lab=DEMOTED))

    assert names_of(chosen(read(percent(60, "w", priority=5)), snapshot, context)) == ["saved"]


def test_none_is_evicted_in_return() -> None:
    snapshot = cards(1, there("saved", SAVED_UP, priority=0))
    back = Cooldown((Eviction("uid-e", "", "team-a", "elsewhere", "uid-saved", "lab", NOW_MS - 1_000),))
    context = at(snapshot, said(lab=DEMOTED))

    assert chosen(read(percent(60, "w", priority=0)), snapshot, replace(context, cooldown=back)) is None


def test_the_preemptor_says_that_it_leaves_for_its_standing() -> None:
    saved = debtors("a", 60, "GPU-0")
    saved["metadata"]["annotations"] = {**saved["metadata"]["annotations"], **SAVED_UP["annotations"]}
    who = NamespaceStandings(
        {"team-a": IN_BUDGET, "team-b": replace(DEBTOR, on_exhausted="deprioritize")}, lower=-5
    )
    world = stage(node("n", card(0)), saved, unscheduled("p", 50), standings=who)

    begins(world, "p")

    assert world.asked() == ["a"]
    assert world.left == [("a", "p", "reclaim", "evicted")]
    (text,) = world.warned
    assert text.endswith("is over its GPU budget; its GPUs go to a pod of another namespace.")


def test_among_pods_over_budget_none_goes_first_for_the_class_that_it_was_created_with() -> None:
    who = said(lab=DEMOTED, other=OVER)
    older = read(of(percent(60, "older", priority=-5), "other"))
    saved = structs.replace(read(of(percent(60, "saved", priority=0), "lab")), asked_ms=older.asked_ms + 1)
    lowest = read(of(percent(60, "lowest", priority=-9), "lab"))
    paid = read(percent(60, "paid", priority=-9))

    order = sorted([lowest, saved, older, paid], key=lambda each: queue_key(each, "", who))

    assert [each.name for each in order] == ["paid", "older", "saved", "lowest"]


def test_the_table_says_the_priority_of_pods_over_budget() -> None:
    own = {"overBudget": {"name": "tier-low", "value": 3, "preemptionPolicy": "Never"}}
    document = standings(team_a=entry("OVER_BUDGET", priorityClasses=own), team_b=entry("OVER_BUDGET"))
    who = standings_at(decode(orjson.dumps(document), "", 0), 0, 30_000)

    assert who.lower == -5
    waiting = {name: read(of(percent(60, "w", priority=9), name)) for name in ("team-a", "team-b")}
    governed = {name: structs.replace(pod, governed=True) for name, pod in waiting.items()}
    assert {name: who.priority_of(pod) for name, pod in governed.items()} == {"team-a": 3, "team-b": -5}


@pytest.mark.parametrize(
    ("word", "fields", "created", "written"),
    [
        ("OVER_BUDGET", {"onExhausted": "deprioritize"}, "IN_BUDGET", "IN_BUDGET OVER_BUDGET"),
        ("OVER_BUDGET", {"onExhausted": "reclaim"}, "UNKNOWN", "UNKNOWN OVER_BUDGET"),
        ("OVER_BUDGET", {"onExhausted": "deprioritize"}, "OVER_BUDGET", "OVER_BUDGET"),
        ("OVER_BUDGET", {"onExhausted": "deny", "spent": False}, "IN_BUDGET", "IN_BUDGET"),
        ("IN_BUDGET", {}, "IN_BUDGET", "IN_BUDGET"),
        ("OVER_BUDGET", {"onExhausted": "deprioritize", "mode": "observe"}, "IN_BUDGET", "IN_BUDGET"),
    ],
)
def test_its_binding_records_that_the_namespace_is_over(
    running: Stepped, word: str, fields: Json, created: str, written: str
) -> None:
    running.put_node(node("a"))
    running.says(standings(team_a=entry(word, **fields)))
    raw = waiting("p")
    raw["metadata"]["annotations"] = {"bursar.dev/standing": created}
    pod = running.put_pod(raw)
    assert running.filter(pod, "a")["NodeNames"] == ["a"]

    assert running.bind(pod, "a") == ""

    bound = running.api.pod("p")
    assert bound["metadata"]["annotations"]["bursar.dev/standing"] == written
    assert read(bound).is_saved_up == (written != created)
