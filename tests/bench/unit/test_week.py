"""The simulated week: no work is lost or made, and the load that it speaks of happened."""

import pytest

from tests.bench.week import DAYS, GANGS, HOUR, LOAD, Week, bound, most_a_day


@pytest.fixture(scope="module")
def week() -> Week:
    week = Week(1, days=1.5, nodes=6, load=1.2)
    week.run()
    return week


def test_card_hours_are_of_pods_that_ended_left_or_run(week: Week) -> None:
    running = sum(cards * (week.now_ms - since_ms) for cards, since_ms in week.held.values()) / HOUR
    done = [owner for owner in week.owners.values() if owner.run < 0]

    assert week.useful + week.lost + running == pytest.approx(sum(team.paid for team in week.teams))
    # a gang's first pod may have its node some seconds before its last one
    assert week.useful == pytest.approx(sum(owner.rate * owner.length_ms / HOUR for owner in done), rel=0.01)
    assert len(done) == week.done


def test_no_card_has_more_than_it_takes_and_each_owner_its_pods(week: Week) -> None:
    held = sum(cards for cards, _ in week.held.values())
    there = {name.rpartition("-")[0] for name in week.pods}
    come = {owner.name for owner in week.owners.values() if owner.came_ms < week.now_ms}

    assert 0 < held <= week.cards
    assert all(room is None or room.share_milli >= 0 for name in week.names
               for room in week.cache.snapshot.node(name).free_by_card)  # fmt: skip
    assert there == {name for name in come if week.owners[name].run >= 0}


def test_what_comes_is_the_load_and_its_gangs() -> None:
    weeks = [Week(seed) for seed in range(8)]
    cards = sum(week.cards for week in weeks)
    owners = [owner for week in weeks for owner in week.owners.values()]

    hours = sum(owner.rate * owner.length_ms / HOUR for owner in owners)
    of_gangs = sum(owner.rate * owner.length_ms / HOUR for owner in owners if owner.size > 1)
    assert hours / (DAYS * 24 * cards) == pytest.approx(LOAD, rel=0.1)
    assert of_gangs / hours == pytest.approx(GANGS, rel=0.2)


def test_it_happened(week: Week) -> None:
    told = week.told()

    assert told["use"] > 0.5
    assert {key.split()[0] for key in told["waits"]} == {"in", "over"}
    assert told["displaced"] >= told["for gangs"] > 0
    assert any(owner.waited_ms is not None for owner in week.owners.values() if owner.size > 1)


def test_the_same_on_both_sides_differs_by_nothing() -> None:
    seeds = [{"waits": {}, "useful": at} for at in (1.0, 2.0, 5.0)]

    assert bound(seeds, seeds, lambda each: sum(seed["useful"] for seed in each)) == [0.0, 0.0]
    assert most_a_day([0, HOUR, 24 * HOUR, 25 * HOUR]) == 2
