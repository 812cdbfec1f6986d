"""How many preemptions there are at a time, in which order, and shared fairly among namespaces."""

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.snapshot.node_info import without_pod
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET, Stage, stage, unscheduled
from tests.scheduler_ext.preempting_worlds import (
    FRAGMENTED,
    OWES,
    begins,
    debtors,
    low,
    owed_cards,
    reservation,
)
from tests.scheduler_ext.reserving import NOW_MS, stamp
from tests.scheduler_ext.worlds import bound, node, on, percent, request_of
from tests.worlds import card
from timekeeper.core.request.cards import encode_placement


def test_no_more_pods_than_allowed_have_cards_held_at_a_time() -> None:
    nodes = [node(f"n{at}", card(0), card(1)) for at in range(4)]
    pods = [on(percent(60, f"low{at}-{c}"), f"n{at}", f"n{at}-GPU-{c}") for at in range(4) for c in range(2)]
    waiting = [unscheduled(f"high{at}", 60, priority=9) for at in range(4)]
    world = stage(
        *nodes,
        *pods,
        *waiting,
        most=2,
        offered={f"high{at}": [f"n{at}" for at in range(4)] for at in range(4)},
    )
    world.settles()
    world.step(times=50)

    assert sum(bool(reservation(world, f"high{at}")) for at in range(4)) == 2
    assert len(world.asked()) == 2


def test_none_at_all_where_none_are_allowed() -> None:
    world = stage(*FRAGMENTED, most=0)
    begins(world, "high")

    assert world.api.made("patch") == []


def test_those_of_higher_priority_go_first() -> None:
    waiting = [unscheduled("high", 50, priority=9), unscheduled("highest", 50, priority=10)]
    world = stage(*FRAGMENTED[:2], low("b", 70, "GPU-1", priority=10), *waiting)
    begins(world, "high", "highest")

    assert next(name for name, reason in world.told if reason == "CardsHeld") == "highest"
    assert world.asked() == ["a"]  # whose leaving makes room for both


def test_a_namespace_has_at_most_half_the_places_while_another_waits() -> None:
    many = [unscheduled(f"a{at}", 100) for at in range(6)]
    late = unscheduled("c", 100, namespace="team-c")
    late["metadata"]["creationTimestamp"] = stamp(NOW_MS)
    world = stage(
        *owed_cards(8, NOW_MS - 20_000_000, waiting=0),
        *many,
        late,
        most=4,
        standings=NamespaceStandings({**OWES.listed, "team-c": IN_BUDGET}),
    )
    world.settles()
    world.step(times=60)

    held_for = [pod for pod in world.cache.snapshot.pods.values() if pod.reserved is not None]
    assert "c" in {pod.name for pod in held_for}


def test_no_pod_waits_for_ever_behind_pods_that_cannot_be_placed() -> None:
    older = [unscheduled(f"o{at}", 300 + 100 * at, priority=at % 2) for at in range(24)]
    late = unscheduled("late", 100)
    late["metadata"]["creationTimestamp"] = stamp(NOW_MS)
    world = stage(*owed_cards(2, NOW_MS - 20_000_000, waiting=0), *older, late, standings=OWES)
    world.look_s = 0.3
    world.step(times=120)

    assert world.asked() == ["d1"]


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


def test_ranking_many_pods_that_cannot_be_placed_takes_a_tenth_of_the_time_at_most() -> None:
    full = [node("n0"), on(percent(100, "same", priority=9), "n0", "n0-GPU-0")]
    waiting = [unscheduled(f"high{at}", 100, priority=9) for at in range(5)]
    world = stage(*full, *waiting)
    world.settles()
    world.rank_s, world.ranked, began_ms = 0.02, 0, world.now_ms

    world.step(times=100)

    assert world.ranked >= 5 * 5
    assert 0.02 * world.ranked <= (world.now_ms - began_ms) / 1000 / 10
    assert world.asked() == []


def test_namespaces_that_change_places_all_the_time_drive_each_other_out_a_few_times() -> None:
    owned = {
        name: [{"uid": f"uid-{name}", "controller": True, "kind": "ReplicaSet", "name": name}]
        for name in ("team-a", "team-b")
    }
    b = debtors("b", 60, "GPU-0")
    a = unscheduled("p", 60)
    a["metadata"]["ownerReferences"], b["metadata"]["ownerReferences"] = owned["team-a"], owned["team-b"]
    made: list[int] = []
    world = stage(node("n", card(0)), b, a, offered={"p": ["n"]})
    for at in range(120):  # ten minutes, in which the standings change each 30 s
        over, within = ("team-b", "team-a") if at // 6 % 2 == 0 else ("team-a", "team-b")
        world.standings = NamespaceStandings({over: DEBTOR, within: IN_BUDGET})
        world.step(after_s=5)
        lives(world, made)

    assert 1 <= len(made) <= 3
    assert len(world.asked()) == len(made)
