"""Which held pods are released next."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.accounts.held.order import (
    HeldPod,
    Limit,
    in_order,
    next_released,
    queues_after,
    queues_of,
)

POD = HeldPod(uid="", namespace="a", name="", priority=0, created_ms=0, rate_milli=1_000, needs_budget=True)


def pods(*given: tuple[str, str, int, int, int]) -> dict[str, HeldPod]:
    """Pods of UID, namespace, priority, age and rate."""
    return {
        uid: HeldPod(
            uid=uid,
            namespace=namespace,
            name=uid,
            priority=priority,
            created_ms=created_ms,
            rate_milli=rate,
            needs_budget=True,
        )
        for uid, namespace, priority, created_ms, rate in given
    }


def released(
    held: dict[str, HeldPod], rooms: dict[str, int], most: int = 100, served: dict[str, int] | None = None
) -> list[str]:
    """The UIDs, where a pod of rate r takes r of its namespace's room."""

    def limits(pod: HeldPod) -> tuple[Limit, ...]:
        mine = rooms.get(pod.namespace)
        return () if mine is None else (Limit(pod.namespace, mine, span_ms=1),)

    return [each.uid for each in next_released(queues_of(held.values()), (), limits, served or {}, most)]


def test_priority_goes_before_age_and_namespaces_take_turns() -> None:
    held = pods(
        ("a1", "a", 0, 1, 1),
        ("a2", "a", 0, 2, 1),
        ("a3", "a", 0, 3, 1),
        ("b1", "b", 0, 9, 1),
        ("b2", "b", 0, 10, 1),
        ("urgent", "c", 5, 99, 1),
    )

    assert released(held, {}) == ["urgent", "a1", "b1", "a2", "b2", "a3"]
    assert released(held, {}, most=2, served={"a": 7}) == ["urgent", "b1"]


def test_no_more_is_released_than_fits_and_a_large_pod_is_not_overtaken() -> None:
    held = pods(("a1", "a", 0, 1, 4), ("big", "a", 0, 2, 7), ("small", "a", 0, 3, 1), ("b1", "b", 0, 4, 1))

    assert released(held, {"a": 10, "b": 1}) == ["a1", "b1"]
    assert released(held, {"a": 11}) == ["a1", "b1", "big"]
    assert released(held, {"a": 0, "b": -1}) == []


def test_a_pod_that_waits_for_its_group_is_passed_by_no_pod_of_the_group() -> None:
    held = pods(("big", "a", 0, 1, 5), ("small", "b", 0, 2, 1), ("other", "c", 0, 3, 1))
    group = Limit("group", 4, span_ms=1, is_shared=True, attainable=5)

    chosen = next_released(
        queues_of(held.values()), (), lambda pod: () if pod.namespace == "c" else (group,), {}, 10
    )

    assert [each.uid for each in chosen] == ["other"]


@pytest.mark.parametrize(
    "large",
    [
        # what is charged of the grant does not come back in this period
        (Limit("group", 4, span_ms=1, is_shared=True, attainable=4),),
        # of another account there is no room either
        (Limit("group", 4, span_ms=1, is_shared=True, attainable=9), Limit("a", 0, span_ms=1)),
    ],
    ids=["too large for the period", "kept by its own account"],
)
def test_a_pod_that_its_group_cannot_release_lets_pods_of_other_namespaces_pass(
    large: tuple[Limit, ...],
) -> None:
    held = pods(("big", "a", 9, 0, 5), ("behind", "a", 0, 1, 1), ("small", "b", 0, 2, 1))

    chosen = next_released(
        queues_of(held.values()), (), lambda pod: large if pod.namespace == "a" else large[:1], {}, 10
    )

    assert [each.uid for each in chosen] == ["small"]


def test_a_pod_that_costs_more_than_a_grant_waits_until_nothing_of_the_grant_is_used() -> None:
    def chosen(room: int) -> bool:
        limit = Limit("a", room, span_ms=1, most=10)
        big = queues_of(pods(("big", "a", 0, 1, 50)).values())
        return bool(next_released(big, (), lambda _: (limit,), {}, 10))

    assert chosen(10)
    assert not chosen(9)


def test_what_was_sent_takes_its_room_and_is_not_sent_again() -> None:
    held = pods(("a1", "a", 0, 1, 6), ("a2", "a", 0, 2, 4), ("a3", "a", 0, 3, 4))
    limit = Limit("a", 10, span_ms=1)

    chosen = next_released(queues_of(held.values()), (held["a1"],), lambda _: (limit,), {}, 10)
    passed = next_released(queues_of(held.values()), (held["a1"],), lambda _: (limit,), {}, 10, {"a2"})

    assert [each.uid for each in chosen] == ["a2"]
    assert [each.uid for each in passed] == ["a3"]


HELD = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 9), st.integers(1, 9)), max_size=30
)
ROOMS = st.fixed_dictionaries({name: st.integers(-5, 40) for name in "abc"})


@given(HELD, ROOMS, st.integers(1, 12), st.sets(st.integers(0, 29)))
def test_the_room_is_never_exceeded_the_order_kept_and_no_pod_starves(
    given_pods: list[tuple[str, int, int, int]], rooms: dict[str, int], most: int, sent: set[int]
) -> None:
    held = pods(*((f"u{index:02}", *each) for index, each in enumerate(given_pods)))
    flown = {f"u{index:02}" for index in sent} & held.keys()

    def limits(pod: HeldPod) -> tuple[Limit, ...]:
        return (Limit(pod.namespace, rooms[pod.namespace], span_ms=1),)

    sent_pods = [held[uid] for uid in flown]
    chosen = next_released(queues_of(held.values()), sent_pods, limits, {}, most)

    used: Counter[str] = Counter()
    for pod in (*(held[uid] for uid in flown), *chosen):
        used[pod.namespace] += pod.rate_milli
    assert len(chosen) <= most
    assert not flown & {pod.uid for pod in chosen}
    for name in {pod.namespace for pod in chosen}:
        assert used[name] <= rooms[name]
    for name in rooms:  # each namespace's pods go in their order, none is passed over
        mine = in_order(pod for pod in held.values() if pod.namespace == name and pod.uid not in flown)
        count = sum(pod.namespace == name for pod in chosen)
        assert {pod.uid for pod in mine[:count]} == {pod.uid for pod in chosen if pod.namespace == name}
        if len(chosen) < most and count < len(mine):  # the first that stays did not fit
            assert used[name] + mine[count].rate_milli > rooms[name]


@given(HELD, HELD, st.sets(st.integers(0, 29)))
def test_queues_follow_pods_that_come_go_and_change(
    first: list[tuple[str, int, int, int]], second: list[tuple[str, int, int, int]], same: set[int]
) -> None:
    before = pods(*((f"u{index:02}", *each) for index, each in enumerate(first)))
    now = pods(*((f"u{index:02}", *each) for index, each in enumerate(second)))
    now |= {uid: before[uid] for uid in now.keys() & before.keys() & {f"u{index:02}" for index in same}}
    queues = queues_of(before.values())

    assert queues_after(queues, before, now) == queues_of(now.values())
    assert queues == queues_of(before.values())


def test_the_order_does_not_depend_on_the_order_of_the_pods() -> None:
    one, two = replace(POD, uid="1"), replace(POD, uid="2")

    assert in_order([two, one]) == [one, two]
