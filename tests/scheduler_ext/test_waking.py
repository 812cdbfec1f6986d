"""Waking: when cards free, the pod that should go next is woken, and no other."""

from collections.abc import Callable

import pytest

from scheduler_ext.policy import BINPACK
from scheduler_ext.waiting import MOST_NODES, next_to_wake, waiter
from tests.scheduler_ext.apiserver import Fault
from tests.scheduler_ext.conftest import Running, eventually
from tests.scheduler_ext.worlds import Json, node, on, percent, read, rebuilt

Start = Callable[..., Running]


def waits(name: str, share: int = 60, priority: int = 0, created: str = "", **fields: object) -> Json:
    """A waiting pod of our scheduler."""
    raw = percent(share, name, schedulerName="bursar-scheduler", priority=priority, **fields)
    if created:
        raw["metadata"]["creationTimestamp"] = created
    return raw


@pytest.fixture
def full(running: Running) -> Running:
    """One node of one card that is full."""
    running.put_node(node("a"))
    running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    return running


def frees(world: Running) -> None:
    """The holder ends."""
    world.api.put("pods", {**world.api.pod("holder"), "status": {"phase": "Succeeded"}})


def woken(world: Running) -> list[str]:
    """The UIDs of the pods that were woken, in order."""
    return [sent["metadata"]["uid"] for sent in world.api.made("patch")]


def refuse(world: Running, raw: Json, *names: str) -> None:
    """The pod comes and is refused on these nodes."""
    world.put_pod(raw)
    assert world.filter(world.api.pod(raw["metadata"]["name"]), *names)["NodeNames"] == []


def test_a_freed_card_wakes_the_one_that_should_go_next_and_no_other(full: Running) -> None:
    refuse(full, waits("low", priority=-5), "a")
    refuse(full, waits("high", priority=1000), "a")
    refuse(full, waits("middle"), "a")

    frees(full)

    eventually(lambda: woken(full))
    assert woken(full) == ["uid-high"]
    (sent,) = full.api.made("patch")
    (condition,) = sent["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "bursar.dev/CardFreed",
        "True",
        "CardFreed",
    )


def test_other_conditions_of_the_pod_stay(full: Running) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    refuse(full, {**waits("p"), "status": {"phase": "Pending", "conditions": [unscheduled]}}, "a")

    frees(full)

    eventually(lambda: woken(full))
    conditions = full.api.pod("p")["status"]["conditions"]
    assert unscheduled in conditions
    assert len(conditions) == 2


def test_when_it_is_bound_the_next_that_still_fits_is_woken(full: Running) -> None:
    for name, share, priority in (("first", 60, 3), ("second", 60, 2), ("third", 40, 1)):
        refuse(full, waits(name, share, priority), "a")
    frees(full)
    eventually(lambda: woken(full) == ["uid-first"])

    assert full.bind(full.api.pod("first"), "a") == ""

    eventually(lambda: len(woken(full)) == 2)
    assert woken(full) == ["uid-first", "uid-third"]


def test_one_that_is_refused_again_makes_way_for_the_next(full: Running) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")
    frees(full)
    eventually(lambda: woken(full) == ["uid-first"])

    full.filter(full.api.pod("first"), "elsewhere")  # kube-scheduler finds that something else keeps it off

    eventually(lambda: len(woken(full)) == 2)
    assert woken(full) == ["uid-first", "uid-second"]


def test_one_that_is_not_tried_in_time_makes_way_and_is_not_woken_again(full: Running) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")

    frees(full)

    eventually(lambda: len(woken(full)) == 2)
    assert woken(full) == ["uid-first", "uid-second"]
    rounds = full.extender.waker._rounds
    eventually(lambda: not rounds)
    assert len(woken(full)) == 2


def test_nobody_is_woken_for_a_node_that_was_not_offered_or_has_no_room(full: Running) -> None:
    full.put_node(node("b"))
    full.put_pod(on(percent(100, "other"), "b", "b-GPU-0"))
    refuse(full, waits("elsewhere"), "b")
    full.api.put("pods", {**on(percent(30, "filler"), "a", "a-GPU-0")})
    refuse(full, waits("too-large", 80), "a")

    frees(full)

    rounds = full.extender.waker._rounds
    eventually(lambda: full.free("a") == [700] and not rounds)
    assert woken(full) == []


@pytest.mark.parametrize("how", ["other scheduler", "gated", "deleting", "bound"])
def test_who_does_not_wait_is_not_woken(full: Running, how: str) -> None:
    raw = waits("p", 60)
    if how == "other scheduler":
        raw["spec"]["schedulerName"] = "default-scheduler"
    refuse(full, raw, "a")
    refuse(full, waits("last", 60, priority=-9), "a")
    if how == "gated":
        raw["spec"]["schedulingGates"] = [{"name": "wait"}]
    if how == "deleting":
        raw["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    if how == "bound":
        raw["spec"]["nodeName"] = "elsewhere"
    full.put_pod(raw)

    frees(full)

    eventually(lambda: woken(full))
    assert woken(full) == ["uid-last"]


def test_what_freed_between_the_snapshot_of_a_refusal_and_now_is_looked_at_again(full: Running) -> None:
    full.put_pod(waits("p"))
    before = full.extender.books.snapshot
    frees(full)
    eventually(lambda: full.free("a") == [1000])
    rounds = full.extender.waker._rounds
    eventually(lambda: not rounds)
    assert woken(full) == []

    full.extender.waker.refused(waiter(read(full.api.pod("p")), BINPACK, ["a"]), before)

    eventually(lambda: woken(full))
    assert woken(full) == ["uid-p"]


def test_cards_that_free_without_any_event_wake_too(full: Running) -> None:
    """A vanished pod's grace period ends: kube-scheduler hears nothing of that."""
    refuse(full, waits("p"), "a")
    holder = {**full.api.pod("holder")}
    holder["spec"] = {**holder["spec"], "terminationGracePeriodSeconds": 1}
    full.put_pod(holder)

    full.api.delete("pods", "holder", "team-a")

    eventually(lambda: woken(full))
    assert woken(full) == ["uid-p"]


def test_after_a_restart_those_who_wait_are_woken_though_nobody_saw_them_refused(start: Start) -> None:
    first = start()
    first.put_node(node("a"))
    first.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    first.put_pod(waits("p"))
    first.extender.stop()
    second = start()

    frees(second)

    eventually(lambda: woken(second))
    assert woken(second) == ["uid-p"]


def test_a_wake_that_fails_harms_nobody(full: Running) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")
    full.api.faults.append(Fault("patch", status=500))

    frees(full)

    eventually(lambda: len(woken(full)) == 2)
    assert woken(full) == ["uid-first", "uid-second"]


def test_turns_go_by_priority_and_then_by_age() -> None:
    old, new = "2026-11-20T04:32:53Z", "2026-11-20T04:32:54Z"
    raws = [waits("new", created=new), waits("old", created=old), waits("high", priority=1, created=new)]
    waiters = [waiter(read(raw), BINPACK, ["n"]) for raw in raws]
    free = rebuilt([node("n")], []).node("n")
    order = []
    while (chosen := next_to_wake(free, waiters)) is not None:
        waiters.remove(chosen)
        order.append(chosen.pod.name)

    assert order == ["high", "old", "new"]


def test_of_very_many_offered_nodes_any_may_be_the_one() -> None:
    names = [f"n{at}" for at in range(MOST_NODES + 1)]

    assert waiter(read(waits("p")), BINPACK, names).offered is None
    assert waiter(read(waits("p")), BINPACK, names[:-1]).offered == frozenset(names[:-1])
