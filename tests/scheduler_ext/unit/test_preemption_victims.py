"""For which pods others are evicted, and which: only debtors and lower priorities that must leave, on nodes
where the pod then runs."""

import copy
from typing import Any

import pytest

from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.plan import OUTRANKED
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET, stage, unscheduled
from tests.scheduler_ext.preempting_worlds import (
    CLAIMED,
    FRAGMENTED,
    OWED,
    OWES,
    SHARED,
    TWO,
    Json,
    begins,
    debtors,
    low,
    owed_cards,
    reservation,
)
from tests.scheduler_ext.reserving import NOW_MS, held, stamp
from tests.scheduler_ext.worlds import node, on, percent
from timekeeper.core.standings import Cap, Caps


def test_a_debtor_of_the_same_class_leaves_for_a_pod_that_is_in_budget() -> None:
    world = stage(*OWED, standings=OWES)
    begins(world, "p")

    assert world.asked() == ["a"]
    assert ("a", "Reclaimed") in world.told
    assert world.left == [("a", "p", "reclaim", "evicted")]
    (text,) = world.warned
    assert "/a: namespace " in text
    assert text.endswith("is over its GPU budget; its GPUs go to a pod of another namespace.")
    assert world.preemptor.counts.victims["reclaim", "evicted"] == 1


@pytest.mark.parametrize(
    "word",
    [
        NamespaceStanding("IN_BUDGET", "reclaim"),
        NamespaceStanding("OVER_BUDGET", "deprioritize"),
        NamespaceStanding("UNKNOWN", "reclaim"),
        NamespaceStanding("UNLIMITED", "reclaim"),
    ],
)
def test_no_other_pod_of_the_same_class_does(word: NamespaceStanding) -> None:
    world = stage(*OWED, standings=NamespaceStandings({"team-a": IN_BUDGET, "team-b": word}))
    begins(world, "p")

    assert world.api.made("patch") == []
    assert world.asked() == []


def test_a_namespace_back_in_budget_before_the_first_eviction_is_spared() -> None:
    world = stage(*OWED, standings=OWES, protected={"a", "b"})
    begins(world, "p")
    assert reservation(world, "p") == "n"

    world.standings = NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET})
    world.api.protected = set()
    world.step(times=50)

    assert world.going() == []
    assert reservation(world, "p") == ""
    assert ("p", "CardsLetGo") in world.told


def test_a_namespace_that_goes_over_budget_evicts_no_further_pod() -> None:
    world = stage(*FRAGMENTED, protected={"a", "b"})
    begins(world, "high")
    assert reservation(world, "high") == "n"

    world.standings = NamespaceStandings({"team-a": DEBTOR})
    world.api.protected = set()
    world.step(times=50)

    assert world.going() == []
    assert reservation(world, "high") == ""
    assert OUTRANKED in str(world.api.pod("high")["status"])


@pytest.mark.parametrize(
    "waiting",
    [
        unscheduled("high", 50, priority=9, preemptionPolicy="Never"),
        unscheduled("high", 50, priority=0),
        {**unscheduled("high", 50, priority=9), "status": {"phase": "Pending"}},
        unscheduled("high", 50, priority=9, schedulingGates=[{"name": "wait"}]),
        {
            **unscheduled("high", 50, priority=9),
            "spec": {**unscheduled("high", 50, priority=9)["spec"], "schedulerName": "other"},
        },
        {
            **unscheduled("high", 50, priority=9),
            "status": {**unscheduled("high", 50)["status"], "nominatedNodeName": "m"},
        },
        unscheduled("high", 20, priority=9),
    ],
    ids=["never", "equal", "untried", "gated", "another's", "nominated", "fits"],
)
def test_for_these_pods_no_victim_is_evicted(waiting: Json) -> None:
    world = stage(*FRAGMENTED[:3], waiting)
    begins(world, "high")

    assert world.api.made("patch") == []
    assert world.asked() == []


def test_a_namespace_over_its_budget_preempts_no_pod() -> None:
    world = stage(
        *FRAGMENTED,
        standings=NamespaceStandings({"team-a": NamespaceStanding("OVER_BUDGET", "deprioritize")}),
    )
    begins(world, "high")

    assert world.asked() == []


def capped(milli: int) -> NamespaceStandings:
    """The namespace of all pods has this cap; they hold 1.3 cards."""
    return NamespaceStandings({"team-a": NamespaceStanding("IN_BUDGET", caps=Caps(Cap(milli)))})


def test_a_pod_above_a_cap_preempts_no_pod() -> None:
    world = stage(*FRAGMENTED, standings=capped(1_799))
    begins(world, "high")
    assert (world.asked(), reservation(world, "high")) == ([], "")

    world.standings = capped(1_800)
    world.settles()
    assert world.asked() == ["a"]


def test_cards_are_released_where_a_cap_is_lowered_meanwhile() -> None:
    world = stage(*FRAGMENTED, standings=capped(1_800))
    begins(world, "high")
    assert reservation(world, "high") == "n"

    world.standings = capped(1_000)
    world.step(after_s=1.0, times=6)

    assert reservation(world, "high") == ""


FULL = (TWO, low("a", 100, "GPU-0"), low("b", 100, "GPU-1"), unscheduled("high", 50, priority=9))
FULL_OF_DEBTORS = (TWO, debtors("a", 100, "GPU-0"), debtors("b", 100, "GPU-1"), unscheduled("p", 50))


def test_where_sums_are_short_lower_priority_is_left_to_kube_scheduler() -> None:
    world = stage(*FULL)
    world.settles()

    assert world.api.made("patch") == []


def test_where_sums_are_short_debtors_of_the_same_class_leave_without_a_call_of_preempt() -> None:
    world = stage(*FULL_OF_DEBTORS, standings=OWES)
    world.settles()

    assert len(world.asked()) == 1
    assert reservation(world, "p") == "n"


@pytest.mark.parametrize("others", [[], [on(percent(30, "c"), "m", "m-GPU-0")]], ids=["empty", "in use"])
@pytest.mark.parametrize("offered", [True, False])
def test_no_victim_is_chosen_while_the_pod_has_room_elsewhere(others: list[Json], offered: bool) -> None:
    world = stage(*FRAGMENTED, node("m"), *others, offered={"high": ["n", "m"] if offered else ["n"]})
    world.settles()
    assert world.api.made("patch") == []

    world.step(times=30)
    assert bool(world.asked()) is not offered  # kube-scheduler would have tried it by now, did it want to


def test_no_victim_is_chosen_while_ending_pods_make_room_elsewhere() -> None:
    leaving = on(percent(100, "c"), "m", "m-GPU-0")
    leaving["metadata"]["deletionTimestamp"] = stamp(NOW_MS + 30_000)
    world = stage(*FRAGMENTED, node("m"), leaving, offered={"high": ["n", "m"]})
    world.settles()

    assert world.asked() == []
    assert reservation(world, "high") == "m"


TAINTED = {**TWO, "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}


@pytest.mark.parametrize(
    ("there", "fields"),
    [
        (TAINTED, {}),
        ({**TWO, "spec": {"unschedulable": True}}, {}),
        (TWO, {"nodeSelector": {"pool": "other"}}),
    ],
)
def test_no_victim_is_chosen_on_a_node_that_the_pod_may_not_run_on(
    there: Json, fields: dict[str, Any]
) -> None:
    pods = (*FULL_OF_DEBTORS[1:3], unscheduled("p", 50, **fields))
    world = stage(there, *pods, standings=OWES)
    world.settles()

    assert world.api.made("patch") == []


def test_no_victim_is_chosen_on_a_node_that_kube_scheduler_refuses_for_another_reason() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["m"]})
    world.settles()

    assert world.api.made("patch") == []


def test_several_leave_where_it_needs_several_and_all_at_once() -> None:
    world = stage(*SHARED)
    begins(world, "high")

    assert sorted(world.asked()) == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "offered", "preemptible", "leaves"),
    [
        (CLAIMED, [], [], False),
        (CLAIMED, ["n"], [], True),
        (CLAIMED, [], ["n"], True),
        ({}, [], [], True),
    ],
)
def test_a_pod_with_a_constraint_unknown_here_gets_cards_only_where_kube_scheduler_passed_the_node(
    fields: dict[str, Any], offered: list[str], preemptible: list[str], *, leaves: bool
) -> None:
    pods = (*FULL_OF_DEBTORS[:3], unscheduled("p", 50, **fields))
    world = stage(*pods, standings=OWES)
    world.offered, world.preemptible = {"p": offered}, {"p": preemptible}
    world.settles()

    assert bool(world.asked()) is leaves
    assert bool(world.api.made("patch")) is leaves


def requesting(**amounts: str) -> Json:
    """A container without cards that requests these."""
    named = {name.replace("_", "/"): amount for name, amount in amounts.items()}
    return {"name": "more", "image": "x", "resources": {"requests": named}}


def sidecar(memory: str) -> Json:
    """A container that requests this memory and runs on beside all that start after it."""
    return requesting(memory=memory) | {"name": "beside", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        ({"initContainers": [requesting(memory="100Ti")]}, False),
        ({"resources": {"requests": {"memory": "513Gi"}}}, False),
        ({"initContainers": [requesting(**{"ephemeral-storage": "2Ti"})]}, False),
        ({"initContainers": [requesting(**{"hugepages-2Mi": "1Gi"})]}, False),
        ({"initContainers": [requesting(example_fpga="1")]}, False),
        ({"initContainers": [requesting(memory="512Gi")]}, True),
        ({"initContainers": [requesting(memory="9Pi")]}, False),  # in thousandths beyond an int64
        (
            {"initContainers": [requesting(cpu="9223372037854775807")]},
            False,
        ),  # kube-scheduler reads 10^9 cores
        ({"initContainers": [sidecar("300Gi"), requesting(memory="300Gi")]}, False),
        ({"initContainers": [sidecar("256Gi"), requesting(memory="256Gi")]}, True),
        ({"initContainers": [requesting(memory="300Gi"), sidecar("300Gi")]}, True),
        ({"initContainers": [requesting(memory="512Gi")], "overhead": {"memory": "1Mi"}}, False),
        ({"initContainers": [requesting(memory="511Gi")], "overhead": {"memory": "1Gi"}}, True),
    ],
)
def test_no_pod_is_evicted_for_one_that_requests_more_of_anything_than_the_node_has(
    fields: dict[str, Any], *, leaves: bool
) -> None:
    node = copy.deepcopy(TWO)
    node["status"]["allocatable"] |= {"memory": "512Gi", "ephemeral-storage": "1Ti"}
    world = stage(node, *FULL_OF_DEBTORS[1:3], unscheduled("p", 50, **fields), standings=OWES)
    world.settles()

    assert bool(world.asked()) is leaves
    assert bool(world.api.made("patch")) is leaves


def test_a_forged_reservation_evicts_no_protected_pod() -> None:
    world = stage(*FRAGMENTED[:3], held(unscheduled("p", 50), "n", "GPU-0"))
    world.step(times=60)

    assert world.going() == []
    assert reservation(world, "p") == ""


@pytest.mark.parametrize("priority", [0, 9])
def test_a_budget_in_observe_mode_reports_and_evicts_no_pod(priority: int) -> None:
    watched = NamespaceStanding("UNLIMITED", "reclaim", watched="OVER_BUDGET")
    us = NamespaceStanding("IN_BUDGET", "reclaim")
    pods = (*OWED[:3], unscheduled("p", 50, priority=priority))
    world = stage(*pods, standings=NamespaceStandings({"team-a": us, "team-b": watched}))
    begins(world, "p")
    world.step(times=60)

    assert world.api.made("patch") == []
    assert world.asked() == []
    assert sum(line.startswith("would-preempt") for line in world.lines) == 1
    results = world.preemptor.counts.results
    assert results["reclaim", "observed"] + results["fragmentation", "observed"] == 1


def test_before_the_timekeepers_first_answer_no_victim_is_chosen() -> None:
    world = stage(*FRAGMENTED, needs_standings=True, standings=UNHEARD)
    begins(world, "high")
    assert world.api.made("patch") == []

    world.standings = NamespaceStandings({"team-a": IN_BUDGET})
    world.settles()
    assert world.asked() == ["a"]


def test_one_pod_that_leaves_makes_room_for_one_and_the_others_look_further() -> None:
    world = stage(*owed_cards(6, NOW_MS + 40_000, waiting=3), standings=OWES)
    world.settles()
    world.step(times=60)

    assert len(set(world.asked())) == 2
    assert "d0" not in world.asked()
    assert sorted(reservation(world, f"p{at}") for at in range(3))[0] == "n0"


def test_a_pod_long_past_its_end_saves_no_victim() -> None:
    world = stage(*owed_cards(2, NOW_MS - 20_000_000, waiting=1), standings=OWES)
    world.settles()

    assert world.asked() == ["d1"]


def test_a_debtor_that_deleted_itself_with_a_long_grace_period_gets_that_of_an_eviction() -> None:
    world = stage(*owed_cards(1, NOW_MS + 1_000_000_000, waiting=1), standings=OWES)
    world.settles()
    world.step(times=20)

    assert (world.asked(), world.api.made("delete")) == ([], ["d0"])
    assert world.api.pod("d0", "team-b")["metadata"]["deletionGracePeriodSeconds"] == 30
    assert reservation(world, "p0") == "n0"
    assert [line for line in world.lines if line.startswith("preempted") and "shortened" in line]
    world.ends("d0", "team-b")
    world.step(times=30)
    assert "n0" in world.freed


def test_a_pod_that_is_no_debtor_may_take_as_long_as_it_likes() -> None:
    in_budget = NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET})
    world = stage(*owed_cards(1, NOW_MS + 1_000_000_000, waiting=1), standings=in_budget)
    world.settles()
    world.step(times=20)

    assert (world.asked(), world.api.made("delete")) == ([], [])


def test_where_a_pod_does_not_go_in_time_what_was_held_there_is_released_and_others_leave() -> None:
    world = stage(*owed_cards(2, NOW_MS + 10_000, waiting=1), standings=OWES)
    world.settles()
    assert reservation(world, "p0") == "n0"

    world.step(after_s=1, times=300)

    assert world.asked() == ["d1"]


def test_what_frees_where_kube_scheduler_makes_room_for_another_is_his() -> None:
    nominated = unscheduled("another", 100)
    nominated["status"]["nominatedNodeName"] = "n0"
    world = stage(*owed_cards(2, NOW_MS + 10_000, waiting=1), nominated, standings=OWES)
    world.settles()

    assert reservation(world, "p0") == "n1"


def test_a_pod_unknown_to_the_extender_evicts_no_pod_where_sums_suffice() -> None:
    world = stage(*OWED, standings=OWES)
    world.unasked = {"p"}
    world.settles()

    assert world.asked() == []
