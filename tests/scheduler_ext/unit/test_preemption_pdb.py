"""PodDisruptionBudgets in a preemption: priority never breaks one, and a debtor's holds for its grace."""

from tests.scheduler_ext.preempting import budget_over, stage
from tests.scheduler_ext.preempting_worlds import FRAGMENTED, OWED, OWES, SHARED, begins, reservation
from tests.scheduler_ext.store import Fault


def test_for_priority_alone_a_pod_disruption_budget_is_never_broken() -> None:
    world = stage(*FRAGMENTED, pdbs=budget_over("team-a"))
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


def test_where_one_of_several_is_protected_none_leaves_without_use() -> None:
    world = stage(*SHARED, pdbs=budget_over("team-a", allowed=2), protected={"b"})
    begins(world, "high")
    world.step(after_s=1, times=20)

    assert reservation(world, "high") == "n"
    assert world.going() == []
    assert world.asked() == []

    world.api.protected = set()
    world.step(after_s=1, times=3)
    assert world.going() == ["a", "b"]


def test_a_debtors_budget_is_honoured_for_its_grace_and_then_the_pod_is_deleted() -> None:
    world = stage(*OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"})
    begins(world, "p")
    world.step(after_s=10, times=59)
    assert world.going() == []
    assert 30 <= len(world.asked()) <= 70

    world.step(after_s=10, times=2)

    assert world.going() == ["a"]
    assert world.api.made("delete") == ["a"]
    marks = world.api.pod("a", "team-b")["status"]["conditions"]
    assert [(each["type"], each["status"], each["reason"]) for each in marks] == [
        ("DisruptionTarget", "True", "BursarReclaim")
    ]
    assert "team-b is over its GPU budget" in marks[0]["message"]
    assert world.preemptor.counts.victims["reclaim", "deleted"] == 1
    assert world.preemptor.counts.protected >= 59


def test_a_debtor_whose_condition_is_refused_for_good_is_deleted_all_the_same() -> None:
    world = stage(*OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"})
    begins(world, "p")
    world.step(after_s=10, times=59)
    world.api.faults.append(Fault("patch", status=422))

    world.step(after_s=10, times=2)

    assert world.api.made("delete") == ["a"]
    assert "conditions" not in world.api.pod("a", "team-b").get("status", {})
    assert [line for line in world.lines if line.startswith("condition-refused") and "422 " in line]


def test_a_debtor_whose_condition_cannot_be_written_for_now_gets_it_before_it_is_deleted() -> None:
    world = stage(*OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"})
    begins(world, "p")
    world.step(after_s=10, times=59)
    world.api.faults.append(Fault("patch", status=409))

    world.step(after_s=10, times=3)

    assert world.api.made("delete") == ["a"]
    (mark,) = world.api.pod("a", "team-b")["status"]["conditions"]
    assert mark["type"] == "DisruptionTarget"
    assert not [line for line in world.lines if line.startswith("condition-refused")]


def test_a_debtor_whose_budget_allows_it_is_evicted_before() -> None:
    world = stage(*OWED, standings=OWES, pdbs=budget_over("team-b"), protected={"a", "b"})
    begins(world, "p")
    world.step(after_s=10, times=10)
    world.api.protected = set()

    world.step(after_s=10)

    assert world.going() == ["a"]
    assert world.api.made("delete") == []


def test_a_webhook_that_refuses_a_debtors_eviction_for_now_is_respected_for_the_grace() -> None:
    world = stage(*OWED, standings=OWES)
    world.api.vetoed = {"a": 429, "b": 429}
    begins(world, "p")
    world.step(after_s=10, times=59)
    assert world.going() == []
    assert world.told.count(("a", "EvictionRefused")) == 1

    world.step(after_s=10, times=30)  # the first reservation ends before the grace is over

    assert world.going() == ["a"]
    assert world.api.made("delete") == ["a"]


def test_what_refuses_for_good_stands_is_told_and_is_asked_ever_more_rarely() -> None:
    world = stage(*OWED, standings=OWES)
    world.api.vetoed = {"a": 403, "b": 403}
    begins(world, "p")
    asked = []
    for _ in range(3):
        before = len(world.asked())
        world.step(after_s=10, times=60)
        asked.append(len(world.asked()) - before)

    assert asked[0] >= 4
    assert asked[0] > asked[1] >= asked[2] >= 1
    assert world.going() == []
    assert world.api.made("delete") == []
    assert world.told.count(("a", "EvictionRefused")) == len(world.asked())
