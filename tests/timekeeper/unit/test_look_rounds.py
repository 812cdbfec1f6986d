"""For which gangs of a namespace cards are looked for next."""

from dataclasses import replace

from timekeeper.accounts.held.looks import LookRounds
from timekeeper.accounts.held.order import HeldPod

GANG = HeldPod(
    uid="",
    namespace="a",
    name="",
    priority=0,
    created_ms=0,
    rate_milli=1_000,
    needs_budget=False,
    is_gang=True,
)


def due(*keys: str) -> dict[str, HeldPod]:
    return {key: replace(GANG, uid=key, namespace=key.partition("/")[0]) for key in keys}


def test_each_gang_has_one_look_in_vain_before_one_has_another() -> None:
    rounds, found = LookRounds(), list[str]()
    for _ in range(6):
        found.append(next(iter(rounds.of(due("a/1", "a/2", "a/3"), set()))))
        rounds.in_vain(found[-1])

    assert found == ["a/1", "a/2", "a/3"] * 2


def test_gangs_that_come_all_the_time_keep_no_older_one_from_its_next_look() -> None:
    """It is looked for once in each round, and those that come meanwhile are in the next."""
    rounds, looks = LookRounds(), 0
    for at in range(20):
        there = rounds.of(due("a/old", f"a/{at}", f"a/{at + 1}"), set())
        looks += "a/old" in there
        rounds.in_vain("a/old" if "a/old" in there else f"a/{at}")

    assert looks >= 5


def test_the_rounds_of_namespaces_are_their_own() -> None:
    rounds = LookRounds()
    gangs = due("a/1", "a/2", "b/1")
    rounds.of(gangs, set())
    rounds.in_vain("b/1")
    rounds.in_vain("a/1")

    assert rounds.of(gangs, set()).keys() == {"a/2", "b/1"}


def test_a_round_is_over_where_none_that_is_left_is_due_or_can_be_paid() -> None:
    for left, unpaid in ((due("a/1"), set()), (due("a/1", "a/2"), {"a/2"})):
        rounds = LookRounds()
        rounds.of(due("a/1", "a/2"), set())
        rounds.in_vain("a/1")

        assert rounds.of(left, unpaid) == left
