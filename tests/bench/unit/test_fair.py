"""The simulation of fair order: no card is given twice, no job is lost, and orders differ as they should."""

from collections import Counter

import pytest

from tests.bench.fair import (
    CARDS,
    DAY,
    FOUR,
    HOUR,
    MIXED,
    NODES,
    Cluster,
    Job,
    Tenants,
    Use,
    alone,
    drifting,
    shares_of,
    venus,
)

ALONE = Tenants({"g": 1, "h": 2}, {"x": 1, "y": 1}, {"x": "g", "y": "h"})


def job(number: int, account: str, came: int, length: int = 1, pods: int = 1, cards: int = CARDS) -> Job:
    """In hours; it takes a node."""
    return Job(number, account, came * HOUR, length * HOUR, pods, cards)


def started(order: str, *jobs: Job, nodes: int = 1) -> list[float | None]:
    """When each starts, in hours."""
    Cluster(order, ALONE, nodes, DAY).run(jobs)
    return [None if one.started_ms is None else one.started_ms / HOUR for one in jobs]


@pytest.mark.parametrize("order", ["fair", "fifo", "shortest", "priority"])
def test_no_card_is_given_twice_and_every_job_of_the_trace_ends(order: str) -> None:
    jobs, tenants = venus()
    cluster = Cluster(order, tenants, 22, DAY)
    cluster.run(jobs)

    moments = [(one.started_ms or 0, 1, one) for one in jobs] + [
        ((one.started_ms or 0) + one.length_ms, 0, one) for one in jobs
    ]
    held = Counter[int]()
    for _, is_start, one in sorted(moments, key=lambda moment: moment[:2]):
        for node in one.nodes:
            held[node] += one.cards if is_start else -one.cards
            assert 0 <= held[node] <= CARDS
    assert all(one.started_ms is not None and one.started_ms >= one.came_ms for one in jobs)
    assert cluster.free == [CARDS] * 22


def test_by_rank_the_account_that_used_less_goes_first() -> None:
    jobs = job(0, "x", 0), job(1, "x", 0), job(2, "x", 0), job(3, "y", 0)

    assert started("fifo", *jobs) == [0, 1, 2, 3]
    assert started("fair", *jobs) == [0, 2, 3, 1]


def test_the_shortest_and_the_highest_go_first_where_that_is_the_order() -> None:
    first = job(0, "x", 0)

    assert started("shortest", first, job(1, "x", 0, 5), job(2, "y", 0, 2)) == [0, 3, 1]
    assert started("priority", job(0, "x", 0), job(1, "y", 0)) == [1, 0]


def test_nodes_are_kept_for_a_gang_that_has_waited() -> None:
    gang = job(1, "y", 0, pods=2)
    small = [job(2, "x", 1), job(3, "x", 2), job(4, "x", 3)]

    assert started("fifo", job(0, "x", 0, 3), job(5, "x", 0, 1), gang, *small, nodes=2)[2:] == [3, 4, 4, 5]


def test_of_a_namespace_so_many_pods_wait_and_the_others_are_held() -> None:
    cluster = Cluster("fair", ALONE, 1, DAY, most_waiting=2)
    cluster.run([job(at, "x", 0) for at in range(5)], HOUR // 2)

    assert (sum(map(len, cluster.waiting["x"].values())), len(cluster.held["x"])) == (2, 2)
    assert cluster.reserved["x"] == 2 * CARDS * 1_000 * HOUR // 6


def test_the_use_of_what_runs_and_of_what_ended_is_one_sum() -> None:
    use = Use(DAY)
    use.running = {0: (1_000, 0), 1: (500, HOUR)}
    before = use.at(10 * HOUR)
    use.end(0, 10 * HOUR)
    use.end(1, 10 * HOUR)

    assert use.at(10 * HOUR) == pytest.approx(before)
    assert use.at(10 * HOUR + DAY) == pytest.approx(before / 2)


def test_arrivals_ask_for_more_than_there_is_and_one_group_for_less_than_its_part() -> None:
    jobs = drifting(3, 20, MIXED)
    asked = Counter[str]()
    for one in jobs:
        asked[FOUR.group_of[one.account]] += one.rate * one.length_ms
    parts = {group: asked[group] * 10 / weight / (NODES * CARDS * 1_000 * 20 * DAY)
             for group, weight in FOUR.groups.items()}  # fmt: skip

    assert [one.came_ms for one in jobs] == sorted(one.came_ms for one in jobs)
    assert sorted(part < 1.3 for part in parts.values()) == [False, False, False, True]


def test_by_rank_use_follows_the_weights_and_by_age_it_does_not() -> None:
    fair, by_age = (shares_of(order, 1, 8) for order in ("fair, maxWaiting 4", "first come"))

    assert fair["asked"] >= 2
    assert fair["beyond"] <= 0.04
    assert fair["mean"] < 0.02 < by_age["mean"]


def test_alone_each_tenant_waits_on_its_own_nodes() -> None:
    jobs, tenants = venus()
    waits = alone()
    first = next(one for one in jobs if tenants.group_of[one.account] == "vcvlY")

    assert waits.keys() == {one.number for one in jobs}
    assert waits[first.number] == 0
