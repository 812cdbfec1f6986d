"""Gangs start whole: what the extender does step by step, one rule at a time. That the rules suffice, with
kills at any point, is shown by `tests/story/unit/test_gang_histories.py`."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from scheduler_ext.gangs.memory import GangHistory, Start
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from tests.scheduler_ext.gang_worlds import (
    BUDGET,
    CARDS,
    START_MS,
    STARTED,
    GangWorld,
    member,
    members,
    near,
    owned_by,
)
from tests.scheduler_ext.reserving import held, stamp
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import node, on, percent, waiting
from tests.support.simulated_timekeeper import entry, standings
from tests.worlds import Json, card, container
from timekeeper.core.standings import Cap, Caps

LABEL = "topology.kubernetes.io/rack"
MINIMUM = "bursar.dev/gang-minimum"
OF = {"bursar.dev/gang-key": "jobset/g/uid-of-a-jobset"}
TRAINING = ("kubeflow.org/v1", "PyTorchJob")
SPENT = NamespaceStanding("OVER_BUDGET", on_exhausted="deny", spent=True)
CAPPED = NamespaceStanding("IN_BUDGET", caps=Caps(own=Cap(total_milli=1_000)))


def racked(world: GangWorld, **racks: str) -> GangWorld:
    """The nodes are in these racks."""
    for name, rack in racks.items():
        world.nodes[name]["metadata"]["labels"] = {LABEL: rack}
    world.begin()
    return world


def ended(name: str, size: int, uid: str = "uid-g", phase: str = "Succeeded", **fields: Any) -> Json:
    """A member of this owner that had a node."""
    there = on(member(name, size, gates=(), **fields), "n", "GPU-0")
    return owned_by({**there, "status": {"phase": phase}}, uid, *TRAINING)


def leaving(raw: Json) -> Json:
    """The pod as it is being deleted."""
    return {**raw, "metadata": {**raw["metadata"], "deletionTimestamp": stamp(START_MS)}}


# who starts, and when


@pytest.mark.parametrize(
    ("raws", "planned"),
    [
        (members("ab", size=3), ""),
        ([*members("ab", size=3), member("c", 3, gates=(BUDGET, CARDS))], ""),
        (members("abc"), "abc"),
        ([*members("ab", size=3), leaving(member("c", 3))], ""),
        (members("ab", size=3, marks={MINIMUM: "2"}), "ab"),
        ([*members("ab", size=3), ended("x", 3)], "ab"),
        ([*members("ab", size=3), owned_by(ended("x", 3), "uid-g")], ""),
        ([*members("ab", size=3), ended("x", 3, phase="Failed")], ""),
        ([*members("ab", size=3), ended("x", 3, uid="")], ""),
        ([*(owned_by(raw, "") for raw in members("ab", size=3)), ended("x", 3, uid="")], ""),
        ([*members("ab", size=3), ended("x", 3, uid="uid-another")], ""),
        ([owned_by(raw, "") for raw in (*members("ab", size=3, marks=OF), ended("x", 3, marks=OF))], ""),
        ([*members("ab", size=3, marks={MINIMUM: "2"}), *(ended(each, 3) for each in "xyz")], "ab"),
    ],
    ids=[
        "too few exist",
        "one is not paid",
        "all are paid",
        "one is being deleted",
        "its minimum is",
        "one has ended well",
        "one of a Job has, which may make another",
        "one has failed",
        "a bare pod of its name has ended",
        "one of its bare pods has ended",
        "one of another owner has ended",
        "a bare pod has ended that says whose it is",
        "more than its minimum have ended well",
    ],
)
def test_a_gang_is_planned_once_as_many_as_it_needs_are_paid(raws: list[Json], planned: str) -> None:
    world = GangWorld({"n": 3}, raws).step()

    assert "".join(world.planned) == planned == world.open.replace("x", "").replace("y", "").replace("z", "")


@pytest.mark.parametrize(
    ("cards", "least", "planned", "lacks"),
    [
        (
            2,
            3,
            "",
            "it can never start here: it needs 3 cards on nodes that it may use, which have 2.",
        ),
        (2, 2, "ab", ""),
        (3, 2, "abc", ""),
    ],
)
def test_cards_are_kept_for_as_many_as_it_needs_or_for_none(
    cards: int, least: int, planned: str, lacks: str
) -> None:
    world = GangWorld({"n": cards}, members("abc", marks={MINIMUM: str(least)})).step()

    assert "".join(world.planned) == planned
    assert world.starts.kept_milli == 1000 * len(planned)
    assert lacks in world.says("a")


def test_a_gate_goes_by_a_patch_that_names_the_pod_and_removes_the_gangs_gate_alone() -> None:
    world = GangWorld({"n": 2}, members("ab"))
    world.answers = {"a": 0}  # and again, until it has gone
    world.step()
    gate = {"spec": {"schedulingGates": [{"$patch": "delete", "name": CARDS}]}}
    sent = [("patch", name, {"metadata": {"uid": f"uid-{name}"}, **gate}) for name in "ab"]
    assert world.calls == sent

    world.answers = {}
    world.step()
    assert world.calls == [*sent, sent[0]]
    world.step()
    assert len(world.calls) == 3


def test_a_pod_whose_gate_was_removed_by_hand_is_woken() -> None:
    """kube-scheduler has refused it, and would not try it again."""
    world = GangWorld({"n": 2}, [member("a", gates=()), member("b")]).step()

    (written,) = (body for _, name, body in world.calls if name == "a")
    assert (written["metadata"]["uid"], *written["status"]) == ("uid-a", "conditions")
    assert "cards are kept for all of its gang" in written["status"]["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("raws", "says"),
    [
        (
            [member("a"), member("b", gates=(CARDS, "example.com/later"))],
            "starts whole: 2 of 2 members exist; another scheduling gate keeps a member: example.com/later.",
        ),
        (
            [owned_by(member("a", 2), ""), member("b", 3)],
            "starts whole: 2 of 3 members exist; metadata.annotations[bursar.dev/gang-size]: its members say "
            "2 and 3; allowed: one number for all.",
        ),
        (
            [near(member("a"), "rack"), owned_by(member("b"), "")],
            "its members say none and rack; allowed: one label for all.",
        ),
        ([member("a"), member("b", gates=(BUDGET, CARDS))], "; 1 wait for their budget or their turn."),
        (
            members("ab"),
            "; it can never start here: it needs 2 cards on nodes that it may use, which have 0.",
        ),
    ],
)
def test_a_gang_that_waits_says_for_what_once(raws: list[Json], says: str) -> None:
    world = GangWorld({}, raws)
    world.steps(30)

    assert world.says("a").startswith("Gang g ")
    assert world.says("a").endswith(says)
    assert world.told == [("GangWaits", world.says("a"))]
    assert (world.open, world.starts.waiting) == ("", 1)


def test_what_the_timekeeper_may_pay_at_once_is_not_said_to_wait_for_its_budget() -> None:
    world = GangWorld({}, [member(name, gates=(BUDGET, CARDS), created_s=0) for name in "ab"]).step()
    assert world.says("a") == "Gang g starts whole: 2 of 2 members exist."

    assert "2 wait for their budget or their turn" in world.step(5).says("a")


@pytest.mark.parametrize(
    ("standing", "why"),
    [(SPENT, "has spent its GPU budget"), (CAPPED, "by maxGPUs: it needs 2 cards, and may hold 1")],
)
def test_no_card_is_kept_where_the_standing_or_a_cap_refuses_the_gang(
    standing: NamespaceStanding, why: str
) -> None:
    world = GangWorld({"n": 2}, members("ab"))
    world.standings = NamespaceStandings(default=standing)

    assert world.step().planned == {}
    assert why in world.says("a")


def test_no_node_is_planned_that_offers_nothing_any_more() -> None:
    """Its inventory is there, and its plugin is gone."""
    world = GangWorld({"a": 2, "b": 2}, members("pq"))
    world.put_node("a", 2, percent="0")
    assert set(world.step().planned.values()) == {"b"}

    world.delete("p", "q")
    world.put_node("b", 2, percent="0")
    world.put(*members("rs"))
    assert world.step().planned == {}


def test_a_card_that_is_taken_while_the_plan_is_made_is_not_kept_as_well() -> None:
    world = GangWorld({"n": 2}, members("ab"))
    world.before_plan = lambda: world.put(on(percent(100, "x"), "n", "GPU-0"))
    assert world.step().planned == {}
    assert world.open.replace("x", "") == ""


def test_a_replica_that_does_not_lead_any_more_keeps_no_card() -> None:
    world = GangWorld({"n": 2}, members("ab")).step()
    world.leads = False

    assert world.step().planned == {}
    assert world.open == "ab"
    world.leads = True
    assert set(world.step().planned) == {"a", "b"}


def test_the_cards_of_a_member_that_is_deleted_in_mid_start_are_free_at_once() -> None:
    world = GangWorld({"n": 2}, members("ab")).step()
    world.delete("b")
    assert world.cache.snapshot.allocation("uid-b") is None
    world.leave("a")
    assert world.cache.snapshot.allocation("uid-a") is None
    assert world.step().starts.waiting == 0


# the order


def test_gangs_are_planned_by_priority_then_by_age() -> None:
    world = GangWorld({"n": 2})
    world.put(*members("ab", gang="old"), *members("cd", gang="high", priority=5, created_s=-10))

    assert set(world.step().planned) == {"c", "d"}


def test_in_a_round_each_gang_is_planned_without_success_once() -> None:
    """Else those that come first would have all of the time."""
    world = GangWorld({"n": 2})
    world.put(*members("abc", gang="x", created_s=-3), *members("def", gang="y", created_s=-2))
    world.put(*members("gh", gang="z", created_s=-1))
    looks = [(world.step().starts.plans["none"], "".join(world.planned)) for _ in range(4)]

    assert looks == [(1, ""), (2, ""), (2, "gh"), (3, "gh")]


def test_a_failed_plan_takes_a_tenth_of_the_time_at_most() -> None:
    """Each takes two seconds; two of them are at most 5 s apart, so that none waits long."""
    world = GangWorld({"n": 1}, members("ab"))

    def passes(ms: int) -> Callable[[], None]:
        def on_plan() -> None:
            world.now_ms += ms

        return on_plan

    for takes_ms, looks in ((100, 21), (2_000, 6)):
        world.before_plan, world.now_ms = passes(takes_ms), world.now_ms + 60_000
        before, until_ms = world.starts.plans["none"], world.now_ms + 20_000 + takes_ms
        while world.now_ms < until_ms:
            world.step(0.1)
        assert abs(world.starts.plans["none"] - before - looks) <= 2


def test_a_plan_leaves_cards_to_waiting_pods_that_come_first() -> None:
    world = GangWorld({"n": 2}, [*members("ab"), waiting("s", 100)])
    world.ahead = ["s"]
    assert world.step().planned == {}

    world.ahead = []
    assert set(world.step().planned) == {"a", "b"}


def test_no_gates_go_while_512_planned_members_have_no_node() -> None:
    world = GangWorld(dict.fromkeys(("n0", "n1", "n2", "n3"), 16))
    for at in range(10):
        world.put(*(member(f"{at}-{each}", 64, gang=f"g{at}", share=10) for each in range(64)))

    assert len(world.step().planned) == 576
    world.bind([f"0-{each}" for each in range(63)])
    assert len(world.step().planned) == 513
    world.bind(["0-63"])
    assert len(world.step().planned) == 576


@pytest.mark.parametrize(("gangs", "opened"), [(15, True), (16, False)])
def test_1024_pods_without_gates_of_gangs_that_have_not_started_are_the_most(
    gangs: int, opened: bool
) -> None:
    """Each Binding makes kube-scheduler try all of them again. They fit nowhere."""
    world = GangWorld({"n": 2}, members("ab", created_s=-100))
    for at in range(gangs):
        world.put(*(member(f"{at}-{each}", 64, gang=f"g{at}", gates=()) for each in range(64)))

    assert (set(world.step().planned) == {"a", "b"}) is opened


# a start


def test_the_binding_of_the_last_member_that_is_needed_bears_the_mark_and_so_does_each_later_one() -> None:
    world = GangWorld({"n": 3}, members("abc", marks={MINIMUM: "2"})).step()
    world.follows = False  # its watch shows nothing yet

    assert world.bind("abc") == ["", world.now, world.now]
    assert world.started == []
    world.begin()
    world.step()
    assert world.marks("abc") == "bc"


@pytest.mark.parametrize(
    ("kept", "marks"), [("abc", "ac"), ("bc", "bc"), ("ac", "ac"), ("c", "c"), ("b", "b")]
)
def test_a_gang_has_two_marks_as_long_as_two_live(kept: str, marks: str) -> None:
    """So no single node that is lost takes the last one. The mark is a patch that names the pod."""
    world = GangWorld({"n": 3}, members("abc"))
    world.start("abc")
    written = {STARTED: world.now}
    assert world.calls[-1] == ("patch", "a", {"metadata": {"uid": "uid-a", "annotations": written}})

    world.delete(*({*"abc"} - {*kept}))
    world.step()
    assert world.marks(kept) == marks


def test_a_gang_has_started_though_its_only_marked_pod_is_lost_before_the_next_step() -> None:
    """The one whose Binding bore the mark, before the extender has marked a second one."""
    world = GangWorld({"n": 3}, members("abc")).step()
    world.bind("abc")

    world.delete("c")
    world.put(member("d", size=3))
    world.try_("d")
    world.steps(120)

    assert world.evicted == ""
    assert world.marks("ab") == "ab"
    assert world.started == [(3, 61)]


def test_a_gang_all_of_whose_members_are_lost_before_the_next_step_starts_whole_again() -> None:
    world = GangWorld({"n": 3}, members("abc")).step()
    world.bind("abc")

    world.delete(*"abc")
    world.put(*members("def"))
    world.step()
    assert set(world.planned) == {*"def"}


def test_a_gang_that_has_all_it_needs_and_no_mark_gets_marks() -> None:
    """Its Bindings were made by an extender that was killed."""
    world = GangWorld({"n": 2}, members("ab")).step()
    world.bind("ab")
    for name in "ab":
        world.pods[name]["metadata"]["annotations"].pop(STARTED, None)
    world.begin()

    world.step()
    assert world.marks("ab") == "ab"


def test_how_long_a_start_took_is_told_by_the_first_pod() -> None:
    world = GangWorld({"n": 2}, [member("a", created_s=-50), member("b", created_s=-20)])
    world.start("ab")

    assert world.started == [(2, 50)]
    assert world.starts.failures.total() == 0


def fails(world: GangWorld, bound: str, untried: str = "") -> GangWorld:
    """The gang is planned; these get nodes and all but ``untried`` are tried. Its deadline is over."""
    world.step()
    names = "".join(world.planned)
    world.bind(bound)
    world.try_("".join({*names} - {*bound, *untried}))
    world.steps(60)
    return world


def test_by_the_deadline_all_that_have_a_node_are_evicted_in_the_version_that_was_judged() -> None:
    world = GangWorld({"n": 3}, members("abc")).step()
    world.bind("ab")
    world.try_("c")
    versions = {name: world.pods[name]["metadata"]["resourceVersion"] for name in "ab"}
    world.steps(59)
    assert (world.evicted, list(world.planned)) == ("", ["c"])

    world.step(1)

    assert {
        name: body["deleteOptions"]["preconditions"] for what, name, body in world.calls if what == "evict"
    } == {name: {"uid": f"uid-{name}", "resourceVersion": versions[name]} for name in "ab"}
    assert world.planned == {}
    assert world.starts.failures["some-bound"] == 1
    reason, text = world.told[-2]
    assert (reason, text) == (
        "GangEviction",
        "Evicted by Bursar: 2 of the 3 pods with which gang g starts had a node in time. "
        "The gang starts whole, or none of its pods holds cards.",
    )
    (condition,) = world.calls[-1][2]["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "BursarGang")


@pytest.mark.parametrize(("tried_s", "evicted_s"), [(0, 60), (200, 200), (None, 600)])
def test_the_deadline_stands_still_while_kube_scheduler_has_not_tried_a_member(
    tried_s: int | None, evicted_s: int
) -> None:
    world = GangWorld({"n": 2}, members("ab")).step()
    world.bind("a")
    seconds = 0
    while not world.evicted and seconds < 700:
        if seconds == tried_s:
            world.try_("b")
        world.step(1)
        seconds += 1

    assert abs(seconds - evicted_s) <= 1


def test_a_member_that_kube_scheduler_called_unschedulable_was_tried() -> None:
    """As its object says, if the extender that was asked is not the one that leads now."""
    world = GangWorld({"n": 2}, members("ab")).step()
    world.bind("a")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    world.change("b", {"conditions": [condition]})
    world.steps(61)

    assert world.evicted == "a"


@pytest.mark.parametrize("status", [429, 409, 0])
def test_an_eviction_that_is_refused_or_without_an_answer_is_decided_anew(status: int) -> None:
    world = GangWorld({"n": 2}, members("ab")).step()
    world.bind("a")
    world.try_("b")
    world.answers = {"a": status}
    world.steps(64)
    assert world.evicted == "a"
    world.steps(2)
    assert world.evicted == "aa"
    assert world.starts.failures["some-bound"] == 1
    assert world.starts.evictions.total() == 2

    world.answers = {}
    world.steps(6)
    world.delete("a")
    world.steps(60)
    assert world.evicted == "aaa"


def test_nothing_of_a_gang_that_has_started_is_evicted_whatever_becomes_of_its_members() -> None:
    world = GangWorld({"n": 4}, members("abcd", marks={MINIMUM: "3"}))
    world.start("abc")
    world.try_("d")
    world.steps(61)
    assert (world.planned, world.evicted) == ({}, "")  # the fourth has another try as a single pod

    world.delete("a", "c")  # with both marks
    world.steps(1200, 10)
    assert world.evicted == ""


def test_after_the_extender_was_killed_those_without_a_node_are_planned_beside_the_others() -> None:
    """And a start has its whole deadline again."""
    world = GangWorld({"n": 2, "m": 3}, members("abc"))
    racked(world, n="r1", m="r2").step()
    world.bind("a")
    world.steps(50)
    world.begin()
    world.step()
    assert world.planned == {"b": "m", "c": "m"}

    world.try_("bc")
    world.steps(59)
    assert world.evicted == ""
    world.step(1)
    assert world.evicted == "a"


def begun(world: GangWorld, count: int, seconds: int = 1) -> list[int]:
    """The next starts of `a` and `b`, in seconds, which come to nothing."""
    found: list[int] = []
    while len(found) < count:
        before = world.planned
        world.step(seconds)
        world.try_("ab")
        found += [(world.now_ms - START_MS) // 1000] if "a" in world.planned and "a" not in before else []
    return found


def test_gangs_of_a_namespace_keep_cards_for_one_deadline_in_5_minutes_then_10_20_and_30() -> None:
    world = GangWorld({f"n{at}": 4 for at in range(9)}, [*members("ab"), *members("cd", gang="h")])
    world.step()
    assert set(world.planned) == {*"abcd"}

    world.try_("cd")
    starts = [0, *begun(world, 5)]
    assert [later - at for at, later in pairwise(starts)] == [300, 600, 1200, 1800, 1800]
    world.steps(61)
    assert "a start in namespace team-a came to nothing" in world.says("a")


def test_starts_of_a_namespace_that_come_to_nothing_keep_cards_for_one_deadline_in_all() -> None:
    """Twelve gangs come one after another, each with all that its start needs but a volume."""
    gangs = "abcdefghijkl"
    world = GangWorld({f"n{at}": 2 for at in range(12)})
    for name in gangs:
        world.put(*(member(f"{name}{at}", 2, gang=name) for at in range(2)))
        world.steps(5)
        for at in range(2):
            world.starts.tried(f"uid-{name}{at}")
    world.put(*of_team_b([member(f"z{at}", 24, gang="z") for at in range(24)]))

    world.step()
    assert not {f"z{at}" for at in range(24)} & {*world.planned}  # 60 s are not over
    world.steps(2)
    assert {*world.planned} == {f"z{at}" for at in range(24)}


def test_a_start_that_kube_scheduler_has_not_tried_goes_on_though_another_of_its_namespace_fails() -> None:
    world = GangWorld({f"n{at}": 4 for at in range(9)}, members("ab"))
    world.step()
    world.try_("ab")
    world.steps(58)
    world.put(*members("cd", gang="h"))
    world.steps(4)

    assert {*world.planned} == {*"cd"}
    world.bind("cd")
    assert world.step().evicted == ""


def test_a_gang_that_starts_ends_the_pause_of_its_namespace_and_another_namespaces_is_not_delayed() -> None:
    world = GangWorld({f"n{at}": 4 for at in range(9)}, members("ab"))
    fails(world, "")
    world.put(*members("cd", gang="h"), *of_team_b(members("pq", gang="i")))
    assert set(world.step().planned) == {"p", "q"}
    assert "a start in namespace team-a came to nothing" in world.says("c")
    assert "a start" not in world.says("p")

    world.steps(240)
    assert set(world.planned) == {*"abcdpq"}
    world.bind("cd")
    world.step()
    fails(world, "")
    world.steps(240)
    assert set(world.planned) >= {*"ab"}  # five minutes after the last, not ten


def of_team_b(raws: list[Json]) -> list[Json]:
    return [{**raw, "metadata": {**raw["metadata"], "namespace": "team-b"}} for raw in raws]


@pytest.mark.parametrize("has_cards", [False, True], ids=["they have no cards", "cards are kept for them"])
def test_pods_of_one_namespace_that_get_no_node_bar_no_other_namespaces_gangs(has_cards: bool) -> None:
    """A thousand pods whose volume is not there: kube-scheduler refuses them, and no gate can be put back."""
    world = GangWorld({f"n{at}": 16 for at in range(4 if has_cards else 1)})
    gates = (CARDS,) if has_cards else ()
    for at in range(1020):
        world.put(member(f"x{at}", 1020, gang="big", share=2, gates=gates, created_s=-99))
    world.step()
    assert len(world.planned) == (1020 if has_cards else 0)
    for at in range(1020):
        world.starts.tried(f"uid-x{at}")
    world.put(*members("abcdefgh", gang="small"), *of_team_b(members("pqrstuvw")))

    assert {*"abcdefghpqrstuvw"} & {*world.step().planned} == {*"pqrstuvw"}
    assert "too many pods of gangs in namespace team-a" in world.says("a")


def test_a_gang_that_lacks_cards_says_that_some_are_kept_for_the_starts_of_others() -> None:
    world = GangWorld({"n": 2}, members("ab", created_s=-99))
    world.put(*of_team_b(members("pq")))

    world.step()

    assert world.says("p").endswith("; cards are kept for starts of other gangs.")


def test_the_nodes_of_a_failed_start_are_avoided_for_10_minutes() -> None:
    world = GangWorld({"n": 2}, members("ab"))
    fails(world, "")
    assert "came to nothing" in world.says("a")
    world.put(*of_team_b(members("cd", gang="other")))
    assert set(world.step().planned) == {"c", "d"}  # others get them
    world.delete("c", "d")

    world.steps(598)
    assert world.planned == {}
    world.steps(2)
    assert set(world.planned) == {"a", "b"}


SPOILT: dict[str, Callable[[GangWorld, str], object]] = {
    "cordoned": lambda world, name: world.put_node(name, 2, {"unschedulable": True}),
    "tainted": lambda world, name: world.put_node(
        name, 2, {"taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]}
    ),
    "filled": lambda world, name: world.put(on(percent(100, "x"), name, f"{name}-GPU-0")),
    "without its plugin": lambda world, name: world.put_node(name, 2, percent="0"),
    "gone": lambda world, name: world.cache.node_deleted(name),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=[*SPOILT])
def test_members_whose_node_does_not_take_them_any_more_are_planned_anew_at_most_each_10_s(
    spoil: Callable[[GangWorld, str], object],
) -> None:
    """All that have no node; those without gates are woken."""
    world = GangWorld({"a": 2, "b": 2, "c": 2}, members("pq")).step()
    assert world.planned == {"p": "a", "q": "a"}
    spoil(world, "a")
    world.steps(9)
    assert set(world.planned.values()) == {"a"}
    world.calls.clear()

    world.steps(1)
    assert world.planned == {"p": "b", "q": "b"}
    assert [name for _, name, body in world.calls if "status" in body] == ["p", "q"]
    SPOILT["cordoned"](world, "b")
    world.steps(9)
    assert set(world.planned.values()) == {"b"}
    world.steps(1)
    assert set(world.planned.values()) == {"c"}


# those that come later


def test_a_gang_that_grows_gets_a_place_for_one_after_the_other_near_its_members() -> None:
    world = GangWorld({"a": 2, "b": 1, "c": 4})
    racked(world, a="r1", b="r1", c="r2").put(*(near(raw, LABEL) for raw in members("pq")))
    world.start("pq")
    world.steps(5)
    world.put(*(near(member(name, 5), LABEL) for name in "rst"))  # as its owner says by now

    assert world.step().planned == {"r": "b"}
    assert world.bind("r") == [world.now]
    world.steps(60)
    assert world.planned == {}
    assert "runs: 3 of 5 members have a node; 0 of 1 members fit; 1 cards missing" in world.says("s")
    world.put_node("b", 3)
    world.nodes["b"]["metadata"]["labels"] = {LABEL: "r1"}
    world.begin()
    world.steps(6)
    assert world.planned == {"s": "b", "t": "b"}


def test_a_member_that_joined_starts_anew_with_the_rest_once_those_that_ran_are_lost() -> None:
    world = GangWorld({"n": 8}, members("abcd", marks={MINIMUM: "2"}))
    world.start("ab")
    world.bind("cd")
    for name in "cd":  # as where their Bindings were made before their gang had started
        del world.pods[name]["metadata"]["annotations"][STARTED]
    world.delete("d")
    world.put(member("e", 4, marks={MINIMUM: "2"}))
    world.step(0.5)
    assert world.planned == {"e": "n"}
    world.put(world.pods["c"])
    world.delete("a", "b")
    world.put_node("n", 8, spec={"unschedulable": True})
    world.put_node("m", 2)
    world.steps(12)

    assert world.planned == {"e": "m"}


@pytest.mark.parametrize("lost", ["c", "bc"])
def test_a_replacement_of_the_same_owner_gets_a_place_at_once(lost: str) -> None:
    """A gang that has started asks its size no more: each further pod is a single pod."""
    world = GangWorld({"n": 8}, members("abc"))
    world.start("abc")
    world.delete(*lost)
    world.steps(60)
    world.put(member("d", 3))

    assert world.step(0.5).planned == {"d": "n"}


@pytest.mark.parametrize("leaving", ["", "b"])
@pytest.mark.parametrize("owner", ["", "uid-another", "uid-g"])
def test_one_of_another_owner_waits_until_no_member_has_left_for_5_s(owner: str, leaving: str) -> None:
    """Else it might be the first of the gang's next life, which starts whole."""
    world = GangWorld({"n": 8}, members("abc"))
    world.start("abc")
    for name in leaving:
        world.leave(name)
    world.steps(60)
    world.put(owned_by(member("d", 3), owner))
    is_at_once = owner == "uid-g" and not leaving

    world.steps(2)
    assert (world.planned == {"d": "n"}) is is_at_once
    world.delete(*leaving)
    world.put(member("e", 3, gates=(BUDGET, CARDS)))
    world.step()
    assert bool(world.planned) is (owner == "uid-g")
    world.steps(6)
    assert world.planned == {"d": "n"}


def test_a_member_that_comes_late_waits_for_no_plan_of_another_gang() -> None:
    """Plans of gangs that fit nowhere have their share of the time; a single pod waits for none of them."""
    world = GangWorld({"n": 3}, members("ab"))
    world.start("ab")
    world.delete("b")
    world.put(*members("pqrs", gang="h", created_s=-900))
    world.before_plan = lambda: setattr(world, "now_ms", world.now_ms + 450)
    world.step()
    assert world.planned == {}
    world.put(member("c"))

    assert world.step(0.5).planned == {"c": "n"}


@pytest.mark.parametrize("key", ["job/g/uid-g", "statefulset/g/uid-g", "bursar/g"])
def test_after_a_shrink_the_newest_pod_says_the_size(key: str) -> None:
    world = GangWorld({"n": 8}, members("abcd", marks={"bursar.dev/gang-key": key}))
    world.start("abcd")
    world.delete("b", "c", "d")
    world.steps(60)
    world.put(member("e", 2, marks={"bursar.dev/gang-key": key}))

    assert world.step(0.5).planned == {"e": "n"}
    assert "runs: 1 of 2 members have a node" in world.says("e")


def test_a_late_member_that_gets_no_node_has_a_deadline_and_its_gang_goes_on() -> None:
    world = GangWorld({"a": 2, "b": 1, "c": 1}, members("pq"))
    world.start("pq")
    world.steps(6)
    world.put(member("r"))
    assert world.step().planned == {"r": "b"}
    world.try_("r")
    world.steps(61)
    assert (world.planned, world.evicted) == ({}, "")
    assert "its last start came to nothing, and it is tried again soon" in world.says("r")
    world.steps(16)
    assert world.planned == {"r": "c"}
    world.try_("r")
    world.steps(61)
    world.put_node("d", 1)
    world.steps(20)
    assert world.planned == {}
    world.steps(10)
    assert world.planned == {"r": "d"}


def test_a_gang_of_which_no_member_has_a_node_any_more_starts_whole_again() -> None:
    """All are preempted, and their controller makes others at once."""
    world = GangWorld({"n": 3}, members("ab"))
    world.start("ab")
    for name in "ab":
        world.leave(name)
    world.put(member("c"))
    world.step()
    world.put(member("d"), percent(100, "x") | {})
    world.delete("a", "b")
    world.put(on(percent(100, "x"), "n", "GPU-0"), on(percent(100, "y"), "n", "GPU-1"))

    world.steps(30)
    assert world.planned == {}
    world.delete("y")
    world.steps(10)
    assert set(world.planned) == {"c", "d"}


def test_one_more_than_its_minimum_waits_quietly_after_the_others_have_ended_well() -> None:
    """It needs none, and one is to start: a plan for none is no plan."""
    world = GangWorld(
        {"n": 1}, [*members("ab", size=3, marks={MINIMUM: "2"}), on(percent(100, "x"), "n", "GPU-0")]
    )
    world.delete("a", "b")
    world.put(*(ended(name, 3) for name in "ab"), member("c", 3, marks={MINIMUM: "2"}))
    world.steps(30)

    assert world.starts.plans["fits"] == 0
    assert "1 cards missing" in world.says("c")
    world.delete("x")
    world.steps(6)
    assert world.planned == {"c": "n"}


# settings


def test_a_gang_leaves_whose_member_does_not_run_in_time_after_its_start_if_that_is_wanted() -> None:
    """As without its image. A refused eviction is not asked for in each step."""
    forever, world = (GangWorld({"n": 2}, members("ab"), ready_for_ms=ms) for ms in (0, 90_000))
    for each in (forever, world):
        each.step()
        each.bind("a")
        each.bind("b", phase="Pending")
        each.answers = {"b": 429}
        each.steps(89)
        assert each.evicted == ""
        each.steps(3)
    assert forever.evicted == ""
    assert world.evicted == "ab"
    assert world.starts.failures["not-ready"] == 1
    assert [text for reason, text in world.told if reason == "GangEviction"] == [
        "Evicted by Bursar: b of gang g has not run in time after its start."
    ]
    world.steps(3)
    assert world.evicted == "abb"


def test_a_gang_stays_all_of_whose_members_run_in_time() -> None:
    world = GangWorld({"n": 2}, members("ab"), ready_for_ms=90_000).step()
    world.bind("ab", phase="Pending")
    world.steps(80)
    for name in "ab":
        world.change(name, {"phase": "Running"})
    world.steps(600, 10)
    assert world.evicted == ""


def test_an_autoscaler_sees_one_gang_that_lacks_cards_for_15_minutes_and_then_the_next() -> None:
    world = GangWorld({"n": 1}, autoscales=True)
    world.put(*members("ab", gang="x"), *members("cd", gang="y", created_s=-9))
    world.put(*members("ef", gang="z", created_s=-5))
    world.steps(30)
    assert world.open == ""
    world.steps(2)
    assert (world.open, world.planned) == ("ab", {})
    world.steps(890, 10)
    assert world.open == "ab"
    world.steps(20, 5)
    assert world.open == "abcd"
    world.steps(910, 10)
    assert world.open == "abcdef"


def test_the_cards_of_nodes_that_come_for_a_gang_are_kept_until_all_of_it_fits() -> None:
    world = GangWorld({"n": 1}, members("abcde", created_s=-9), autoscales=True)
    world.steps(35)
    assert world.open == "abcde"
    world.put_node("new", 2)
    free = world.cache.snapshot.node("new").free_by_card  # no pod that waits is faster than the next step
    assert [each.share_milli for each in free if each is not None] == [0, 0]
    world.put(*members("xy", gang="other", priority=9))
    world.steps(20)
    assert (world.open, world.planned) == ("abcde", {})
    assert "2 cards on 1 node are kept for it" in world.says("a")

    world.put_node("newer", 2)
    world.steps(5)
    assert sorted(world.planned) == [*"abcde"]
    assert world.cache.snapshot.drain is None


@pytest.mark.parametrize(
    ("other", "asks"),
    [
        ({"spec": {"taints": [{"key": "pool", "value": "y", "effect": "NoSchedule"}]}}, {}),
        ({}, {"nodeSelector": {"pool": "x"}}),
        ({"percent": "0"}, {}),
        ({"cards": 1}, {}),
        ({}, {"models": "H100"}),
    ],
    ids=["a taint", "its selector", "its resource is not there", "too few cards", "another model"],
)
def test_the_cards_of_a_node_that_none_of_its_members_could_use_are_not_kept(other: Json, asks: Json) -> None:
    raws = [member(name, created_s=-9, share=200) for name in "ab"]
    for raw in raws:
        if "nodeSelector" in asks:
            raw["spec"]["nodeSelector"] = asks["nodeSelector"]
        if "models" in asks:
            raw["metadata"]["annotations"]["bursar.dev/gpu-models"] = asks["models"]
    world = GangWorld({"n": 1}, raws, autoscales=True)
    world.steps(35)
    assert world.open == "ab"
    world.put_node("other", **{"cards": 2, **other})
    world.put(member("z", gang="alone", size=1, priority=9))
    world.steps(3)

    assert world.cache.snapshot.drain is not None
    assert world.cache.snapshot.drain.cards == ()


# the verbs


@pytest.fixture
def planned(running: Stepped) -> Stepped:
    """The real extender has planned a gang of two on a node; another one has more cards."""
    running.put_node(node("n", card(0), card(1)))
    running.put_node(node("m", *map(card, range(4))))
    for raw in members("ab"):
        running.put_pod(raw)
    running.extender.gangs.step()
    running.catches_up()
    return running


def test_filter_gives_a_member_its_planned_node_and_none_without_a_plan(planned: Stepped) -> None:
    a, alone = planned.api.pod("a"), planned.put_pod(member("c", gang="alone"))

    assert planned.filter(a, "n", "m")["NodeNames"] == ["n"]
    assert planned.filter(a, "m")["NodeNames"] == []
    assert planned.filter(alone, "n", "m")["NodeNames"] == []
    assert (
        planned.bind(alone, "m") == planned.bind(a, "m") == "no cards are kept for all of the pod's gang yet"
    )
    assert planned.filter(planned.put_pod(percent(100, "s")), "n")["NodeNames"] == []
    assert [planned.bind(planned.api.pod(name), "n") for name in "ab"] == ["", ""]
    written = [planned.api.pod(name)["metadata"]["annotations"].get(STARTED, "") for name in "ab"]
    assert [bool(mark) for mark in written] == [False, True]


@pytest.mark.parametrize(
    "says", [{"standing": "OVER_BUDGET", "onExhausted": "deny", "spent": True}, {"caps": {"total": 1000}}]
)
def test_what_the_standing_and_the_cap_say_after_the_plan_stops_no_member(
    planned: Stepped, says: Json
) -> None:
    single = planned.put_pod(percent(100, "s"))
    planned.says(standings(team_a=entry(**says)))
    assert planned.filter(single, "m")["NodeNames"] == []

    for name in "ab":
        raw = planned.api.pod(name)
        assert planned.filter(raw, "n", "m")["NodeNames"] == ["n"]
        assert planned.bind(raw, "n") == ""


def test_filter_gives_a_member_no_node_while_cards_are_reserved_for_its_gang(planned: Stepped) -> None:
    """Others have not left yet, although its gate is gone, as of a PodGroup's pods."""
    now_ms = planned.now_ms
    waiting = member("c", gang="alone", gates=())
    raw = planned.put_pod(held(waiting, "m", "m-GPU-0", since_ms=now_ms, until_ms=now_ms + 60_000))
    (allocation,) = [planned.extender.cache.snapshot.allocation("uid-c")]
    assert allocation is not None
    assert allocation.state == "reserved"

    assert planned.filter(raw, "n", "m")["NodeNames"] == []
    assert planned.bind(raw, "m") == "no cards are kept for all of the pod's gang yet"


def test_kube_scheduler_gets_no_victims_for_a_member(planned: Stepped) -> None:
    planned.put_pod(on(percent(100, "low", priority=-5), "m", "m-GPU-0"))
    mine = planned.put_pod(member("c", gang="alone", gates=()))
    offered = {"NodeNameToVictims": None, "NodeNameToMetaVictims": {"m": {"Pods": [{"UID": "uid-low"}]}}}

    answer = planned.client.post("/preempt", json={"Pod": mine, **offered}).get_json()
    assert not answer["NodeNameToMetaVictims"]


def test_a_member_takes_no_part_of_a_card_that_is_kept_for_another(running: Stepped) -> None:
    running.put_node(node("n", card(0), card(1)))
    for raw in members("ab", share=50):
        running.put_pod(raw)
    running.extender.gangs.step()
    running.catches_up()
    running.put_pod(on(percent(100, "x"), "n", "GPU-1"))

    assert [running.bind(running.api.pod(name), "n") for name in "ab"] == ["", ""]
    assert running.free("n") == [0, 0]


def test_a_single_pod_that_comes_first_keeps_its_card_from_a_gang(running: Stepped) -> None:
    running.put_node(node("n", card(0), card(1)))
    first = percent(100, "s", priority=5, schedulerName="bursar-scheduler")
    running.filter(running.put_pod(first), "gone")
    for raw in members("ab"):
        running.put_pod(raw)
    running.extender.gangs.step()

    assert running.free("n") == [1000, 1000]
    reasons = {pod["name"]: pod["reason"] for pod in running.extender.waiting_pods()["pods"]}
    assert "1 of 2 members fit; 1 cards missing" in reasons["a"]


def test_what_contradicts_the_laws_of_a_start_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="a start that is over keeps cards, or joins those that run"):
        Start(began_ms=0, until_ms=0, joins=True, is_over=True)
    with pytest.raises(ValueError, match="a gang that is short of cards lacks nothing"):
        GangHistory(short_ms=0)


# what can never start


@pytest.mark.parametrize(
    ("names", "ask", "pools", "says"),
    [
        ("wxyz", {"gpu_count": "2"}, "hhl", "needs 8 cards on nodes with pool=h, which have 6"),
        ("wxyz", {"gpu_count": "2"}, "hhh", ""),
        ("wxyz", {"gpu_count": "3"}, "hhh", "needs 12 cards on nodes with pool=h, which have 8"),
        (
            "wx",
            {"gpu_count": "3"},
            "hhh",
            "2 members need 3 cards each, and nodes with pool=h take 1 of them",
        ),
        ("wxyz", {"gpu_percent": "50"}, "lhl", ""),
        (
            "wxy",
            {"gpu_percent": "60"},
            "lhl",
            "3 members need 0.6 cards each, and nodes with pool=h take 2 of them",
        ),
        ("wxyz", {"gpu_percent": "75"}, "lhl", "needs 3 cards on nodes with pool=h, which have 2"),
        ("wxyz", {"gpu_percent": "50"}, "lll", "needs 2 cards on nodes with pool=h, which have 0"),
    ],
)
@pytest.mark.parametrize("autoscales", [False, True])
def test_a_gang_for_which_there_are_too_few_cards_whoever_leaves_is_told_so(
    names: str, ask: Json, pools: str, says: str, autoscales: bool
) -> None:
    """Nodes of four, two and two cards, of which one is held. An autoscaler's pool could bring more."""
    world = GangWorld({"a": 4, "b": 2, "c": 2}, autoscales=autoscales)
    for name, pool in zip("abc", pools, strict=True):
        world.nodes[name]["metadata"]["labels"]["pool"] = pool
    for name in names:
        raw = member(name, len(names), nodeSelector={"pool": "h"})
        world.put({**raw, "spec": {**raw["spec"], "containers": [container(**ask)]}})
    world.put(*(on(percent(100, f"on-{name}"), name, "GPU-0") for name in "abc"))
    world.begin()
    world.step()

    is_told = bool(says) and not autoscales
    assert ("never" in world.says(names[0])) is is_told
    if is_told:
        assert says in world.says(names[0]).partition("it can never start here: ")[2]
    assert not world.planned


def test_cards_of_closed_and_cordoned_nodes_are_not_said_never_to_come() -> None:
    """And of a node without an inventory it is not known how many it has."""
    for spec, annotations in (({"unschedulable": True}, None), ({}, {"bursar.dev/inventory": "?"})):
        world = GangWorld({"a": 1, "b": 1}, members("xy"))
        world.nodes["b"]["spec"] = spec
        if annotations:
            world.nodes["b"]["metadata"]["annotations"] |= annotations
        world.begin()
        world.put(on(percent(100, "other"), "a", "GPU-0"))
        assert "; 0 of 2 members fit; 2 cards missing of 2; no node takes more" in world.step().says("x")


@pytest.mark.parametrize("group", [False, True])
def test_a_gang_above_a_cap_is_told_so_whoever_leaves(group: bool) -> None:
    cap = Cap(total_milli=2_000)
    caps = Caps(group="lab", of_group=cap) if group else Caps(own=cap)
    world = GangWorld({"n": 3}, members("abc"), autoscales=True)
    world.standings = NamespaceStandings(default=NamespaceStanding("IN_BUDGET", caps=caps))

    says = world.step().says("a")

    assert "it can never start by maxGPUs: it needs 3 cards, and may hold 2." in says


def test_the_domain_that_has_the_most_cards_counts() -> None:
    world = racked(GangWorld({"n": 2, "m": 2}, [near(raw, LABEL) for raw in members("abc")]), n="1", m="2")
    assert "needs 3 cards on nodes that it may use in one rack, which have 2 at most" in world.step().says(
        "a"
    )
