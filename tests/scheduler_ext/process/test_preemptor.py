"""The preemptor: cards are held before anybody leaves, only who must leaves, and nothing is done twice."""

import copy
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.plan import OUTRANKED
from scheduler_ext.snapshot.node_info import without_pod
from tests.scheduler_ext.apiserver import Fault
from tests.scheduler_ext.preempting import (
    DEBTOR,
    IN_BUDGET,
    Stage,
    budget_over,
    in_namespace,
    stage,
    unscheduled,
)
from tests.scheduler_ext.reserving import NOW_MS, held, stamp
from tests.scheduler_ext.worlds import bound, node, on, percent, request_of
from tests.worlds import card
from timekeeper.core.ledger.reservation import MOST_MS
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.standings import Cap, Caps

Json = dict[str, Any]

TWO = node("n", card(0), card(1))


def low(name: str, share: int, uuid: str, priority: int = 0, **fields: Any) -> Json:
    """A pod that runs on a card."""
    return on(percent(share, name, priority=priority, **fields), "n", uuid)


def debtors(name: str, share: int, uuid: str) -> Json:
    """One of a namespace that is over budget, with the class that it had in budget."""
    return in_namespace(low(name, share, uuid), "team-b")


OWES = NamespaceStandings({"team-a": IN_BUDGET, "team-b": DEBTOR})
FRAGMENTED = (TWO, low("a", 60, "GPU-0"), low("b", 70, "GPU-1"), unscheduled("high", 50, priority=9))
OWED = (TWO, debtors("a", 60, "GPU-0"), debtors("b", 70, "GPU-1"), unscheduled("p", 50))


def begins(world: Stage, *names: str) -> None:
    """These pods were offered the node, and have waited long enough."""
    world.offered = {name: ["n"] for name in names}
    world.settles()


def reservation(world: Stage, name: str) -> str:
    """On which node cards are held for the pod, "" where none are."""
    held_for = world.pod(name).reserved
    return held_for.node if held_for is not None else ""


def test_where_sums_suffice_and_no_card_does_the_least_leave_and_the_cards_are_kept(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")

        assert world.asked() == ["a"]
        assert reservation(world, "high") == "n"
        assert world.pod("high").nominated == "n"
        assert ("high", "CardsHeld") in world.told
        assert ("a", "Preempted") in world.told


def test_no_victim_is_evicted_before_the_watch_has_shown_the_reservation(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["n"]}) as world:
        world.step(times=10)
        while not world.api.made("patch"):
            world.now_ms += 100
            world.preemptor.step()

        assert world.asked() == []
        world.preemptor.step()
        assert world.asked() == []
        assert len(world.api.made("patch")) == 1

        world.step()
        assert world.asked() == ["a"]


def test_when_the_cards_are_free_and_it_is_bound_it_is_over(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.ends("a")
        world.step()
        world.api.put("pods", on(percent(50, "high", priority=9), "n", "GPU-0"))
        world.step(times=30)

        assert world.asked() == ["a"]
        assert world.preemptor.counts.results["fragmentation", "bound"] == 1
        assert world.preemptor.counts.victims["fragmentation", "evicted"] == 1


def test_a_pod_that_is_not_tried_though_its_cards_are_free_is_woken_again(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.ends("a")
        world.freed.clear()

        world.step(times=40)

        assert 1 <= world.freed.count("n") <= 3


def test_since_when_the_cards_are_free_is_written_once_and_never_by_the_next_leader(
    tmp_path: Path,
) -> None:
    def said() -> dict[str, Any]:
        (condition,) = [
            each
            for each in world.api.pod("high", "team-a")["status"]["conditions"]
            if each["type"] == "bursar.dev/CardsHeld"
        ]
        return {**condition, "message": json.loads(condition["message"])}

    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.step(times=10)
        before = said()
        assert "free" not in before["message"]
        world.ends("a")
        world.api.faults.append(Fault("patch", obeyed=False, how="reset"))
        free_at = stamp(world.now_ms + 100)

        for _ in range(15):  # the watch does not catch up
            world.now_ms += 100
            world.preemptor.step()
        world.step(times=40)
        world.restarts()
        world.step(times=40)

        after = said()
        assert after == {**before, "message": {**before["message"], "free": after["message"]["free"]}}
        assert datetime.fromisoformat(after["message"]["free"]) == datetime.fromisoformat(free_at)
        sent = [json.dumps(each) for each in world.api.made("patch")]
        assert sum("free" in each for each in sent) == 2  # the first of them was lost
        assert reservation(world, "high") == "n"


def test_a_debtor_of_the_same_class_leaves_for_a_pod_that_is_in_budget(tmp_path: Path) -> None:
    with stage(tmp_path, *OWED, standings=OWES) as world:
        begins(world, "p")

        assert world.asked() == ["a"]
        assert ("a", "Reclaimed") in world.told
        assert world.left == [("a", "p", "reclaim", "evicted")]
        (text,) = world.warned
        assert "/a: namespace " in text
        assert "is over its GPU budget; its GPUs go to pod " in text
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
def test_no_other_pod_of_the_same_class_does(tmp_path: Path, word: NamespaceStanding) -> None:
    with stage(tmp_path, *OWED, standings=NamespaceStandings({"team-a": IN_BUDGET, "team-b": word})) as world:
        begins(world, "p")

        assert world.api.made("patch") == []
        assert world.asked() == []


def test_a_namespace_back_in_budget_before_the_first_eviction_is_spared(tmp_path: Path) -> None:
    with stage(tmp_path, *OWED, standings=OWES, protected={"a", "b"}) as world:
        begins(world, "p")
        assert reservation(world, "p") == "n"

        world.standings = NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET})
        world.api.protected = set()
        world.step(times=50)

        assert world.going() == []
        assert reservation(world, "p") == ""
        assert ("p", "CardsLetGo") in world.told


def test_a_namespace_that_goes_over_budget_evicts_no_further_pod(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, protected={"a", "b"}) as world:
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
def test_for_these_pods_no_victim_is_evicted(tmp_path: Path, waiting: Json) -> None:
    with stage(tmp_path, *FRAGMENTED[:3], waiting) as world:
        begins(world, "high")

        assert world.api.made("patch") == []
        assert world.asked() == []


def test_a_namespace_over_its_budget_preempts_no_pod(tmp_path: Path) -> None:
    with stage(
        tmp_path,
        *FRAGMENTED,
        standings=NamespaceStandings({"team-a": NamespaceStanding("OVER_BUDGET", "deprioritize")}),
    ) as world:
        begins(world, "high")

        assert world.asked() == []


def capped(milli: int) -> NamespaceStandings:
    """The namespace of all pods has this cap; they hold 1.3 cards."""
    return NamespaceStandings({"team-a": NamespaceStanding("IN_BUDGET", caps=Caps(Cap(milli)))})


def test_a_pod_above_a_cap_preempts_no_pod(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, standings=capped(1_799)) as world:
        begins(world, "high")
        assert (world.asked(), reservation(world, "high")) == ([], "")

        world.standings = capped(1_800)
        world.settles()
        assert world.asked() == ["a"]


def test_cards_are_released_where_a_cap_is_lowered_meanwhile(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, standings=capped(1_800)) as world:
        begins(world, "high")
        assert reservation(world, "high") == "n"

        world.standings = capped(1_000)
        world.step(after_s=1.0, times=6)

        assert reservation(world, "high") == ""


FULL = (TWO, low("a", 100, "GPU-0"), low("b", 100, "GPU-1"), unscheduled("high", 50, priority=9))
FULL_OF_DEBTORS = (TWO, debtors("a", 100, "GPU-0"), debtors("b", 100, "GPU-1"), unscheduled("p", 50))


def test_where_sums_are_short_lower_priority_is_left_to_kube_scheduler(tmp_path: Path) -> None:
    with stage(tmp_path, *FULL) as world:
        world.settles()

        assert world.api.made("patch") == []


def test_where_sums_are_short_debtors_of_the_same_class_leave_without_a_call_of_preempt(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, *FULL_OF_DEBTORS, standings=OWES) as world:
        world.settles()

        assert len(world.asked()) == 1
        assert reservation(world, "p") == "n"


@pytest.mark.parametrize("others", [[], [on(percent(30, "c"), "m", "m-GPU-0")]], ids=["empty", "in use"])
@pytest.mark.parametrize("offered", [True, False])
def test_no_victim_is_chosen_while_the_pod_has_room_elsewhere(
    tmp_path: Path, others: list[Json], offered: bool
) -> None:
    with stage(
        tmp_path, *FRAGMENTED, node("m"), *others, offered={"high": ["n", "m"] if offered else ["n"]}
    ) as world:
        world.settles()
        assert world.api.made("patch") == []

        world.step(times=30)
        assert bool(world.asked()) is not offered  # kube-scheduler would have tried it by now, did it want to


def test_no_victim_is_chosen_while_ending_pods_make_room_elsewhere(tmp_path: Path) -> None:
    leaving = on(percent(100, "c"), "m", "m-GPU-0")
    leaving["metadata"]["deletionTimestamp"] = stamp(NOW_MS + 30_000)
    with stage(tmp_path, *FRAGMENTED, node("m"), leaving, offered={"high": ["n", "m"]}) as world:
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
    tmp_path: Path, there: Json, fields: dict[str, Any]
) -> None:
    pods = (*FULL_OF_DEBTORS[1:3], unscheduled("p", 50, **fields))
    with stage(tmp_path, there, *pods, standings=OWES) as world:
        world.settles()

        assert world.api.made("patch") == []


def test_no_victim_is_chosen_on_a_node_that_kube_scheduler_refuses_for_another_reason(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["m"]}) as world:
        world.settles()

        assert world.api.made("patch") == []


SHARED = (
    node("n", *(card(at) for at in range(3))),
    low("a", 40, "GPU-0"),
    low("b", 40, "GPU-0"),
    low("c", 60, "GPU-1", priority=9),
    low("d", 60, "GPU-2", priority=9),
    unscheduled("high", 90, priority=5),
)


def test_several_leave_where_it_needs_several_and_all_at_once(tmp_path: Path) -> None:
    with stage(tmp_path, *SHARED) as world:
        begins(world, "high")

        assert sorted(world.asked()) == ["a", "b"]


# PodDisruptionBudgets


def test_for_priority_alone_a_pod_disruption_budget_is_never_broken(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, pdbs=budget_over("team-a")) as world:
        begins(world, "high")
        assert world.api.made("patch") == []

        world.pdbs = budget_over("team-a", allowed=1)  # so it was when we last heard
        world.api.protected = {"a", "b"}
        world.step(times=40)
        assert reservation(world, "high") == "n"
        world.step(after_s=10, times=21)

        assert world.going() == []
        assert world.api.made("delete") == []
        assert reservation(world, "high") == ""


def test_where_one_of_several_is_protected_none_leaves_in_vain(tmp_path: Path) -> None:
    with stage(tmp_path, *SHARED, pdbs=budget_over("team-a", allowed=2), protected={"b"}) as world:
        begins(world, "high")
        world.step(after_s=1, times=20)

        assert reservation(world, "high") == "n"
        assert world.going() == []
        assert world.asked() == []

        world.api.protected = set()
        world.step(after_s=1, times=3)
        assert world.going() == ["a", "b"]


def test_a_debtors_budget_is_honoured_for_its_grace_and_then_the_pod_is_deleted(tmp_path: Path) -> None:
    with stage(tmp_path, *OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"}) as world:
        begins(world, "p")
        world.step(after_s=10, times=59)
        assert world.going() == []
        assert 30 <= len(world.asked()) <= 70

        world.step(after_s=10, times=2)

        assert world.going() == ["a"]
        assert world.api.made("delete") == ["a"]
        assert world.preemptor.counts.victims["reclaim", "deleted"] == 1
        assert world.preemptor.counts.protected >= 59


def test_a_debtor_whose_budget_allows_it_is_evicted_before(tmp_path: Path) -> None:
    with stage(tmp_path, *OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"}) as world:
        begins(world, "p")
        world.step(after_s=10, times=10)
        world.api.protected = set()

        world.step(after_s=10)

        assert world.going() == ["a"]
        assert world.api.made("delete") == []


def test_a_busy_api_server_is_no_pod_disruption_budget(tmp_path: Path) -> None:
    with stage(tmp_path, *OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"}) as world:
        begins(world, "p")
        world.step(after_s=10, times=59)
        world.api.protected = set()
        world.api.faults += [Fault("evict", status=429), Fault("evict", status=500)]
        world.step(after_s=10, times=4)

        assert world.going() == ["a"]
        assert world.api.made("delete") == []


# what goes wrong


@pytest.mark.parametrize(
    "fault",
    [
        Fault("patch", status=409),
        Fault("patch", status=500),
        Fault("patch", status=429),
        Fault("patch", how="reset"),
        Fault("patch", obeyed=True, how="reset"),
        Fault("patch", obeyed=True, status=504),
        Fault("patch", status=422),
        Fault("evict", status=500),
        Fault("evict", status=429),
        Fault("evict", status=409),
        Fault("evict", how="reset"),
        Fault("evict", obeyed=True, how="reset"),
        Fault("evict", obeyed=True, status=504),
    ],
    ids=lambda fault: f"{fault.verb}-{fault.status or fault.how}{'-obeyed' if fault.obeyed else ''}",
)
def test_a_failed_call_is_repeated_and_evicts_no_other_pod(tmp_path: Path, fault: Fault) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        world.api.faults.append(fault)
        begins(world, "high")
        world.step(times=80)

        assert world.going() == ["a"]
        assert reservation(world, "high") == "n"
        assert set(world.asked()) == {"a"}
        assert len(world.asked()) <= 2


def test_the_version_that_was_looked_at_is_the_one_that_is_changed(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["n"]}) as world:
        world.step(times=10)
        world.api.put("pods", world.api.pod("high"))
        while not world.api.made("patch"):
            world.now_ms += 100
            world.preemptor.step()

        assert reservation(world, "high") == ""
        world.step(times=30)
        assert reservation(world, "high") == "n"


def test_another_pod_of_the_victims_name_is_left_alone(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["n"]}) as world:
        while not world.api.made("patch"):
            world.step()
        another = world.api.pod("a")
        world.api.delete("pods", "a", "team-a")
        another["metadata"]["uid"] = "uid-another"
        world.api.put("pods", another)
        world.preemptor.step()

        assert world.asked() == ["a"]
        assert world.going() == []


def test_a_conflict_over_a_pod_whose_name_holds_uid_is_no_other_pod_in_its_place(tmp_path: Path) -> None:
    pods = low("fluid-0", 60, "GPU-0"), low("b", 70, "GPU-1", priority=9), FRAGMENTED[3]
    said = 'Operation cannot be fulfilled on pods "fluid-0": the object has been modified'
    with stage(tmp_path, TWO, *pods) as world:
        world.api.faults.append(Fault("evict", status=409, said=said))
        begins(world, "high")
        world.step(times=30)

        assert world.going() == ["fluid-0"]
        assert world.asked() == ["fluid-0", "fluid-0"]


@pytest.mark.parametrize("what", ["pod", "victim", "node", "condition", "cards", "memory"])
def test_what_vanishes_under_way_ends_it(tmp_path: Path, what: str) -> None:
    with stage(tmp_path, *FRAGMENTED, protected={"a", "b"}) as world:
        begins(world, "high")
        assert reservation(world, "high") == "n"
        if what == "pod":
            world.api.delete("pods", "high", "team-a")
        elif what == "victim":
            world.ends("a")
        elif what == "node":
            world.api.delete("nodes", "n")
        elif what == "cards":
            world.api.put("nodes", node("n", card(1)))
        elif what == "memory":
            world.api.put("nodes", node("n", card(0, memory_mib=32_000), card(1)))
        else:
            raw = world.api.pod("high")
            raw["status"]["conditions"] = raw["status"]["conditions"][:1]
            world.api.put("pods", raw)
            world.offered = {}
        world.api.protected = set()
        world.step(times=50)

        assert world.going() == []
        assert what in ("pod", "victim") or reservation(world, "high") == ""


def test_what_does_not_come_true_in_time_is_taken_back(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")  # the victim leaves, by its grace period of 30 s, and never ends
        world.step(after_s=1, times=200)
        assert reservation(world, "high") == "n"

        world.step(after_s=1, times=15)

        assert reservation(world, "high") == ""
        assert world.pod("high").nominated == ""
        assert ("high", "CardsLetGo") in world.told
        assert world.preemptor.counts.results["fragmentation", "withdrawn"] == 1
        assert world.asked() == ["a"]


def test_a_reservation_that_cannot_be_taken_back_at_once_ends_all_the_same(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.api.faults += [Fault("patch", status=500), Fault("patch", how="reset")]
        world.api.faults.append(Fault("patch", status=409))
        world.step(after_s=1, times=211)

        allocation = world.cache.snapshot.allocation("uid-high")
        assert allocation is None
        world.step(after_s=1, times=10)
        assert reservation(world, "high") == ""


def test_a_pod_with_a_useless_eviction_soon_causes_no_other(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.ends("a")
        world.step()
        world.api.put("pods", low("c", 60, "GPU-0", priority=9))  # bound over our head: it has the card now
        world.step(after_s=1, times=240)

        assert world.asked() == ["a"]


@pytest.mark.parametrize(
    ("share", "namespace", "asked"),
    [(50, "team-a", ["a"]), (49, "team-a", ["a", "b"]), (50, "team-c", ["a", "b"])],
)
def test_a_pod_renewed_under_another_uid_has_no_more_evicted_for_it(
    tmp_path: Path, share: int, namespace: str, asked: list[str]
) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.ends("a")
        world.step()
        world.api.put("pods", low("c", 60, "GPU-0", priority=9))
        world.api.delete("pods", "high", "team-a")
        world.step()
        renewed = unscheduled("renewed", share, priority=9, namespace=namespace)
        renewed["metadata"]["creationTimestamp"] = stamp(world.now_ms)
        world.api.put("pods", renewed)
        world.offered["renewed"] = ["n"]
        world.step(after_s=1, times=60)

        assert world.asked() == asked


CLAIMED = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


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
    tmp_path: Path, fields: dict[str, Any], offered: list[str], preemptible: list[str], *, leaves: bool
) -> None:
    pods = (*FULL_OF_DEBTORS[:3], unscheduled("p", 50, **fields))
    with stage(tmp_path, *pods, standings=OWES) as world:
        world.offered, world.preemptible = {"p": offered}, {"p": preemptible}
        world.settles()

        assert bool(world.asked()) is leaves
        assert bool(world.api.made("patch")) is leaves


def requesting(**amounts: str) -> Json:
    """A container without cards that requests these."""
    named = {name.replace("_", "/"): amount for name, amount in amounts.items()}
    return {"name": "more", "image": "x", "resources": {"requests": named}}


@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        ({"initContainers": [requesting(memory="100Ti")]}, False),
        ({"resources": {"requests": {"memory": "513Gi"}}}, False),
        ({"initContainers": [requesting(**{"ephemeral-storage": "2Ti"})]}, False),
        ({"initContainers": [requesting(**{"hugepages-2Mi": "1Gi"})]}, False),
        ({"initContainers": [requesting(example_fpga="1")]}, False),
        ({"initContainers": [requesting(memory="512Gi")]}, True),
    ],
)
def test_no_pod_is_evicted_for_one_that_requests_more_of_anything_than_the_node_has(
    tmp_path: Path, fields: dict[str, Any], *, leaves: bool
) -> None:
    node = copy.deepcopy(TWO)
    node["status"]["allocatable"] |= {"memory": "512Gi", "ephemeral-storage": "1Ti"}
    with stage(
        tmp_path, node, *FULL_OF_DEBTORS[1:3], unscheduled("p", 50, **fields), standings=OWES
    ) as world:
        world.settles()

        assert bool(world.asked()) is leaves
        assert bool(world.api.made("patch")) is leaves


@pytest.mark.parametrize(
    ("offered", "later_s", "fields", "ends"),
    [
        (["m"], 2.0, {}, True),  # kube-scheduler called filter without the node
        (["m"], 0.0, {}, False),  # that was before the cards were free
        (["n", "m"], 2.0, {}, False),
        (["n"], 0.0, CLAIMED, True),  # it may have refused the node without a call
    ],
)
def test_a_hold_ends_seconds_after_kube_scheduler_refuses_the_free_cards(
    tmp_path: Path, offered: list[str], later_s: float, fields: dict[str, Any], *, ends: bool
) -> None:
    pods = (*FRAGMENTED[:3], unscheduled("high", 50, priority=9, **fields))
    with stage(tmp_path, *pods) as world:
        begins(world, "high")
        world.ends("a")
        world.step()
        assert reservation(world, "high") == "n"

        world.offered["high"] = offered
        world.refused_s = world.now_ms / 1000 + later_s if later_s else 0.0
        world.step(after_s=1, times=20)

        assert (reservation(world, "high") == "") is ends
        assert (("high", "CardsLetGo") in world.told) is ends


def test_the_remaining_victim_of_several_is_evicted_still(tmp_path: Path) -> None:
    with stage(tmp_path, *SHARED) as world:
        world.api.protected = {"b"}  # by a budget that we have not heard of
        begins(world, "high")
        world.step(after_s=1, times=20)
        assert world.going() == ["a"]
        assert reservation(world, "high") == "n"

        world.api.protected = set()
        world.step(after_s=1, times=3)
        assert world.going() == ["a", "b"]


def test_one_that_is_held_for_longer_than_may_be_is_released(tmp_path: Path) -> None:
    raw = held(unscheduled("p", 50), "n", "GPU-0", until_ms=1_795_000_000_000 + 2 * MOST_MS)
    raw["status"]["conditions"].append(unscheduled("p", 50)["status"]["conditions"][0])
    with stage(tmp_path, *FRAGMENTED[:3], raw) as world:
        world.step(times=3)

        assert reservation(world, "p") == ""
        assert world.asked() == []


def test_a_forged_reservation_evicts_no_protected_pod(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED[:3], held(unscheduled("p", 50), "n", "GPU-0")) as world:
        world.step(times=60)

        assert world.going() == []
        assert reservation(world, "p") == ""


# taking over


def test_a_new_leader_goes_on_with_what_the_objects_show(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["n"]}) as world:
        while not world.api.made("patch"):
            world.step()
        world.restarts()
        world.step(times=5)
        assert world.asked() == ["a"]

        world.restarts()
        world.step(times=30)

        assert world.asked() == ["a"]
        assert len(world.api.made("patch")) == 1
        assert world.going() == ["a"]


def test_a_new_leader_between_two_evictions_evicts_the_other_alone(tmp_path: Path) -> None:
    with stage(tmp_path, *SHARED) as world:
        world.api.faults.append(Fault("evict", obeyed=True, how="reset"))
        begins(world, "high")
        assert len(world.going()) == 1
        world.restarts()
        world.step(times=20)

        assert world.going() == ["a", "b"]
        assert sorted(world.asked()) == ["a", "b"]


def test_who_does_not_lead_does_nothing(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, offered={"high": ["n"]}) as world:
        while not world.api.made("patch"):
            world.step()
        world.leads = False
        world.sees()
        world.preemptor.step()  # it loses the lead in the middle of a step

        assert world.asked() == []


# bounds


def test_no_more_pods_than_allowed_have_cards_held_at_a_time(tmp_path: Path) -> None:
    nodes = [node(f"n{at}", card(0), card(1)) for at in range(4)]
    pods = [on(percent(60, f"low{at}-{c}"), f"n{at}", f"n{at}-GPU-{c}") for at in range(4) for c in range(2)]
    waiting = [unscheduled(f"high{at}", 60, priority=9) for at in range(4)]
    with stage(
        tmp_path,
        *nodes,
        *pods,
        *waiting,
        most=2,
        offered={f"high{at}": [f"n{at}" for at in range(4)] for at in range(4)},
    ) as world:
        world.settles()
        world.step(times=50)

        assert sum(bool(reservation(world, f"high{at}")) for at in range(4)) == 2
        assert len(world.asked()) == 2


def test_none_at_all_where_none_are_allowed(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, most=0) as world:
        begins(world, "high")

        assert world.api.made("patch") == []


def test_those_of_higher_priority_go_first(tmp_path: Path) -> None:
    waiting = [unscheduled("high", 50, priority=9), unscheduled("highest", 50, priority=10)]
    with stage(tmp_path, *FRAGMENTED[:2], low("b", 70, "GPU-1", priority=10), *waiting) as world:
        begins(world, "high", "highest")

        assert next(name for name, reason in world.told if reason == "CardsHeld") == "highest"
        assert world.asked() == ["a"]  # whose leaving makes room for both


# only watched


@pytest.mark.parametrize("priority", [0, 9])
def test_a_budget_in_observe_mode_reports_and_evicts_no_pod(tmp_path: Path, priority: int) -> None:
    watched = NamespaceStanding("UNLIMITED", "reclaim", watched="OVER_BUDGET")
    us = NamespaceStanding("IN_BUDGET", "reclaim")
    pods = (*OWED[:3], unscheduled("p", 50, priority=priority))
    with stage(tmp_path, *pods, standings=NamespaceStandings({"team-a": us, "team-b": watched})) as world:
        begins(world, "p")
        world.step(times=60)

        assert world.api.made("patch") == []
        assert world.asked() == []
        assert sum(line.startswith("would-preempt") for line in world.lines) == 1
        results = world.preemptor.counts.results
        assert results["reclaim", "observed"] + results["fragmentation", "observed"] == 1


def test_before_the_timekeepers_first_answer_no_victim_is_chosen(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED, needs_standings=True, standings=UNHEARD) as world:
        begins(world, "high")
        assert world.api.made("patch") == []

        world.standings = NamespaceStandings({"team-a": IN_BUDGET})
        world.settles()
        assert world.asked() == ["a"]


# those who leave anyway


def leaves(raw: Json, at_ms: int) -> Json:
    """The pod, to be gone by then."""
    return {**raw, "metadata": raw["metadata"] | {"deletionTimestamp": stamp(at_ms)}}


def owed_cards(count: int, leaves_ms: int, waiting: int) -> list[Json]:
    """Nodes of one card, each with a debtor's pod on it, the first of which leaves; and so many who wait."""
    nodes = [node(f"n{at}", card(0)) for at in range(count)]
    pods = [
        in_namespace(on(percent(100, f"d{at}"), f"n{at}", f"n{at}-GPU-0"), "team-b") for at in range(count)
    ]
    pods[0] = leaves(pods[0], leaves_ms)
    return [*nodes, *pods, *(unscheduled(f"p{at}", 100) for at in range(waiting))]


def test_one_pod_that_leaves_makes_room_for_one_and_the_others_look_further(tmp_path: Path) -> None:
    with stage(tmp_path, *owed_cards(6, NOW_MS + 40_000, waiting=3), standings=OWES) as world:
        world.settles()
        world.step(times=60)

        assert len(set(world.asked())) == 2
        assert "d0" not in world.asked()
        assert sorted(reservation(world, f"p{at}") for at in range(3))[0] == "n0"


def test_a_pod_long_past_its_end_saves_no_victim(tmp_path: Path) -> None:
    with stage(tmp_path, *owed_cards(2, NOW_MS - 20_000_000, waiting=1), standings=OWES) as world:
        world.settles()

        assert world.asked() == ["d1"]


def test_a_debtor_that_deleted_itself_with_a_long_grace_period_gets_that_of_an_eviction(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, *owed_cards(1, NOW_MS + 1_000_000_000, waiting=1), standings=OWES) as world:
        world.settles()
        world.step(times=20)

        assert (world.asked(), world.api.made("delete")) == ([], ["d0"])
        assert world.api.pod("d0", "team-b")["metadata"]["deletionGracePeriodSeconds"] == 30
        assert reservation(world, "p0") == "n0"
        assert [line for line in world.lines if line.startswith("preempted") and "shortened" in line]
        world.ends("d0", "team-b")
        world.step(times=30)
        assert "n0" in world.freed


def test_a_pod_that_is_no_debtor_may_take_as_long_as_it_likes(tmp_path: Path) -> None:
    in_budget = NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET})
    with stage(tmp_path, *owed_cards(1, NOW_MS + 1_000_000_000, waiting=1), standings=in_budget) as world:
        world.settles()
        world.step(times=20)

        assert (world.asked(), world.api.made("delete")) == ([], [])


def test_where_a_pod_does_not_go_in_time_what_was_held_there_is_released_and_others_leave(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, *owed_cards(2, NOW_MS + 10_000, waiting=1), standings=OWES) as world:
        world.settles()
        assert reservation(world, "p0") == "n0"

        world.step(after_s=1, times=300)

        assert world.asked() == ["d1"]


def test_what_frees_where_kube_scheduler_makes_room_for_another_is_his(tmp_path: Path) -> None:
    nominated = unscheduled("another", 100)
    nominated["status"]["nominatedNodeName"] = "n0"
    with stage(tmp_path, *owed_cards(2, NOW_MS + 10_000, waiting=1), nominated, standings=OWES) as world:
        world.settles()

        assert reservation(world, "p0") == "n1"


def test_a_victim_that_is_deleted_by_force_is_waited_for_until_its_grace_is_over(tmp_path: Path) -> None:
    with stage(tmp_path, *FRAGMENTED) as world:
        begins(world, "high")
        world.api.delete("pods", "a", "team-a")
        world.step(after_s=1, times=20)
        assert reservation(world, "high") == "n"
        world.freed.clear()

        world.step(after_s=1, times=15)

        assert reservation(world, "high") == "n"
        assert "n" in world.freed
        assert world.asked() == ["a"]


def test_standings_that_turn_between_two_evictions_spare_the_second(tmp_path: Path) -> None:
    pods = [in_namespace(raw, "team-b") for raw in SHARED[1:3]]
    with stage(tmp_path, SHARED[0], *pods, *SHARED[3:5], unscheduled("p", 90), standings=OWES) as world:
        world.turns_after_evictions(NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET}))
        begins(world, "p")

        assert len(world.asked()) == 1


# whose turn it is


def test_a_namespace_has_at_most_half_the_places_while_another_waits(tmp_path: Path) -> None:
    many = [unscheduled(f"a{at}", 100) for at in range(6)]
    late = unscheduled("c", 100, namespace="team-c")
    late["metadata"]["creationTimestamp"] = stamp(NOW_MS)
    with stage(
        tmp_path,
        *owed_cards(8, NOW_MS - 20_000_000, waiting=0),
        *many,
        late,
        most=4,
        standings=NamespaceStandings({**OWES.listed, "team-c": IN_BUDGET}),
    ) as world:
        world.settles()
        world.step(times=60)

        held_for = [pod for pod in world.cache.snapshot.pods.values() if pod.reserved is not None]
        assert "c" in {pod.name for pod in held_for}


def test_a_pod_unknown_to_the_extender_evicts_no_pod_where_sums_suffice(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, *OWED, standings=OWES) as world:
        world.unasked = {"p"}
        world.settles()

        assert world.asked() == []


def test_no_pod_waits_for_ever_behind_pods_that_cannot_be_placed(tmp_path: Path) -> None:
    older = [unscheduled(f"o{at}", 300 + 100 * at, priority=at % 2) for at in range(24)]
    late = unscheduled("late", 100)
    late["metadata"]["creationTimestamp"] = stamp(NOW_MS)
    with stage(
        tmp_path, *owed_cards(2, NOW_MS - 20_000_000, waiting=0), *older, late, standings=OWES
    ) as world:
        world.look_s = 0.3
        world.step(times=120)

        assert world.asked() == ["d1"]


def test_what_has_been_begun_does_not_stand_still_for_long_looks(tmp_path: Path) -> None:
    older = [unscheduled(f"o{at}", 300 + 100 * at) for at in range(24)]
    with stage(tmp_path, *owed_cards(2, NOW_MS - 20_000_000, waiting=0), *older, standings=OWES) as world:
        world.settles()
        world.step(after_s=60)
        world.look_s = 0.3
        before_ms = world.now_ms
        world.step()

        assert world.now_ms - before_ms < 1_000


# turn by turn


def lives(world: Stage, made: list[int]) -> None:
    """What the rest of the cluster does: who leaves is gone and made again by its controller, and
    kube-scheduler binds whoever fits."""
    for raw in world.api.pods():
        meta = raw["metadata"]
        if "deletionTimestamp" in meta:
            world.ends(meta["name"], meta["namespace"])
            made.append(len(made))
            again = unscheduled(f"{meta['namespace']}-{len(made)}", 60, namespace=meta["namespace"])
            again["metadata"]["ownerReferences"] = meta["ownerReferences"]
            again["metadata"]["creationTimestamp"] = stamp(world.now_ms)
            world.api.put("pods", again)
            world.offered[again["metadata"]["name"]] = ["n"]
    world.sees()
    for raw in sorted(world.api.pods(), key=lambda each: "CardsHeld" not in str(each["status"])):
        if not raw["spec"].get("nodeName"):
            there = without_pod(world.cache.snapshot.node("n"), raw["metadata"]["uid"])
            answer = fit(request_of(raw), there)
            if not isinstance(answer, Refusal):
                placed = bound(raw, "n", encode_placement(answer))
                placed["status"]["startTime"] = stamp(world.now_ms)
                world.api.put("pods", placed)
                world.sees()


def test_namespaces_that_change_places_all_the_time_drive_each_other_out_a_few_times(tmp_path: Path) -> None:
    owned = {
        name: [{"uid": f"uid-{name}", "controller": True, "kind": "ReplicaSet", "name": name}]
        for name in ("team-a", "team-b")
    }
    b = debtors("b", 60, "GPU-0")
    a = unscheduled("p", 60)
    a["metadata"]["ownerReferences"], b["metadata"]["ownerReferences"] = owned["team-a"], owned["team-b"]
    made: list[int] = []
    with stage(tmp_path, node("n", card(0)), b, a, offered={"p": ["n"]}) as world:
        for at in range(120):  # ten minutes, in which the standings change each 30 s
            over, within = ("team-b", "team-a") if at // 6 % 2 == 0 else ("team-a", "team-b")
            world.standings = NamespaceStandings({over: DEBTOR, within: IN_BUDGET})
            world.step(after_s=5)
            lives(world, made)

        assert 1 <= len(made) <= 3
        assert len(world.asked()) == len(made)
