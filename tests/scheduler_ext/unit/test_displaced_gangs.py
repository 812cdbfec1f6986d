"""How others leave for a gang, step by step, by what objects say. That the rules suffice, with kills at any
point, is shown by `tests/story/unit/test_gang_histories.py`."""

import json
from typing import Any

import pytest

from tests.scheduler_ext.displacing import DisplacingWorld, mine, theirs
from tests.scheduler_ext.gang_worlds import STARTED
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET, budget_over
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import on, percent
from tests.worlds import Json

MINUTE, HOUR = 60, 3_600


def crowded(*members: Json, **settings: Any) -> DisplacingWorld:
    """Pods over budget hold three of four cards."""
    pods = [theirs("v", "m", 0), theirs("w", "m", 1), theirs("x", "k", 0)]
    return DisplacingWorld({"m": 2, "k": 2}, [*pods, *(members or (mine("a"), mine("b")))], **settings)


def said(world: DisplacingWorld, name: str) -> Json:
    """What the member's condition says."""
    found: Json = json.loads(world.condition(name)["message"])
    return found


def begun(world: DisplacingWorld, seconds: float = 4) -> str:
    """Who has been asked to leave after so long."""
    world.steps(seconds, 0.5)
    return world.evicted


def started(world: DisplacingWorld, members: str = "ab") -> None:
    """The victims have left, and the members have their nodes."""
    world.delete(*world.evicted)
    world.steps(3, 0.5)
    world.bind(members)
    world.steps(2, 0.5)
    assert all(world.pods[name]["spec"].get("nodeName") for name in members)


def test_pods_over_budget_leave_for_a_gang_in_budget_and_as_many_as_it_needs() -> None:
    world = crowded()

    evicted = begun(world)

    assert len(evicted) == 1
    assert world.held == "ab"
    assert "cards are reserved for 2 members, and 1 pod of 1 namespace leaves for it" in world.says("a")
    started(world)
    assert world.marks("ab") == "ab"
    assert world.evicted == evicted


def test_an_elastic_gang_displaces_for_its_minimum_alone() -> None:
    members = [mine(name, 4, marks={"bursar.dev/gang-minimum": "2"}) for name in "abcd"]

    assert len(begun(crowded(*members))) == 1


@pytest.mark.parametrize("how", ["a lower class", "over budget", "no preemption", "the same class"])
def test_for_whom_others_leave(how: str) -> None:
    fields: dict[str, Any] = {} if how == "the same class" else {"priority": 5}
    fields |= {"preemptionPolicy": "Never"} if how == "no preemption" else {}
    world = crowded(*(mine(name, **fields) for name in "ab"))
    world.flips(team_b=IN_BUDGET, team_a=DEBTOR if how == "over budget" else IN_BUDGET)

    assert len(begun(world)) == (how == "a lower class")


def test_nobody_leaves_for_a_gang_that_would_not_start_whole() -> None:
    world = crowded(*(mine(name, 5) for name in "abcde"))

    assert begun(world, 60) == ""
    assert world.held == ""


def test_evictions_begin_once_the_watch_shows_the_conditions_of_all_members() -> None:
    world = crowded()
    world.follows = False
    assert begun(world) == ""
    assert world.held == "ab"  # it is written

    world.follows = True
    world.put(world.pods["a"])
    assert begun(world, 0.5) == ""
    world.put(world.pods["b"])

    assert len(begun(world, 1)) == 1


def test_before_the_first_eviction_it_is_looked_again_who_may_leave() -> None:
    """The namespace is in budget once the conditions are written: nobody leaves, and the cards are free."""
    world = crowded()
    world.step(0.5).step(0.5)
    assert world.held == "ab"
    world.flips(team_b=IN_BUDGET)

    assert begun(world, 10) == ""
    assert world.held == ""
    assert world.condition("a")["reason"] == "NoWay"


def test_a_leader_that_takes_over_writes_the_conditions_that_lack_and_evicts_nobody_twice() -> None:
    world = crowded()
    world.lost = {"b"}
    world.step(0.5).step(0.5)
    assert world.held == "a"
    world.lost = set()
    world.begin()

    evicted = begun(world)
    assert len(evicted) == 1
    assert world.held == "ab"
    world.begin()
    begun(world, 20)
    started(world)

    assert set(world.evicted) == {*evicted}


def test_gates_open_and_the_cards_are_charged_once_the_last_card_is_free() -> None:
    pods = [theirs(name, "m", place) for place, name in enumerate("vw")]
    world = DisplacingWorld({"m": 2}, [*pods, mine("a"), mine("b")])
    assert sorted(begun(world)) == ["v", "w"]
    world.delete("v")
    begun(world, 5)
    assert "free" not in str(world.condition("a"))
    assert world.open == "w"

    world.delete("w")
    world.starts.step()
    assert world.open == ""  # before the conditions say it
    free = stamp(world.now_ms + 500)
    begun(world, 1)

    assert {said(world, name)["free"][:19] for name in "ab"} == {free[:19]}
    begun(world, 1)
    assert world.open == "ab"
    assert world.planned == {"a": "m", "b": "m"}


@pytest.mark.parametrize("who", ["a lower class", "over budget"])
def test_a_disruption_budget_keeps_a_lower_class_for_good_and_a_debtor_for_its_grace(who: str) -> None:
    namespace = "team-b" if who == "over budget" else "team-c"
    pods = [theirs(name, "m", place, namespace) for place, name in enumerate("vw")]
    world = DisplacingWorld({"m": 2}, [*pods, *(mine(name, priority=5) for name in "ab")])
    world.pdbs, world.kept = budget_over(namespace), {"v", "w"}

    world.steps(9 * MINUTE)
    assert world.evicted == ""
    assert world.held == ("ab" if who == "over budget" else "")
    world.steps(2 * MINUTE)

    deleted = [name for what, name, _ in world.calls if what == "delete"]
    assert sorted(deleted) == (["v", "w"] if who == "over budget" else [])


def test_a_protected_pod_stays() -> None:
    world = crowded()
    spared = {"uid-v", "uid-w"}
    world.flips(team_b=type(DEBTOR)("OVER_BUDGET", "reclaim", protected=frozenset(spared)))

    assert begun(world) == "x"


def test_cards_are_kept_for_the_longest_grace_and_then_the_owner_waits_longer_each_time() -> None:
    """Also by what a leader that takes over reads. It is one start that came to nothing, not one a member."""
    world = crowded()
    assert len(begun(world)) == 1
    ends = said(world, "a")["until"]

    world.steps(50)
    assert world.held == ""
    assert world.condition("a")["reason"] == "TimeUp"
    assert world.condition("a")["lastTransitionTime"][:19] == ends[:19]
    assert said(world, "a")["tries"] == 1
    assert world.starts.failures["none-bound"] == 1
    assert len(world.preemptor.cooldown.unused) == 1
    gone = world.evicted
    world.put(theirs("y", "m", 0))
    world.delete(*gone)
    world.begin()

    world.steps(4 * MINUTE)
    assert world.held == ""
    world.steps(80)
    assert world.held == "ab"
    world.steps(MINUTE)
    assert world.held == ""
    assert said(world, "a")["tries"] == 2
    world.begin()
    world.steps(8 * MINUTE)
    assert world.held == ""
    world.steps(3 * MINUTE)
    assert said(world, "a")["tries"] == 3


def test_what_another_scheduler_takes_is_given_back() -> None:
    world = crowded()
    evicted = begun(world)
    place = world.pods[evicted]["metadata"]["annotations"]["bursar.dev/devices"]
    uuid = next(iter(json.loads(place)["containers"].values()))[0]["uuid"]
    world.delete(evicted)
    taken = on(percent(100, "z"), uuid[0], uuid)
    taken["metadata"]["namespace"] = "team-c"
    world.put(taken)

    world.steps(6)

    assert world.evicted == evicted
    assert world.held == ""
    assert world.condition("a")["reason"] == "NoWay"


def test_one_gang_displaces_at_a_time_the_first_in_order_that_could_start() -> None:
    """One of five needs more than there is, and of the others the older comes first."""
    many = [mine(f"l{at}", 5, gang="large", created_s=-90) for at in range(5)]
    first = [mine(name, 2, gang="first", created_s=-80) for name in "ab"]
    second = [mine(name, 2, gang="second", created_s=-70) for name in "cd"]
    world = crowded(*many, *first, *second)

    assert len(begun(world, 20)) == 1

    assert world.held == "ab"
    started(world)
    begun(world, 10)
    assert world.held == "cd"


def test_its_own_drain_ends() -> None:
    world = crowded(drains=(0, 900_000))
    world.flips(team_b=IN_BUDGET)
    world.steps(10)
    assert world.cache.snapshot.drain is not None
    world.flips(team_b=DEBTOR)

    assert len(begun(world)) == 1

    assert world.cache.snapshot.drain is None


def test_its_turn_before_an_autoscaler_ends() -> None:
    """Cards of new nodes are kept for it no more."""
    world = crowded(autoscales=True)
    world.flips(team_b=IN_BUDGET)
    world.steps(40)
    assert world.open == "abvwx"
    world.flips(team_b=DEBTOR)
    assert len(begun(world)) == 1

    world.put_node("new", 4)

    assert world.cache.snapshot.drain is None


def test_three_seconds_after_its_payment_others_leave_and_five_after_the_last_card_it_starts() -> None:
    """Also behind gangs that nobody can help."""
    many = [mine(f"l{at}{part}", 9, gang=f"large{at}") for at in range(20) for part in range(9)]
    world = crowded(*many)
    world.steps(20, 0.5)
    assert world.evicted == ""
    world.put(mine("a", created_s=20), mine("b", created_s=20))

    world.steps(3, 0.1)
    assert len(world.evicted) == 1
    world.delete(world.evicted)
    world.steps(5, 0.1)

    assert world.planned.keys() == {"a", "b"}


def started_gang(world: DisplacingWorld) -> None:
    """The gang of ``world`` has displaced, and runs."""
    begun(world)
    started(world)


def test_an_owner_displaced_for_a_gang_displaces_none_of_it_for_half_an_hour() -> None:
    """Whatever standings say meanwhile, and although the memory is lost."""
    world = DisplacingWorld(
        {"m": 2}, [*(theirs(name, "m", place) for place, name in enumerate("vw")), mine("a"), mine("b")]
    )
    started_gang(world)
    world.flips(team_a=DEBTOR, team_b=IN_BUDGET)
    again = [mine(name, 2, gang="back") for name in "cd"]
    for raw in again:
        raw["metadata"] |= {"namespace": "team-b"}
        raw["metadata"]["annotations"] |= {
            "bursar.dev/gang-key": "job/job-v/uid-new",
            "bursar.dev/gang": "job-v",
        }
        raw["metadata"]["ownerReferences"][0] |= {"name": "job-v", "uid": "uid-new"}
        world.put(raw)
    world.begin()
    world.steps(25 * MINUTE, 5)
    before = world.evicted

    world.steps(8 * MINUTE, 5)

    assert before in ("vw", "wv")
    assert sorted(world.evicted[2:]) == ["a", "b"]


@pytest.mark.parametrize("priority", [0, 5])
def test_a_gang_younger_than_ten_minutes_leaves_for_priority_alone(priority: int) -> None:
    marks = {
        STARTED: stamp(1_800_000_000_000 - 60_000),
        "bursar.dev/gang-size": "2",
        "bursar.dev/held": "turn",
    }
    marks |= {"bursar.dev/gang": "young", "bursar.dev/gang-key": "bursar/young"}
    pods = []
    for place, name in enumerate("vw"):
        raw = theirs(name, "m", place)
        raw["metadata"]["annotations"] |= marks
        pods.append(raw)
    world = DisplacingWorld({"m": 2}, [*pods, *(mine(name, priority=priority) for name in "ab")])

    world.steps(5 * MINUTE)
    assert world.evicted == ("vw" if priority else "")
    world.steps(5 * MINUTE)

    assert sorted(set(world.evicted)) == ["v", "w"]


def test_a_start_that_comes_to_nothing_on_displaced_cards_gives_them_back() -> None:
    world = crowded()
    evicted = begun(world)
    world.delete(evicted)
    world.steps(3, 0.5)
    world.bind("a")
    world.try_("b")

    world.steps(70)

    assert world.evicted == f"{evicted}a"
    assert world.condition("b")["status"] == "False"
    assert world.starts.failures == {"some-bound": 1, "none-bound": 0, "not-ready": 0}


def test_a_member_that_comes_later_displaces_one_pod() -> None:
    world = crowded()
    started_gang(world)
    world.put(mine("c", 2))

    assert len(begun(world, 8)) == 2
    assert world.held == "c"
    world.delete(world.evicted[1])
    world.steps(4, 0.5)
    assert world.planned.keys() == {"c"}


def test_sharers_of_a_claim_leave_together_or_not_at_all() -> None:
    claims: dict[str, Any] = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}]}

    def world_of(namespace: str) -> DisplacingWorld:
        pods = [theirs("v", "m", 0, **claims), theirs("w", "m", 1, **claims), theirs("x", "k", 0, namespace)]
        world = DisplacingWorld({"m": 2, "k": 1}, [*pods, mine("a", 1)])
        world.pods["x"]["metadata"]["namespace"] = namespace
        return world

    assert sorted(begun(world_of("team-c"))) == ["v", "w"]
    assert begun(world_of("team-b")) == "x"


def test_a_pod_leaves_whose_host_port_the_gang_needs_although_cards_are_free() -> None:
    def of_port(raw: Json) -> Json:
        raw["spec"]["containers"][0]["ports"] = [{"containerPort": 7, "hostPort": 7}]
        return raw

    pods = [of_port(theirs("v", "m", 0)), theirs("w", "k", 0)]
    world = DisplacingWorld({"m": 2, "k": 2}, [*pods, *(of_port(mine(name)) for name in "ab")])

    assert begun(world) == "v"
    started(world)
