"""A pod of a gang that runs costs all that leave with it: the choice of victims, and kube-scheduler's."""

import random
from typing import Any

import pytest

from scheduler_ext.preemption.cooldown import NOTHING_DONE
from scheduler_ext.preemption.plan import PreemptionLimits, plan
from scheduler_ext.preemption.victims import Choice, best
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.gang_table import Gangs, gang_key
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.preempt_verb import NodeVictims, with_cards
from scheduler_ext.waiting.order import WaitingPod
from tests.scheduler_ext.preemption_worlds import (
    IN,
    NOW_MS,
    at,
    budget,
    chosen,
    names_of,
    of,
    pdbs,
    standing,
)
from tests.scheduler_ext.worlds import Json, asking, node, on, percent, read, rebuilt
from tests.worlds import card, container

WAITING = read(percent(100, "waiting", priority=10))


def member(name: str, where: str, place: int, gang: str = "g", share: int = 100, **fields: Any) -> Json:
    """A pod of a gang of two that has a card of the node, or a part of it. ``size``, ``minimum``: of its
    gang."""
    size, minimum = fields.pop("size", 2), fields.pop("minimum", 0)
    marks = {"bursar.dev/held": "turn", "bursar.dev/gang": gang, "bursar.dev/gang-size": str(size)}
    least = {"bursar.dev/gang-minimum": str(minimum)} if minimum else {}
    return single(name, where, place, share, annotations=marks | least, **fields)


def single(name: str, where: str, place: int, share: int = 100, **fields: Any) -> Json:
    """A pod that has a part of a card of the node, and starts by itself."""
    uuid = f"GPU-{place}" if where == "n" else f"{where}-GPU-{place}"
    return on(percent(share, name, **fields), where, uuid)


def world(*pods: Json, cards: int = 2) -> Snapshot:
    """The nodes "m" and "n" of so many cards, with these pods on them."""
    return rebuilt([node(name, *map(card, range(cards))) for name in "mn"], list(pods))


def test_of_a_gang_all_pods_leave_on_whatever_nodes_they_are() -> None:
    snapshot = world(member("a", "n", 0), member("b", "m", 0), single("s", "n", 1, priority=20))

    assert names_of(chosen(WAITING, snapshot)) == ["a", "b"]


def test_two_single_pods_leave_rather_than_three_of_a_gang() -> None:
    gang = [member(name, "n" if name == "a" else "m", place, size=3) for place, name in enumerate("abc")]
    halves = [single(name, "n", 1, 50, priority=5) for name in "st"]

    full = world(*gang, *halves, single("u", "n", 2, priority=20), cards=3)
    assert names_of(chosen(WAITING, full)) == ["s", "t"]


def test_of_two_gangs_the_smaller_leaves_whatever_its_priority() -> None:
    large = [member(name, "n" if name == "a" else "m", place, size=3) for place, name in enumerate("abc")]
    small = [member("d", "n", 1, "h", 1, priority=5)]
    snapshot = world(*large, *small, single("u", "n", 2, priority=20), cards=3)

    assert names_of(chosen(WAITING, snapshot)) == ["d"]


def test_an_elastic_gang_gives_a_pod_above_its_minimum_and_else_leaves_whole() -> None:
    """The one of the lowest priority; a pod that was evicted a moment ago counts no more."""
    pods = [member(name, "n", place, size=3, minimum=2, priority=place) for place, name in enumerate("ab")]
    snapshot = world(*pods, member("c", "m", 0, size=3, minimum=2, priority=-1))
    assert names_of(chosen(WAITING, snapshot)) == ["a"]

    gone = next(pod for pod in snapshot.pods.values() if pod.name == "c")
    after = NOTHING_DONE.after(gone, WAITING, NOW_MS)
    assert names_of(chosen(WAITING, snapshot, at(snapshot, cooldown=after))) == ["a", "b"]


def test_a_gang_of_which_one_may_not_be_evicted_stays_whole() -> None:
    snapshot = world(member("a", "n", 0), member("b", "m", 0, priority=10), single("s", "n", 1, priority=20))

    assert chosen(WAITING, snapshot) is None


def test_of_an_idle_gang_all_pods_are_reclaimed_and_no_debtor_alone() -> None:
    """The gang's other pod is in budget, for it is not idle."""
    waiting = read(of(percent(100, "waiting"), "team-in"))
    idle = {"bursar.dev/reclaimable": "idle"}

    def choice(*marks: Json) -> list[str] | None:
        pods = [member(name, where, 0) for name, where in (("a", "n"), ("b", "m"))]
        for raw, mark in zip(pods, marks, strict=True):
            raw["metadata"]["annotations"] |= mark
        snapshot = world(*pods, single("s", "n", 1, priority=20))
        return names_of(chosen(waiting, snapshot, at(snapshot, standing(team_in=IN))))

    assert choice(idle, {}) is None
    assert choice(idle, idle) == ["a", "b"]


def test_who_need_not_leave_because_a_gang_does_is_spared() -> None:
    """One of the gang and ``s`` would do; the gang's other pod leaves with it."""
    two = read(asking(container(gpu_count="2"), name="two", priority=10))
    snapshot = world(member("a", "n", 0), member("b", "n", 1), single("s", "n", 2, priority=-5), cards=3)

    assert names_of(chosen(two, snapshot)) == ["a", "b"]


def test_half_a_card_is_taken_from_a_single_pod_and_a_whole_one_from_a_gang() -> None:
    """``s`` has half of the card whose other half the gang's second pod has."""
    gang = [member("a", "n", 0), member("b", "n", 1, share=50)]
    half = read(percent(50, "half", priority=10))
    snapshot = world(*gang, single("s", "n", 1, 50))

    assert names_of(chosen(half, snapshot)) == ["s"]
    assert names_of(chosen(WAITING, snapshot)) == ["a", "b"]


def test_among_nodes_the_one_is_taken_that_breaks_no_gang() -> None:
    gang = member("a", "n", 0), member("b", "m", 1)
    snapshot = world(*gang, single("t", "n", 1, priority=20), single("s", "m", 0))
    context = at(snapshot)
    choices = [each for name in "nm" if (each := chosen(WAITING, snapshot, context, name)) is not None]

    found: Choice | None = best(choices, context)
    assert names_of(found) == ["s"]


def test_what_a_gang_frees_on_other_nodes_makes_no_room_here() -> None:
    """kube-scheduler counts 100 % on the node, of which a pod that stays has 40."""
    capacity = {"bursar.dev/gpu-percent": "100", "bursar.dev/gpu-memory": "99999"}
    idle = {"bursar.dev/reclaimable": "idle"}
    gang = [member(name, where, 0, share=60) for name, where in (("a", "n"), ("b", "m"))]
    for raw in gang:
        raw["metadata"]["annotations"] |= idle
    pods = [*gang, single("t", "n", 1, 40, priority=20)]
    waiting = read(of(percent(90, "waiting", schedulerName="bursar-scheduler"), "team-in"))

    def planned(capacity: Json | None) -> list[str] | None:
        nodes = [node("n", card(0), card(1), capacity=capacity), node("m", card(0))]
        snapshot = rebuilt(nodes, pods)
        context = at(snapshot, standing(team_in=IN))
        offered = WaitingPod(waiting, BINPACK, frozenset({"n"}))
        limits = PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", needs_standings=False)
        return names_of(plan(offered, [snapshot.node("n")], context, limits))

    assert planned(None) == ["a", "b"]
    assert planned(capacity) is None


def test_disruption_budgets_count_for_all_that_leave() -> None:
    gang = member("a", "n", 0), member("b", "m", 0)
    pods = [of(each, "team-b", labels={"app": "g"}) for each in gang]
    snapshot = world(*pods, single("s", "n", 1, priority=20))
    promised = pdbs(budget("team-b", 1, {"matchLabels": {"app": "g"}}))

    choice = chosen(WAITING, snapshot, at(snapshot, promised=promised))

    assert choice is not None
    assert choice.violations == 1


def answered(snapshot: Snapshot, victim: str) -> NodeVictims | None:
    """To kube-scheduler, which chose this victim on node "n"."""
    offered = {"n": NodeVictims((f"uid-{victim}",), 0)}
    return dict(with_cards(WAITING, offered, snapshot, at(snapshot), BINPACK))["n"]


@pytest.mark.parametrize(
    ("where", "answer"),
    [("n", NodeVictims(("uid-a", "uid-b"), 0)), ("m", NodeVictims(("uid-a",), 1))],
)
def test_kube_scheduler_gets_all_of_a_gang_on_the_node_and_those_elsewhere_as_violations(
    where: str, answer: NodeVictims
) -> None:
    snapshot = world(member("a", "n", 0), member("b", where, 1))

    assert answered(snapshot, "a") == answer


def test_kube_scheduler_gets_no_node_where_it_chose_one_of_a_gang_that_stays() -> None:
    assert answered(world(member("a", "n", 0), member("b", "m", 0, priority=10)), "a") is None


def test_kube_schedulers_victim_above_the_minimum_of_its_gang_leaves_alone() -> None:
    snapshot = world(member("a", "n", 0, minimum=1), member("b", "n", 1, minimum=1))

    assert answered(snapshot, "a") == NodeVictims(("uid-a",), 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_members_are_the_same_whatever_snapshots_were_looked_at_before(seed: int) -> None:
    """Pods that come, change, leave and go, and looks at older snapshots between them."""
    rng = random.Random(seed)
    versions: list[Map[Any]] = [Map()]
    gangs = Gangs()
    for _ in range(60):
        name = f"p{rng.randrange(8)}"
        raw = member(name, "n", 0, rng.choice("gh"))
        if rng.random() < 0.2:
            raw["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
        pods = versions[-1]
        versions.append(pods.without(name) if rng.random() < 0.3 else pods.set(name, read(raw)))
        looked = rng.choice(versions)
        for key in ("default/bursar/g", "default/bursar/h"):
            there = [pod for _, pod in looked.items() if gang_key(pod) == key and not pod.deleting]
            found = gangs.members(looked, key)
            assert sorted(pod.name for pod in found) == sorted(pod.name for pod in there)
