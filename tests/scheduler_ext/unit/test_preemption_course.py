"""From the reservation to the binding: cards are reserved before a pod is evicted, and nothing is done twice,
whatever fails and whichever replica leads."""

import json
from datetime import datetime
from typing import Any

import pytest

from scheduler_ext.model.standing import NamespaceStandings
from tests.scheduler_ext.preempting import IN_BUDGET, budget_over, in_namespace, stage, unscheduled
from tests.scheduler_ext.preempting_worlds import (
    FRAGMENTED,
    OWED,
    OWES,
    SHARED,
    TWO,
    begins,
    low,
    owed_cards,
    reservation,
)
from tests.scheduler_ext.reserving import NOW_MS, stamp
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import card


def test_where_sums_suffice_and_no_card_does_the_least_leave_and_the_cards_are_kept() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")

    assert world.asked() == ["a"]
    assert reservation(world, "high") == "n"
    assert world.pod("high").nominated == "n"
    assert ("high", "CardsHeld") in world.told
    assert ("a", "Preempted") in world.told


def test_no_victim_is_evicted_before_the_watch_has_shown_the_reservation() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["n"]})
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


def test_when_the_cards_are_free_and_it_is_bound_it_is_over() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.ends("a")
    world.step()
    world.api.put("pods", on(percent(50, "high", priority=9), "n", "GPU-0"))
    world.step(times=30)

    assert world.asked() == ["a"]
    assert world.preemptor.counts.results["fragmentation", "bound"] == 1
    assert world.preemptor.counts.victims["fragmentation", "evicted"] == 1


def test_a_pod_that_is_not_tried_though_its_cards_are_free_is_woken_again() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.ends("a")
    world.freed.clear()

    world.step(times=40)

    assert 1 <= world.freed.count("n") <= 3


def test_since_when_the_cards_are_free_is_written_once_and_never_by_the_next_leader() -> None:
    def said() -> dict[str, Any]:
        (condition,) = [
            each
            for each in world.api.pod("high", "team-a")["status"]["conditions"]
            if each["type"] == "bursar.dev/CardsHeld"
        ]
        return {**condition, "message": json.loads(condition["message"])}

    world = stage(*FRAGMENTED)
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


def test_a_busy_api_server_is_no_pod_disruption_budget() -> None:
    world = stage(*OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"})
    begins(world, "p")
    world.step(after_s=10, times=59)
    world.api.protected = set()
    world.api.faults += [Fault("evict", status=429), Fault("evict", status=500)]
    world.step(after_s=10, times=4)

    assert world.going() == ["a"]
    assert world.api.made("delete") == []


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
def test_a_failed_call_is_repeated_and_evicts_no_other_pod(fault: Fault) -> None:
    world = stage(*FRAGMENTED)
    world.api.faults.append(fault)
    begins(world, "high")
    world.step(times=80)

    assert world.going() == ["a"]
    assert reservation(world, "high") == "n"
    assert set(world.asked()) == {"a"}
    assert len(world.asked()) <= 2


def test_the_version_that_was_looked_at_is_the_one_that_is_changed() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["n"]})
    world.step(times=10)
    world.api.put("pods", world.api.pod("high"))
    while not world.api.made("patch"):
        world.now_ms += 100
        world.preemptor.step()

    assert reservation(world, "high") == ""
    world.step(times=30)
    assert reservation(world, "high") == "n"


def test_another_pod_of_the_victims_name_is_left_alone() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["n"]})
    while not world.api.made("patch"):
        world.step()
    another = world.api.pod("a")
    world.api.delete("pods", "a", "team-a")
    another["metadata"]["uid"] = "uid-another"
    world.api.put("pods", another)
    world.preemptor.step()

    assert world.asked() == ["a"]
    assert world.going() == []


def test_a_conflict_over_a_pod_whose_name_holds_uid_is_no_other_pod_in_its_place() -> None:
    pods = low("fluid-0", 60, "GPU-0"), low("b", 70, "GPU-1", priority=9), FRAGMENTED[3]
    said = 'Operation cannot be fulfilled on pods "fluid-0": the object has been modified'
    world = stage(TWO, *pods)
    world.api.faults.append(Fault("evict", status=409, said=said))
    begins(world, "high")
    world.step(times=30)

    assert world.going() == ["fluid-0"]
    assert world.asked() == ["fluid-0", "fluid-0"]


@pytest.mark.parametrize("what", ["pod", "victim", "node", "condition", "cards", "memory"])
def test_what_vanishes_under_way_ends_it(what: str) -> None:
    world = stage(*FRAGMENTED, protected={"a", "b"})
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


def test_what_does_not_come_true_in_time_is_taken_back() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")  # the victim leaves, by its grace period of 30 s, and never ends
    world.step(after_s=1, times=200)
    assert reservation(world, "high") == "n"

    world.step(after_s=1, times=15)

    assert reservation(world, "high") == ""
    assert world.pod("high").nominated == ""
    assert ("high", "CardsLetGo") in world.told
    assert world.preemptor.counts.results["fragmentation", "withdrawn"] == 1
    assert world.asked() == ["a"]


def test_a_reservation_that_cannot_be_taken_back_at_once_ends_all_the_same() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.api.faults += [Fault("patch", status=500), Fault("patch", how="reset")]
    world.api.faults.append(Fault("patch", status=409))
    world.step(after_s=1, times=211)

    allocation = world.cache.snapshot.allocation("uid-high")
    assert allocation is None
    world.step(after_s=1, times=10)
    assert reservation(world, "high") == ""


def test_the_remaining_victim_of_several_is_evicted_still() -> None:
    world = stage(*SHARED)
    world.api.protected = {"b"}  # by a budget that we have not heard of
    begins(world, "high")
    world.step(after_s=1, times=20)
    assert world.going() == ["a"]
    assert reservation(world, "high") == "n"

    world.api.protected = set()
    world.step(after_s=1, times=3)
    assert world.going() == ["a", "b"]


def test_a_new_leader_goes_on_with_what_the_objects_show() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["n"]})
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


def test_a_new_leader_between_two_evictions_evicts_the_other_alone() -> None:
    world = stage(*SHARED)
    world.api.faults.append(Fault("evict", obeyed=True, how="reset"))
    begins(world, "high")
    assert len(world.going()) == 1
    world.restarts()
    world.step(times=20)

    assert world.going() == ["a", "b"]
    assert sorted(world.asked()) == ["a", "b"]


def test_who_does_not_lead_does_nothing() -> None:
    world = stage(*FRAGMENTED, offered={"high": ["n"]})
    while not world.api.made("patch"):
        world.step()
    world.leads = False
    world.sees()
    world.preemptor.step()  # it loses the lead in the middle of a step

    assert world.asked() == []


def test_a_victim_that_is_deleted_by_force_is_waited_for_until_its_grace_is_over() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.api.delete("pods", "a", "team-a")
    world.step(after_s=1, times=20)
    assert reservation(world, "high") == "n"
    world.freed.clear()

    world.step(after_s=1, times=15)

    assert reservation(world, "high") == "n"
    assert "n" in world.freed
    assert world.asked() == ["a"]


def test_standings_that_turn_between_two_evictions_spare_the_second() -> None:
    pods = [in_namespace(raw, "team-b") for raw in SHARED[1:3]]
    world = stage(SHARED[0], *pods, *SHARED[3:5], unscheduled("p", 90), standings=OWES)
    world.turns_after_evictions(NamespaceStandings({"team-a": IN_BUDGET, "team-b": IN_BUDGET}))
    begins(world, "p")

    assert len(world.asked()) == 1


def test_what_has_been_begun_does_not_stand_still_for_long_looks() -> None:
    older = [unscheduled(f"o{at}", 300 + 100 * at) for at in range(24)]
    world = stage(*owed_cards(2, NOW_MS - 20_000_000, waiting=0), *older, standings=OWES)
    world.settles()
    world.step(after_s=60)
    world.look_s = 0.3
    before_ms = world.now_ms
    world.step()

    assert world.now_ms - before_ms < 1_000
